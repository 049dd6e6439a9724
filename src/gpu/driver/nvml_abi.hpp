// SPDX-License-Identifier: Apache-2.0
#pragma once

// Declarations of the parts of NVML (libnvidia-ml.so.1) in use. Names are NVML's.
// `tests/conformance/abi_check.cpp` compares each with a real nvml.h if one is found.

struct nvmlDevice_st;
struct nvmlEventSet_st;

namespace gpushm::nvml {

// clang-format off
#define GPUSHM_NVML_RESULTS(X) \
  X(NVML_SUCCESS, 0) \
  X(NVML_ERROR_UNINITIALIZED, 1) \
  X(NVML_ERROR_INVALID_ARGUMENT, 2) \
  X(NVML_ERROR_NOT_SUPPORTED, 3) \
  X(NVML_ERROR_NO_PERMISSION, 4) \
  X(NVML_ERROR_NOT_FOUND, 6) \
  X(NVML_ERROR_INSUFFICIENT_SIZE, 7) \
  X(NVML_ERROR_DRIVER_NOT_LOADED, 9) \
  X(NVML_ERROR_TIMEOUT, 10) \
  X(NVML_ERROR_LIBRARY_NOT_FOUND, 12) \
  X(NVML_ERROR_FUNCTION_NOT_FOUND, 13) \
  X(NVML_ERROR_GPU_IS_LOST, 15) \
  X(NVML_ERROR_RESET_REQUIRED, 16) \
  X(NVML_ERROR_LIB_RM_VERSION_MISMATCH, 18) \
  X(NVML_ERROR_UNKNOWN, 999)
// clang-format on

// NOLINTBEGIN(bugprone-macro-parentheses): lists of declarations, which parentheses would break
enum nvmlReturn_t : unsigned int {
#define GPUSHM_NVML_ENUMERATOR(name, value) name = value,
  GPUSHM_NVML_RESULTS(GPUSHM_NVML_ENUMERATOR)
#undef GPUSHM_NVML_ENUMERATOR
};

using nvmlDevice_t = ::nvmlDevice_st*;
using nvmlEventSet_t = ::nvmlEventSet_st*;

// clang-format off
#define GPUSHM_NVML_nvmlEnableState_t(X) \
  X(NVML_FEATURE_DISABLED, 0) \
  X(NVML_FEATURE_ENABLED, 1)
#define GPUSHM_NVML_nvmlComputeMode_t(X) \
  X(NVML_COMPUTEMODE_DEFAULT, 0) \
  X(NVML_COMPUTEMODE_EXCLUSIVE_THREAD, 1) \
  X(NVML_COMPUTEMODE_PROHIBITED, 2) \
  X(NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, 3)
#define GPUSHM_NVML_nvmlGpuVirtualizationMode_t(X) \
  X(NVML_GPU_VIRTUALIZATION_MODE_NONE, 0) \
  X(NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH, 1) \
  X(NVML_GPU_VIRTUALIZATION_MODE_VGPU, 2) \
  X(NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU, 3) \
  X(NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA, 4)
#define GPUSHM_NVML_nvmlGpuTopologyLevel_t(X) \
  X(NVML_TOPOLOGY_INTERNAL, 0) \
  X(NVML_TOPOLOGY_SINGLE, 10) \
  X(NVML_TOPOLOGY_MULTIPLE, 20) \
  X(NVML_TOPOLOGY_HOSTBRIDGE, 30) \
  X(NVML_TOPOLOGY_NODE, 40) \
  X(NVML_TOPOLOGY_SYSTEM, 50)
#define GPUSHM_NVML_nvmlIntNvLinkDeviceType_t(X) \
  X(NVML_NVLINK_DEVICE_TYPE_GPU, 0) \
  X(NVML_NVLINK_DEVICE_TYPE_IBMNPU, 1) \
  X(NVML_NVLINK_DEVICE_TYPE_SWITCH, 2) \
  X(NVML_NVLINK_DEVICE_TYPE_UNKNOWN, 255)
#define GPUSHM_NVML_nvmlClockType_t(X) \
  X(NVML_CLOCK_GRAPHICS, 0) \
  X(NVML_CLOCK_SM, 1) \
  X(NVML_CLOCK_MEM, 2)
#define GPUSHM_NVML_nvmlValueType_t(X) \
  X(NVML_VALUE_TYPE_DOUBLE, 0) \
  X(NVML_VALUE_TYPE_UNSIGNED_INT, 1) \
  X(NVML_VALUE_TYPE_UNSIGNED_LONG, 2) \
  X(NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 3)
// X(enumeration, list of its enumerators)
#define GPUSHM_NVML_ENUMS(X) \
  X(nvmlEnableState_t, GPUSHM_NVML_nvmlEnableState_t) \
  X(nvmlComputeMode_t, GPUSHM_NVML_nvmlComputeMode_t) \
  X(nvmlGpuVirtualizationMode_t, GPUSHM_NVML_nvmlGpuVirtualizationMode_t) \
  X(nvmlGpuTopologyLevel_t, GPUSHM_NVML_nvmlGpuTopologyLevel_t) \
  X(nvmlIntNvLinkDeviceType_t, GPUSHM_NVML_nvmlIntNvLinkDeviceType_t) \
  X(nvmlClockType_t, GPUSHM_NVML_nvmlClockType_t) \
  X(nvmlValueType_t, GPUSHM_NVML_nvmlValueType_t)
// clang-format on
#define GPUSHM_NVML_ENUMERATOR(name, value) name = value,
#define GPUSHM_NVML_ENUM(type, list) enum type : unsigned int { list(GPUSHM_NVML_ENUMERATOR) };
GPUSHM_NVML_ENUMS(GPUSHM_NVML_ENUM)
#undef GPUSHM_NVML_ENUM
#undef GPUSHM_NVML_ENUMERATOR
/// Maximum number of NVLinks of a GPU (NVML_NVLINK_MAX_LINKS).
inline constexpr unsigned int nvlink_max_links = 18;

/// The recommended recovery action for a GPU (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, since driver
/// 560). 0: none.
inline constexpr unsigned int field_gpu_recovery_action = 230;
/// Event types (nvmlEventType…), combined with |.
inline constexpr unsigned long long event_double_bit_ecc = 0x2;
inline constexpr unsigned long long event_xid_critical = 0x8;

struct nvmlMemory_t {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
// NOLINTBEGIN(modernize-avoid-c-arrays): the layout is the library's
struct nvmlPciInfo_t {
  char busIdLegacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pciDeviceId;
  unsigned int pciSubSystemId;
  char busId[32];
};
// NOLINTEND(modernize-avoid-c-arrays)
struct nvmlEventData_t {
  nvmlDevice_t device;
  unsigned long long eventType;
  unsigned long long eventData;  ///< the Xid
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
};
/// The attributes of a MIG instance.
struct nvmlDeviceAttributes_t {
  unsigned int multiprocessorCount;
  unsigned int sharedCopyEngineCount;
  unsigned int sharedDecoderCount;
  unsigned int sharedEncoderCount;
  unsigned int sharedJpegCount;
  unsigned int sharedOfaCount;
  unsigned int gpuInstanceSliceCount;
  unsigned int computeInstanceSliceCount;
  unsigned long long memorySizeMB;
};
union nvmlValue_t {
  double dVal;
  unsigned int uiVal;
  unsigned long ulVal;
  unsigned long long ullVal;
};
struct nvmlFieldValue_t {
  unsigned int fieldId;
  unsigned int scopeId;
  long long timestamp;
  long long latencyUsec;
  nvmlValueType_t valueType;
  nvmlReturn_t nvmlReturn;
  nvmlValue_t value;
};

// clang-format off
// Every function used, as X(return type, symbol, parameters).
#define GPUSHM_NVML_FUNCTIONS(X) \
  X(nvmlReturn_t, nvmlInit_v2, (void)) \
  X(nvmlReturn_t, nvmlShutdown, (void)) \
  X(const char*, nvmlErrorString, (nvmlReturn_t result)) \
  X(nvmlReturn_t, nvmlSystemGetDriverVersion, (char* text, unsigned int size)) \
  X(nvmlReturn_t, nvmlSystemGetNVMLVersion, (char* text, unsigned int size)) \
  X(nvmlReturn_t, nvmlDeviceGetCount_v2, (unsigned int* count)) \
  X(nvmlReturn_t, nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t* device)) \
  X(nvmlReturn_t, nvmlDeviceGetUUID, (nvmlDevice_t device, char* text, unsigned int size)) \
  X(nvmlReturn_t, nvmlDeviceGetName, (nvmlDevice_t device, char* text, unsigned int size)) \
  X(nvmlReturn_t, nvmlDeviceGetMinorNumber, (nvmlDevice_t device, unsigned int* minor)) \
  X(nvmlReturn_t, nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t* pci)) \
  X(nvmlReturn_t, nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t* memory)) \
  X(nvmlReturn_t, nvmlDeviceGetMigMode, \
     (nvmlDevice_t device, unsigned int* current, unsigned int* pending)) \
  X(nvmlReturn_t, nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t device, unsigned int* count)) \
  X(nvmlReturn_t, nvmlDeviceGetMigDeviceHandleByIndex, \
     (nvmlDevice_t device, unsigned int index, nvmlDevice_t* instance)) \
  X(nvmlReturn_t, nvmlDeviceGetGpuInstanceId, (nvmlDevice_t device, unsigned int* id)) \
  X(nvmlReturn_t, nvmlDeviceGetComputeInstanceId, (nvmlDevice_t device, unsigned int* id)) \
  X(nvmlReturn_t, nvmlDeviceGetComputeMode, (nvmlDevice_t device, nvmlComputeMode_t* mode)) \
  X(nvmlReturn_t, nvmlDeviceGetVirtualizationMode, \
     (nvmlDevice_t device, nvmlGpuVirtualizationMode_t* mode)) \
  X(nvmlReturn_t, nvmlDeviceGetPersistenceMode, (nvmlDevice_t device, nvmlEnableState_t* mode)) \
  X(nvmlReturn_t, nvmlDeviceGetEccMode, \
     (nvmlDevice_t device, nvmlEnableState_t* current, nvmlEnableState_t* pending)) \
  X(nvmlReturn_t, nvmlDeviceGetMaxClockInfo, \
     (nvmlDevice_t device, nvmlClockType_t type, unsigned int* mhz)) \
  X(nvmlReturn_t, nvmlDeviceGetNvLinkState, \
     (nvmlDevice_t device, unsigned int link, nvmlEnableState_t* active)) \
  X(nvmlReturn_t, nvmlDeviceGetNvLinkVersion, \
     (nvmlDevice_t device, unsigned int link, unsigned int* version)) \
  X(nvmlReturn_t, nvmlDeviceGetNvLinkRemotePciInfo_v2, \
     (nvmlDevice_t device, unsigned int link, nvmlPciInfo_t* pci)) \
  X(nvmlReturn_t, nvmlDeviceGetNvLinkRemoteDeviceType, \
     (nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t* type)) \
  X(nvmlReturn_t, nvmlDeviceGetTopologyCommonAncestor, \
     (nvmlDevice_t device, nvmlDevice_t other, nvmlGpuTopologyLevel_t* level)) \
  X(nvmlReturn_t, nvmlDeviceGetHandleByUUID, (const char* uuid, nvmlDevice_t* device)) \
  X(nvmlReturn_t, nvmlDeviceGetAttributes_v2, \
     (nvmlDevice_t device, nvmlDeviceAttributes_t* attributes)) \
  X(nvmlReturn_t, nvmlDeviceGetFieldValues, \
     (nvmlDevice_t device, int count, nvmlFieldValue_t* values)) \
  X(nvmlReturn_t, nvmlDeviceGetSupportedEventTypes, \
     (nvmlDevice_t device, unsigned long long* types)) \
  X(nvmlReturn_t, nvmlDeviceRegisterEvents, \
     (nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)) \
  X(nvmlReturn_t, nvmlEventSetCreate, (nvmlEventSet_t* set)) \
  X(nvmlReturn_t, nvmlEventSetWait_v2, \
     (nvmlEventSet_t set, nvmlEventData_t* data, unsigned int timeout_ms)) \
  X(nvmlReturn_t, nvmlEventSetFree, (nvmlEventSet_t set))
// clang-format on

#define GPUSHM_NVML_POINTER(result, symbol, parameters) \
  using symbol##_pointer = result(*) parameters;
GPUSHM_NVML_FUNCTIONS(GPUSHM_NVML_POINTER)
#undef GPUSHM_NVML_POINTER
// NOLINTEND(bugprone-macro-parentheses)

/// One pointer per function, named like NVML's symbol.
struct functions {
#define GPUSHM_NVML_MEMBER(result, symbol, parameters) symbol##_pointer symbol = nullptr;
  GPUSHM_NVML_FUNCTIONS(GPUSHM_NVML_MEMBER)
#undef GPUSHM_NVML_MEMBER
};

}  // namespace gpushm::nvml
