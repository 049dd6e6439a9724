// SPDX-License-Identifier: Apache-2.0
// The fake libnvidia-ml.so.1: GPUs that this process may open, and their memory over all processes.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/driver/nvml_abi.hpp"
#include "tests/support/fake_driver/gpu_config.hpp"
#include "tests/support/fake_driver/nvml_events.hpp"

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

struct gpu_list {
  std::vector<fake::gpu_view> all;  // every section of gpus.conf
  std::vector<const fake::gpu_view*> visible;
  fake::config_stamp made_of;
};

// The last list of GPUs; null before nvmlInit. Lists are never destroyed: handles into earlier
// lists stay valid for GPUs that still exist.
std::atomic<const gpu_list*> known = nullptr;
std::vector<const gpu_list*>& earlier = *new std::vector<const gpu_list*>;
std::mutex mutex;

nvmlDevice_t handle_of(const fake::gpu_view& gpu) {
  return reinterpret_cast<nvmlDevice_t>(const_cast<fake::gpu_view*>(&gpu));
}

// Precondition: the mutex is locked. The driver reports a changed MIG layout immediately.
void refresh() {
  const fake::config_stamp now = fake::stamp_of_config();
  const gpu_list* const last = known;
  if (last != nullptr && last->made_of == now) {
    return;
  }
  auto* const created = new gpu_list{fake::read_gpus(), {}, now};
  if (last != nullptr && created->all.empty()) {
    delete created;  // the root has been removed
    return;
  }
  for (const fake::gpu_view& each : created->all) {
    if (each.properties.mig_parent.empty() && each.openable) {
      created->visible.push_back(&each);
    }
  }
  if (last != nullptr) {
    earlier.push_back(last);
  }
  known = created;
}

const fake::gpu_view* with_uuid(const std::string& uuid) {
  for (const fake::gpu_view& each : known.load()->all) {
    if (each.openable && each.properties.uuid == uuid) {
      return &each;
    }
  }
  return nullptr;
}

// A GPU that can be opened, or one of its MIG instances.
const fake::gpu_view* find(nvmlDevice_t device) {
  const std::lock_guard lock(mutex);
  const gpu_list* const now = known;
  if (now == nullptr) {
    return nullptr;
  }
  for (const fake::gpu_view& each : now->all) {
    if (each.openable && handle_of(each) == device) {
      return &each;
    }
  }
  for (const gpu_list* const before : earlier) {
    for (const fake::gpu_view& each : before->all) {
      if (handle_of(each) == device) {
        return with_uuid(each.properties.uuid);
      }
    }
  }
  return nullptr;
}

std::vector<const fake::gpu_view*> instances_of(const fake::gpu_view& gpu) {
  std::vector<const fake::gpu_view*> gpus;
  for (const fake::gpu_view& each : known.load()->all) {
    if (each.properties.mig_parent == gpu.properties.section && each.openable) {
      gpus.push_back(&each);
    }
  }
  return gpus;
}

// GPUs with peer access have one link to each other such GPU.
std::vector<const fake::gpu_view*> linked_to(const fake::gpu_view& gpu) {
  std::vector<const fake::gpu_view*> gpus;
  for (const fake::gpu_view& each : known.load()->all) {
    if (&each != &gpu && each.properties.mig_parent.empty() && each.properties.peer &&
        gpu.properties.peer) {
      gpus.push_back(&each);
    }
  }
  return gpus;
}

// Calls `answer(gpu)` and returns its result.
template <typename Answer>
nvmlReturn_t with_device(nvmlDevice_t device, Answer&& answer) {
  fake::hang_if_requested();
  const fake::gpu_view* const gpu = find(device);
  if (gpu == nullptr) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  return fake::is_lost(gpu->properties.uuid) ? NVML_ERROR_GPU_IS_LOST : answer(*gpu);
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
  fake::hang_if_requested();
  const std::lock_guard lock(mutex);
  refresh();
  if (known.load()->all.empty()) {
    // After an error the library is unloaded, which would leak the list.
    delete known.exchange(nullptr);
    return NVML_ERROR_DRIVER_NOT_LOADED;
  }
  return NVML_SUCCESS;
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
  fake::hang_if_requested();
  const std::lock_guard lock(mutex);
  if (known == nullptr) {
    return NVML_ERROR_UNINITIALIZED;
  }
  refresh();
  *count = static_cast<unsigned int>(known.load()->visible.size());
  return NVML_SUCCESS;
}

nvmlReturn_t nvml::nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  const std::lock_guard lock(mutex);
  const gpu_list* const now = known;
  if (now == nullptr || index >= now->visible.size()) {
    return now == nullptr ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_INVALID_ARGUMENT;
  }
  *device = handle_of(*now->visible[index]);
  return fake::is_lost(now->visible[index]->properties.uuid) ? NVML_ERROR_GPU_IS_LOST
                                                             : NVML_SUCCESS;
}

nvmlReturn_t nvml::nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  const std::lock_guard lock(mutex);
  const fake::gpu_view* const gpu = known == nullptr ? nullptr : with_uuid(uuid);
  if (gpu == nullptr) {
    return known == nullptr ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_NOT_FOUND;
  }
  *device = handle_of(*gpu);
  return fake::is_lost(uuid) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvml::nvmlDeviceGetUUID(nvmlDevice_t device, char* text, unsigned int size) {
  return with_device(
      device, [&](const fake::gpu_view& gpu) { return put_text(gpu.properties.uuid, text, size); });
}

nvmlReturn_t nvml::nvmlDeviceGetName(nvmlDevice_t device, char* text, unsigned int size) {
  return with_device(
      device, [&](const fake::gpu_view& gpu) { return put_text(gpu.properties.name, text, size); });
}

nvmlReturn_t nvml::nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* minor) {
  return with_device(device, [&](const fake::gpu_view& gpu) {
    *minor = static_cast<unsigned int>(gpu.properties.minor);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return with_device(device, [&](const fake::gpu_view& gpu) {
    put_pci(gpu.properties.pci, *pci);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return with_device(device, [&](const fake::gpu_view& gpu) {
    *memory = {};
    bool split = false;
    for (const fake::gpu_view& each : known.load()->all) {
      if (each.properties.mig_parent == gpu.properties.section) {
        const fake::memory_state part = fake::read_memory_state(each);
        memory->total += part.total_bytes;
        memory->free += part.free_bytes;
        split = true;
      }
    }
    if (!split) {
      const fake::memory_state whole = fake::read_memory_state(gpu);
      memory->total = whole.total_bytes;
      memory->free = whole.free_bytes;
    }
    memory->used = memory->total - memory->free;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetMigMode(nvmlDevice_t device,
                                        unsigned int* current,
                                        unsigned int* pending) {
  return with_device(device, [&](const fake::gpu_view& gpu) {
    *current = instances_of(gpu).empty() && !gpu.properties.mig_enabled ? 0 : 1;
    *pending = *current;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  return with_device(device, [&](const fake::gpu_view& /*gpu*/) {
    *count = 7;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device,
                                                       unsigned int index,
                                                       nvmlDevice_t* instance) {
  return with_device(device, [&](const fake::gpu_view& gpu) {
    const auto instances = instances_of(gpu);
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
    // "mig0" is GPU instance 1: the driver never assigns instance 0 to a part of a GPU.
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
  return with_device(device, [&](const fake::gpu_view& /*gpu*/) {
    *mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetVirtualizationMode(nvmlDevice_t device,
                                                   nvmlGpuVirtualizationMode_t* mode) {
  return with_device(device, [&](const fake::gpu_view& /*gpu*/) {
    *mode = NVML_GPU_VIRTUALIZATION_MODE_NONE;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return with_device(device, [&](const fake::gpu_view& /*gpu*/) {
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetEccMode(nvmlDevice_t device,
                                        nvmlEnableState_t* current,
                                        nvmlEnableState_t* pending) {
  return with_device(device, [&](const fake::gpu_view& /*gpu*/) {
    *current = NVML_FEATURE_DISABLED;
    *pending = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetMaxClockInfo(nvmlDevice_t device,
                                             nvmlClockType_t type,
                                             unsigned int* mhz) {
  return with_device(device, [&](const fake::gpu_view& /*gpu*/) {
    *mhz = type == NVML_CLOCK_MEM ? 2000 : 1000;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetNvLinkState(nvmlDevice_t device,
                                            unsigned int link,
                                            nvmlEnableState_t* active) {
  return with_device(device, [&](const fake::gpu_view& gpu) {
    if (link >= linked_to(gpu).size()) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
    *active = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetNvLinkVersion(nvmlDevice_t device,
                                              unsigned int link,
                                              unsigned int* version) {
  return with_device(device, [&](const fake::gpu_view& gpu) {
    *version = 4;
    return link >= linked_to(gpu).size() ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device,
                                                       unsigned int link,
                                                       nvmlPciInfo_t* pci) {
  return with_device(device, [&](const fake::gpu_view& gpu) {
    const auto others = linked_to(gpu);
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
  return with_device(device, [&](const fake::gpu_view& gpu) {
    *type = NVML_NVLINK_DEVICE_TYPE_GPU;
    return link >= linked_to(gpu).size() ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device,
                                                       nvmlDevice_t other,
                                                       nvmlGpuTopologyLevel_t* level) {
  return with_device(device, [&](const fake::gpu_view& gpu) {
    return with_device(other, [&](const fake::gpu_view& second) {
      *level =
          gpu.properties.numa == second.properties.numa ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
      return NVML_SUCCESS;
    });
  });
}

nvmlReturn_t nvml::nvmlDeviceGetAttributes_v2(nvmlDevice_t device,
                                              nvmlDeviceAttributes_t* attributes) {
  return with_device(device, [&](const fake::gpu_view& instance) {
    *attributes = {};
    if (instance.properties.mig_parent.empty()) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
    // "… MIG 2c.4g.40gb" or "… MIG 3g.20gb".
    const std::string& name = instance.properties.name;
    const std::size_t profile = name.rfind(' ') + 1;
    unsigned int first = 0;
    char kind = 0;
    unsigned int second = 0;
    std::sscanf(name.c_str() + profile, "%u%c.%u", &first, &kind, &second);
    attributes->computeInstanceSliceCount = first;
    attributes->gpuInstanceSliceCount = kind == 'c' ? second : first;
    attributes->memorySizeMB = instance.properties.size_bytes >> 20U;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetFieldValues(nvmlDevice_t device,
                                            int count,
                                            nvmlFieldValue_t* values) {
  return with_device(device, [&](const fake::gpu_view& gpu) {
    for (int i = 0; i < count; ++i) {
      const auto action = values[i].fieldId == field_gpu_recovery_action
                              ? fake::recovery_action(gpu.properties.uuid)
                              : std::nullopt;
      values[i].nvmlReturn = action ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
      values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
      values[i].value.uiVal = action.value_or(0);
    }
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device,
                                                    unsigned long long* types) {
  return with_device(device, [&](const fake::gpu_view& /*gpu*/) {
    *types = event_double_bit_ecc | event_xid_critical;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlDeviceRegisterEvents(nvmlDevice_t device,
                                            unsigned long long types,
                                            nvmlEventSet_t set) {
  return with_device(device, [&](const fake::gpu_view& gpu) {
    fake::events_of(set).watch(gpu.properties.uuid, types);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvml::nvmlEventSetCreate(nvmlEventSet_t* set) {
  *set = reinterpret_cast<nvmlEventSet_t>(new fake::event_set);
  return NVML_SUCCESS;
}

nvmlReturn_t nvml::nvmlEventSetFree(nvmlEventSet_t set) {
  delete &fake::events_of(set);
  return NVML_SUCCESS;
}

nvmlReturn_t nvml::nvmlEventSetWait_v2(nvmlEventSet_t set,
                                       nvmlEventData_t* data,
                                       unsigned int timeout_ms) {
  const auto next = fake::events_of(set).wait(timeout_ms);
  if (!next) {
    return NVML_ERROR_TIMEOUT;
  }
  const std::lock_guard lock(mutex);
  const fake::gpu_view* const gpu = with_uuid(next->uuid);
  *data = {};
  data->device = gpu == nullptr ? nullptr : handle_of(*gpu);
  data->eventType = next->type;
  data->eventData = next->xid;
  data->gpuInstanceId = next->gpu_instance;
  data->computeInstanceId = next->compute_instance;
  return NVML_SUCCESS;
}
