// SPDX-License-Identifier: Apache-2.0
#pragma once

// Our own declarations of what is used of NVML (libnvidia-ml.so.1). Names are NVML's.
// `tests/conformance/abi_check.cpp` compares each with a real nvml.h where one is found.

struct nvmlDevice_st;

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
  X(NVML_ERROR_LIBRARY_NOT_FOUND, 12) \
  X(NVML_ERROR_FUNCTION_NOT_FOUND, 13) \
  X(NVML_ERROR_GPU_IS_LOST, 15) \
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
  X(nvmlReturn_t, nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t* memory))
// clang-format on

#define GPUSHM_NVML_POINTER(result, symbol, parameters) \
  using symbol##_pointer = result(*) parameters;
GPUSHM_NVML_FUNCTIONS(GPUSHM_NVML_POINTER)
#undef GPUSHM_NVML_POINTER
// NOLINTEND(bugprone-macro-parentheses)

/// One pointer for each function, called like NVML's symbol.
struct functions {
#define GPUSHM_NVML_MEMBER(result, symbol, parameters) symbol##_pointer symbol = nullptr;
  GPUSHM_NVML_FUNCTIONS(GPUSHM_NVML_MEMBER)
#undef GPUSHM_NVML_MEMBER
};

}  // namespace gpushm::nvml
