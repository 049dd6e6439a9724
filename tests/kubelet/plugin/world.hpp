// SPDX-License-Identifier: Apache-2.0
#pragma once

// GPUs for tests of the device plugin's logic, as NVML would show them.

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "gpushm/error.hpp"
#include "kubelet/plugin/plan/inventory.hpp"
#include "kubelet/plugin/plan/plan.hpp"

namespace gpushm_tests {

using namespace gpushm;
using plugin::gpu_info;
using plugin::instance;
using plugin::inventory;

inline std::string uuid_of_gpu(unsigned int index) {
  std::array<char, 64> text{};
  static_cast<void>(
      std::snprintf(text.data(), text.size(), "GPU-%08x-1111-4222-8333-444455556666", index));
  return text.data();
}

inline std::string uuid_of_part(unsigned int index, unsigned int part) {
  std::array<char, 64> text{};
  static_cast<void>(
      std::snprintf(text.data(), text.size(), "MIG-%08x-%04x-4222-8333-444455556666", index, part));
  return text.data();
}

/// A GPU, MIG-partitioned if `profiles` is not empty.
inline gpu_info make_gpu(unsigned int index, const std::vector<std::string>& profiles = {}) {
  gpu_info made;
  made.entry.index = index;
  made.entry.uuid = uuid_of_gpu(index);
  made.entry.minor = static_cast<int>(index);
  made.entry.pci_address = "0000:10:00.0";
  made.entry.mig_enabled = !profiles.empty();
  made.name = "NVIDIA H100 80GB HBM3";
  made.total_bytes = 80ULL << 30U;
  made.numa_node = index % 2;
  for (unsigned int i = 0; i < profiles.size(); ++i) {
    const discover::mig_entry entry{i, uuid_of_part(index, i), i + 1, 0};
    made.entry.instances.push_back(entry);
    made.instances.push_back({entry, profiles[i], 10ULL << 30U});
  }
  return made;
}

/// All as close as GPUs of one NUMA node.
inline inventory make_inventory(std::vector<gpu_info> gpus) {
  inventory made;
  made.gpus = std::move(gpus);
  made.closeness.assign(made.gpus.size(), std::vector<unsigned int>(made.gpus.size(), 20));
  for (std::size_t i = 0; i < made.gpus.size(); ++i) {
    made.closeness[i][i] = 0;
  }
  made.driver_version = "580.0";
  return made;
}

inline inventory whole_gpus(unsigned int count) {
  std::vector<gpu_info> gpus;
  for (unsigned int i = 0; i < count; ++i) {
    gpus.push_back(make_gpu(i));
  }
  return make_inventory(std::move(gpus));
}

/// The text of the error that a call throws; "nothing" when it throws none.
template <typename Call>
std::string what(Call&& call) {
  try {
    call();
  } catch (const error& failure) {
    return failure.what();
  }
  return "nothing";
}

inline std::vector<std::string> ids_of(const plugin::resource& of) {
  std::vector<std::string> ids;
  for (const plugin::device& each : of.devices()) {
    ids.push_back(each.id);
  }
  return ids;
}

inline std::vector<std::string> names_of(const plugin::planned& plan) {
  std::vector<std::string> names;
  for (const auto& each : plan.resources) {
    names.push_back(
        std::string(each->name()).append(" ").append(std::to_string(each->devices().size())));
  }
  return names;
}

inline const plugin::resource& resource_named(const plugin::planned& plan,
                                              const std::string& name) {
  for (const auto& each : plan.resources) {
    if (each->name() == name) {
      return *each;
    }
  }
  throw std::runtime_error("no resource " + name);
}

}  // namespace gpushm_tests
