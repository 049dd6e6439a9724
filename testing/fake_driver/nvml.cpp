// SPDX-License-Identifier: Apache-2.0
// The fake libnvidia-ml.so.1: boards that this process may open, and their memory over all
// processes.
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "driver/nvml_abi.hpp"
#include "fake_driver/gpu_config.hpp"

namespace gpushm::nvml {
extern "C" {
#define GPUSHM_FAKE_DECLARE(result, symbol, parameters) \
  __attribute__((visibility("default"))) result symbol parameters;
GPUSHM_NVML_FUNCTIONS(GPUSHM_FAKE_DECLARE)
#undef GPUSHM_FAKE_DECLARE
}
}  // namespace gpushm::nvml

using namespace gpushm;
using namespace gpushm::nvml;

namespace {

struct boards {
  std::vector<fake::gpu_view> all;  // every section of gpus.conf
  std::vector<const fake::gpu_view*> visible;
};

// Null before nvmlInit; never destroyed.
const boards* known = nullptr;
std::mutex mutex;

const fake::gpu_view* find(nvmlDevice_t device) {
  const std::lock_guard lock(mutex);
  for (const fake::gpu_view* each :
       known == nullptr ? decltype(known->visible){} : known->visible) {
    if (reinterpret_cast<const void*>(each) == reinterpret_cast<const void*>(device)) {
      return each;
    }
  }
  return nullptr;
}

nvmlReturn_t put_text(const std::string& value, char* text, unsigned int size) {
  if (text == nullptr || value.size() >= size) {
    return text == nullptr ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_INSUFFICIENT_SIZE;
  }
  std::memcpy(text, value.c_str(), value.size() + 1);
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvml::nvmlInit_v2() {
  const std::lock_guard lock(mutex);
  if (known == nullptr) {
    auto* const made = new boards{fake::look_at_gpus(), {}};
    for (const fake::gpu_view& each : made->all) {
      if (each.properties.mig_parent.empty() && each.openable) {
        made->visible.push_back(&each);
      }
    }
    known = made;
  }
  return known->all.empty() ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_SUCCESS;
}

nvmlReturn_t nvml::nvmlShutdown() {
  return NVML_SUCCESS;
}

const char* nvml::nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
#define GPUSHM_FAKE_NAME(name, value) \
  case name:                          \
    return #name;
    GPUSHM_NVML_RESULTS(GPUSHM_FAKE_NAME)
#undef GPUSHM_FAKE_NAME
    default:
      return "unknown";
  }
}

nvmlReturn_t nvml::nvmlSystemGetDriverVersion(char* text, unsigned int size) {
  return put_text("580.0.fake", text, size);
}

nvmlReturn_t nvml::nvmlSystemGetNVMLVersion(char* text, unsigned int size) {
  return put_text("13.580.0.fake", text, size);
}

nvmlReturn_t nvml::nvmlDeviceGetCount_v2(unsigned int* count) {
  const std::lock_guard lock(mutex);
  if (known == nullptr) {
    return NVML_ERROR_UNINITIALIZED;
  }
  *count = static_cast<unsigned int>(known->visible.size());
  return NVML_SUCCESS;
}

nvmlReturn_t nvml::nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  const std::lock_guard lock(mutex);
  if (known == nullptr || index >= known->visible.size()) {
    return known == nullptr ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_INVALID_ARGUMENT;
  }
  *device = reinterpret_cast<nvmlDevice_t>(const_cast<fake::gpu_view*>(known->visible[index]));
  return NVML_SUCCESS;
}

nvmlReturn_t nvml::nvmlDeviceGetUUID(nvmlDevice_t device, char* text, unsigned int size) {
  const fake::gpu_view* const gpu = find(device);
  return gpu == nullptr ? NVML_ERROR_INVALID_ARGUMENT : put_text(gpu->properties.uuid, text, size);
}

nvmlReturn_t nvml::nvmlDeviceGetName(nvmlDevice_t device, char* text, unsigned int size) {
  const fake::gpu_view* const gpu = find(device);
  return gpu == nullptr ? NVML_ERROR_INVALID_ARGUMENT : put_text(gpu->properties.name, text, size);
}

nvmlReturn_t nvml::nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* minor) {
  const fake::gpu_view* const gpu = find(device);
  if (gpu == nullptr) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *minor = static_cast<unsigned int>(gpu->properties.minor);
  return NVML_SUCCESS;
}

nvmlReturn_t nvml::nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  const fake::gpu_view* const gpu = find(device);
  if (gpu == nullptr) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *pci = {};
  const std::string& address = gpu->properties.pci;
  std::sscanf(address.c_str(), "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
  std::snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%.15s", address.c_str());
  // NVML writes the domain with eight digits here.
  std::snprintf(pci->busId, sizeof(pci->busId), "0000%.27s", address.c_str());
  return NVML_SUCCESS;
}

nvmlReturn_t nvml::nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const fake::gpu_view* const gpu = find(device);
  if (gpu == nullptr) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *memory = {};
  bool split = false;
  for (const fake::gpu_view& each : known->all) {
    if (each.properties.mig_parent == gpu->properties.section) {
      const fake::memory_state part = fake::look_at_memory(each);
      memory->total += part.total_bytes;
      memory->free += part.free_bytes;
      split = true;
    }
  }
  if (!split) {
    const fake::memory_state whole = fake::look_at_memory(*gpu);
    memory->total = whole.total_bytes;
    memory->free = whole.free_bytes;
  }
  memory->used = memory->total - memory->free;
  return NVML_SUCCESS;
}
