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

nvmlDevice_t handle_of(const fake::gpu_view& gpu) {
  return reinterpret_cast<nvmlDevice_t>(const_cast<fake::gpu_view*>(&gpu));
}

// A board that can be opened, or one of its MIG instances.
const fake::gpu_view* find(nvmlDevice_t device) {
  const std::lock_guard lock(mutex);
  if (known == nullptr) {
    return nullptr;
  }
  for (const fake::gpu_view& each : known->all) {
    if (each.openable && handle_of(each) == device) {
      return &each;
    }
  }
  return nullptr;
}

std::vector<const fake::gpu_view*> instances_of(const fake::gpu_view& board) {
  std::vector<const fake::gpu_view*> found;
  for (const fake::gpu_view& each : known->all) {
    if (each.properties.mig_parent == board.properties.section && each.openable) {
      found.push_back(&each);
    }
  }
  return found;
}

// Boards that reach each other have one link to each other board.
std::vector<const fake::gpu_view*> linked_to(const fake::gpu_view& board) {
  std::vector<const fake::gpu_view*> found;
  for (const fake::gpu_view& each : known->all) {
    if (&each != &board && each.properties.mig_parent.empty() && each.properties.peer &&
        board.properties.peer) {
      found.push_back(&each);
    }
  }
  return found;
}

// Calls `answer(board)`; what it returns is the function's result.
template <typename Answer>
nvmlReturn_t with_device(nvmlDevice_t device, Answer&& answer) {
  const fake::gpu_view* const gpu = find(device);
  return gpu == nullptr ? NVML_ERROR_INVALID_ARGUMENT : answer(*gpu);
}

void put_pci(const std::string& address, nvmlPciInfo_t& pci) {
  pci = {};
  std::sscanf(address.c_str(), "%x:%x:%x", &pci.domain, &pci.bus, &pci.device);
  std::snprintf(pci.busIdLegacy, sizeof(pci.busIdLegacy), "%.15s", address.c_str());
  // NVML writes the domain with eight digits here.
  std::snprintf(pci.busId, sizeof(pci.busId), "0000%.27s", address.c_str());
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
  *device = handle_of(*known->visible[index]);
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
  put_pci(gpu->properties.pci, *pci);
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

nvmlReturn_t nvml::nvmlDeviceGetMigMode(nvmlDevice_t device,
                                        unsigned int* current,
                                        unsigned int* pending) {
  return with_device(device, [&](const fake::gpu_view& board) {
    *current = instances_of(board).empty() && !board.properties.mig_enabled ? 0 : 1;
    *pending = *current;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  return with_device(device, [&](const fake::gpu_view& /*board*/) {
    *count = 7;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device,
                                                       unsigned int index,
                                                       nvmlDevice_t* instance) {
  return with_device(device, [&](const fake::gpu_view& board) {
    const auto instances = instances_of(board);
    if (index >= instances.size()) {
      return NVML_ERROR_NOT_FOUND;
    }
    *instance = handle_of(*instances[index]);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int* id) {
  return with_device(device, [&](const fake::gpu_view& instance) {
    if (instance.properties.mig_parent.empty()) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
    // "mig0" is GPU instance 1, as the driver never calls a part of a board 0.
    *id = instance.properties.gpu_instance >= 0
              ? static_cast<unsigned int>(instance.properties.gpu_instance)
              : 1 + static_cast<unsigned int>(std::stoul(instance.properties.section.substr(3)));
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int* id) {
  return with_device(device, [&](const fake::gpu_view& instance) {
    *id = static_cast<unsigned int>(instance.properties.compute_instance);
    return instance.properties.mig_parent.empty() ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
  return with_device(device, [&](const fake::gpu_view& /*board*/) {
    *mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetVirtualizationMode(nvmlDevice_t device,
                                                   nvmlGpuVirtualizationMode_t* mode) {
  return with_device(device, [&](const fake::gpu_view& /*board*/) {
    *mode = NVML_GPU_VIRTUALIZATION_MODE_NONE;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return with_device(device, [&](const fake::gpu_view& /*board*/) {
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetEccMode(nvmlDevice_t device,
                                        nvmlEnableState_t* current,
                                        nvmlEnableState_t* pending) {
  return with_device(device, [&](const fake::gpu_view& /*board*/) {
    *current = NVML_FEATURE_DISABLED;
    *pending = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetMaxClockInfo(nvmlDevice_t device,
                                             nvmlClockType_t type,
                                             unsigned int* mhz) {
  return with_device(device, [&](const fake::gpu_view& /*board*/) {
    *mhz = type == NVML_CLOCK_MEM ? 2000 : 1000;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetNvLinkState(nvmlDevice_t device,
                                            unsigned int link,
                                            nvmlEnableState_t* active) {
  return with_device(device, [&](const fake::gpu_view& board) {
    if (link >= linked_to(board).size()) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
    *active = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetNvLinkVersion(nvmlDevice_t device,
                                              unsigned int link,
                                              unsigned int* version) {
  return with_device(device, [&](const fake::gpu_view& board) {
    *version = 4;
    return link >= linked_to(board).size() ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device,
                                                       unsigned int link,
                                                       nvmlPciInfo_t* pci) {
  return with_device(device, [&](const fake::gpu_view& board) {
    const auto others = linked_to(board);
    if (link >= others.size()) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
    put_pci(others[link]->properties.pci, *pci);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device,
                                                       unsigned int link,
                                                       nvmlIntNvLinkDeviceType_t* type) {
  return with_device(device, [&](const fake::gpu_view& board) {
    *type = NVML_NVLINK_DEVICE_TYPE_GPU;
    return link >= linked_to(board).size() ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device,
                                                       nvmlDevice_t other,
                                                       nvmlGpuTopologyLevel_t* level) {
  return with_device(device, [&](const fake::gpu_view& board) {
    return with_device(other, [&](const fake::gpu_view& second) {
      *level = board.properties.numa == second.properties.numa ? NVML_TOPOLOGY_NODE
                                                               : NVML_TOPOLOGY_SYSTEM;
      return NVML_SUCCESS;
    });
  });
}
