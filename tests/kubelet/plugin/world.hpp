// SPDX-License-Identifier: Apache-2.0
#pragma once

// GPUs as reported by NVML, for tests of the device plugin's logic.

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "gpushm/error.hpp"
#include "kubernetes/device_plugin/plan/inventory.hpp"
#include "kubernetes/device_plugin/plan/plan.hpp"

namespace gpushm_tests {

using namespace gpushm;
using device_plugin::gpu_info;
using device_plugin::instance;
using device_plugin::inventory;

inline std::string uuid_of_gpu(unsigned int index) {
  std::array<char, 64> text{};
  static_cast<void>(
      std::snprintf(text.data(), text.size(), "GPU-%08x-1111-4222-8333-444455556666", index));
  return text.data();
}

inline std::string uuid_of_instance(unsigned int index, unsigned int instance_index) {
  std::array<char, 64> text{};
  static_cast<void>(std::snprintf(
      text.data(), text.size(), "MIG-%08x-%04x-4222-8333-444455556666", index, instance_index));
  return text.data();
}

/// A GPU, MIG-partitioned if `profiles` is not empty.
inline gpu_info make_gpu(unsigned int index, const std::vector<std::string>& profiles = {}) {
  gpu_info result;
  result.entry.index = index;
  result.entry.uuid = uuid_of_gpu(index);
  result.entry.minor = static_cast<int>(index);
  result.entry.pci_address = "0000:10:00.0";
  result.entry.mig_enabled = !profiles.empty();
  result.name = "NVIDIA H100 80GB HBM3";
  result.total_bytes = 80ULL << 30U;
  result.numa_node = index % 2;
  for (unsigned int i = 0; i < profiles.size(); ++i) {
    const discover::mig_entry entry{i, uuid_of_instance(index, i), i + 1, 0};
    result.entry.instances.push_back(entry);
    result.instances.push_back({entry, profiles[i], 10ULL << 30U});
  }
  return result;
}

/// All GPUs have the closeness of GPUs on one NUMA node.
inline inventory make_inventory(std::vector<gpu_info> gpus) {
  inventory result;
  result.gpus = std::move(gpus);
  result.closeness.assign(result.gpus.size(), std::vector<unsigned int>(result.gpus.size(), 20));
  for (std::size_t i = 0; i < result.gpus.size(); ++i) {
    result.closeness[i][i] = 0;
  }
  result.driver_version = "580.0";
  return result;
}

inline inventory whole_gpus(unsigned int count) {
  std::vector<gpu_info> gpus;
  for (unsigned int i = 0; i < count; ++i) {
    gpus.push_back(make_gpu(i));
  }
  return make_inventory(std::move(gpus));
}

/// The text of the error that a call throws; "nothing" if it does not throw.
template <typename Call>
std::string what(Call&& call) {
  try {
    call();
  } catch (const error& failure) {
    return failure.what();
  }
  return "nothing";
}

inline std::vector<std::string> ids_of(const device_plugin::resource& resource) {
  std::vector<std::string> ids;
  for (const device_plugin::device& each : resource.devices()) {
    ids.push_back(each.id);
  }
  return ids;
}

inline std::vector<std::string> names_of(const device_plugin::planned& plan) {
  std::vector<std::string> names;
  for (const auto& each : plan.resources) {
    names.push_back(
        std::string(each->name()).append(" ").append(std::to_string(each->devices().size())));
  }
  return names;
}

inline const device_plugin::resource& resource_named(const device_plugin::planned& plan,
                                                     const std::string& name) {
  for (const auto& each : plan.resources) {
    if (each->name() == name) {
      return *each;
    }
  }
  throw std::runtime_error("no resource " + name);
}

}  // namespace gpushm_tests
