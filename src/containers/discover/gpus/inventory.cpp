// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/gpus/inventory.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "gpu/driver/device_text.hpp"
#include "gpu/driver/nvml.hpp"
#include "gpushm/error.hpp"

namespace gpushm::discover {

namespace {

using driver::nvml_library;

std::string uuid_of(const nvml_library& nvml,
                    nvml::nvmlDevice_t device,
                    const std::string& object) {
  std::array<char, 128> text{};
  nvml_library::check(
      nvml->nvmlDeviceGetUUID(device, text.data(), static_cast<unsigned int>(text.size()) - 1),
      object,
      "nvmlDeviceGetUUID");
  return text.data();
}

mig_entry instance_of(const nvml_library& nvml,
                      nvml::nvmlDevice_t device,
                      unsigned int index,
                      const std::string& name) {
  mig_entry entry;
  entry.index = index;
  entry.uuid = uuid_of(nvml, device, name);
  nvml_library::check(nvml->nvmlDeviceGetGpuInstanceId(device, &entry.gpu_instance),
                      name,
                      "nvmlDeviceGetGpuInstanceId");
  nvml_library::check(nvml->nvmlDeviceGetComputeInstanceId(device, &entry.compute_instance),
                      name,
                      "nvmlDeviceGetComputeInstanceId");
  return entry;
}

// Adds a line for the failure to `left_out`, or throws it if that is null.
void leave_out(const error& failure, std::vector<std::string>* left_out) {
  if (left_out == nullptr) {
    throw failure;
  }
  left_out->push_back(fmt::format("{}: {}", failure.object(), failure.cause()));
}

std::vector<mig_entry> instances_of(const nvml_library& nvml,
                                    nvml::nvmlDevice_t gpu,
                                    const std::string& object,
                                    std::vector<std::string>* left_out) {
  unsigned int most = 0;
  nvml_library::check(
      nvml->nvmlDeviceGetMaxMigDeviceCount(gpu, &most), object, "nvmlDeviceGetMaxMigDeviceCount");
  std::vector<mig_entry> entries;
  for (unsigned int index = 0; index < most; ++index) {
    nvml::nvmlDevice_t device = nullptr;
    const auto result = nvml->nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, &device);
    // Indices have gaps where instances were destroyed.
    if (result == nvml::NVML_ERROR_NOT_FOUND || result == nvml::NVML_ERROR_INVALID_ARGUMENT) {
      continue;
    }
    const std::string name = std::string(object).append(", instance ") + std::to_string(index);
    try {
      nvml_library::check(result, name, "nvmlDeviceGetMigDeviceHandleByIndex");
      entries.push_back(instance_of(nvml, device, index, name));
    } catch (const error& failure) {
      leave_out(failure, left_out);
    }
  }
  return entries;
}

gpu_entry describe(const nvml_library& nvml,
                   nvml::nvmlDevice_t device,
                   unsigned int index,
                   std::vector<std::string>* left_out) {
  const std::string object = std::string("GPU ") + std::to_string(index);
  gpu_entry entry;
  entry.index = index;
  entry.uuid = uuid_of(nvml, device, object);
  nvml::nvmlPciInfo_t pci{};
  nvml_library::check(nvml->nvmlDeviceGetPciInfo_v3(device, &pci), object, "nvmlDeviceGetPciInfo");
  entry.pci_address =
      driver::normal_pci_address(static_cast<const char*>(pci.busId)).value_or(std::string());
  unsigned int minor = 0;
  nvml_library::check(
      nvml->nvmlDeviceGetMinorNumber(device, &minor), object, "nvmlDeviceGetMinorNumber");
  entry.minor = static_cast<int>(minor);
  unsigned int current = 0;
  unsigned int pending = 0;
  const auto mode = nvml->nvmlDeviceGetMigMode(device, &current, &pending);
  // GPUs and drivers without MIG return one of these two errors.
  if (mode != nvml::NVML_ERROR_NOT_SUPPORTED && mode != nvml::NVML_ERROR_FUNCTION_NOT_FOUND) {
    nvml_library::check(mode, object, "nvmlDeviceGetMigMode");
    entry.mig_enabled = current != 0;
  }
  if (entry.mig_enabled) {
    entry.instances = instances_of(nvml, device, object, left_out);
  }
  return entry;
}

}  // namespace

std::vector<gpu_entry> query_nvml(const std::string& library, std::vector<std::string>* left_out) {
  if (!library.empty()) {
    nvml_library::set_alternative_path(library);
  }
  const nvml_library& nvml = nvml_library::instance();
  unsigned int count = 0;
  nvml_library::check(nvml->nvmlDeviceGetCount_v2(&count), {}, "nvmlDeviceGetCount");
  std::vector<gpu_entry> gpus;
  for (unsigned int index = 0; index < count; ++index) {
    nvml::nvmlDevice_t device = nullptr;
    const auto result = nvml->nvmlDeviceGetHandleByIndex_v2(index, &device);
    // Counted, but this process has no permission.
    if (result == nvml::NVML_ERROR_NO_PERMISSION) {
      continue;
    }
    try {
      nvml_library::check(
          result, std::string("GPU ") + std::to_string(index), "nvmlDeviceGetHandleByIndex");
      gpus.push_back(describe(nvml, device, index, left_out));
    } catch (const error& failure) {
      leave_out(failure, left_out);
    }
  }
  return gpus;
}

namespace {

std::string instance_id(const gpu_entry& gpu, const mig_entry& instance) {
  return fmt::format("{}:{}", gpu.index, instance.index);
}

bool names_gpu(const std::string& id, const gpu_entry& gpu) {
  return id == std::to_string(gpu.index) || id == gpu.uuid;
}

bool names_instance(const std::string& id, const gpu_entry& gpu, const mig_entry& instance) {
  return id == instance_id(gpu, instance) || id == instance.uuid;
}

[[noreturn]] void throw_unknown(const std::string& id, const std::vector<gpu_entry>& gpus) {
  std::string there;
  const auto add = [&](const std::string& name, const std::string& uuid) {
    there += fmt::format("{}{} = {}", there.empty() ? "" : ", ", name, uuid);
  };
  for (const gpu_entry& gpu : gpus) {
    add(std::to_string(gpu.index), gpu.uuid);
    for (const mig_entry& instance : gpu.instances) {
      add(instance_id(gpu, instance), instance.uuid);
    }
  }
  throw error(errc::device_not_found,
              "find device",
              id,
              there.empty() ? std::string("no GPU is available")
                            : std::string("no such device; available: ").append(there),
              "use the index or UUID of a GPU or MIG instance");
}

}  // namespace

std::vector<gpu_entry> select_devices(const std::vector<gpu_entry>& gpus,
                                      const std::vector<std::string>& ids) {
  if (ids.empty()) {
    return gpus;
  }
  for (const std::string& id : ids) {
    const bool known = std::any_of(gpus.begin(), gpus.end(), [&](const gpu_entry& gpu) {
      return names_gpu(id, gpu) ||
             std::any_of(gpu.instances.begin(), gpu.instances.end(), [&](const auto& each) {
               return names_instance(id, gpu, each);
             });
    });
    if (!known) {
      throw_unknown(id, gpus);
    }
  }
  std::vector<gpu_entry> chosen;
  for (const gpu_entry& gpu : gpus) {
    const bool whole =
        std::any_of(ids.begin(), ids.end(), [&](const auto& id) { return names_gpu(id, gpu); });
    gpu_entry part = gpu;
    if (!whole) {
      std::erase_if(part.instances, [&](const mig_entry& each) {
        return std::none_of(
            ids.begin(), ids.end(), [&](const auto& id) { return names_instance(id, gpu, each); });
      });
    }
    if (whole || !part.instances.empty()) {
      chosen.push_back(std::move(part));
    }
  }
  return chosen;
}

}  // namespace gpushm::discover
