// SPDX-License-Identifier: Apache-2.0
// Compares gpushm's declarations of the driver's interface with the real headers, at compile time.
// Compiles on its own:
//   g++ -std=c++20 -fsyntax-only -I include -I src -I $CUDA/include tests/conformance/abi_check.cpp
#include <cstddef>
#include <type_traits>

// Included first: cuda.h turns some of these names into macros.
#include "gpu/driver/cuda_abi.hpp"
#include "gpu/driver/nvml_abi.hpp"

namespace declared {
using namespace gpushm::cuda;
// Defined before the macros of cuda.h.
#define GPUSHM_CHECK_SIGNATURE(symbol, parameters) \
  using signature_of_##symbol = std::remove_pointer_t<symbol##_pointer>;
GPUSHM_CUDA_FUNCTIONS(GPUSHM_CHECK_SIGNATURE)
#undef GPUSHM_CHECK_SIGNATURE
}  // namespace declared

#include <cuda.h>
#if __has_include(<nvml.h>)
#include <nvml.h>
#define GPUSHM_HAS_NVML 1
#else
#define GPUSHM_HAS_NVML 0
#endif

namespace {

// Whether values of both types are passed and returned in the same way. Enumerations are treated as
// their integers; pointers to structures are compared by the structures' own checks.
template <typename A, typename B>
constexpr bool same_value() {
  if constexpr (std::is_same_v<std::remove_cv_t<A>, std::remove_cv_t<B>>) {
    return true;
  } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using target_a = std::remove_pointer_t<A>;
    using target_b = std::remove_pointer_t<B>;
    if constexpr (std::is_const_v<target_a> != std::is_const_v<target_b>) {
      return false;
    } else if constexpr (std::is_void_v<target_a> || std::is_void_v<target_b>) {
      return std::is_void_v<target_a> && std::is_void_v<target_b>;
    } else {
      return same_value<target_a, target_b>();
    }
  } else if constexpr ((std::is_integral_v<A> || std::is_enum_v<A>)&&(std::is_integral_v<B> ||
                                                                      std::is_enum_v<B>)) {
    return sizeof(A) == sizeof(B);
  } else if constexpr (std::is_class_v<A> && (std::is_class_v<B> || std::is_union_v<B>)) {
    return sizeof(A) == sizeof(B) && alignof(A) == alignof(B);
  } else {
    return false;
  }
}

template <typename A, typename B>
struct same_function : std::false_type {};
template <typename ResultA, typename... A, typename ResultB, typename... B>
struct same_function<ResultA(A...), ResultB(B...)> {
  static constexpr bool compare() {
    if constexpr (sizeof...(A) != sizeof...(B)) {
      return false;
    } else {
      return same_value<ResultA, ResultB>() && (same_value<A, B>() && ...);
    }
  }
  static constexpr bool value = compare();
};

// The check itself must be able to fail.
static_assert(!same_function<int(int*), int(long*)>::value);
static_assert(!same_function<int(int), int(int, int)>::value);
static_assert(!same_function<int(const char*), int(char*)>::value);

#define GPUSHM_CHECK_FUNCTION(symbol, parameters)                                          \
  static_assert(same_function<declared::signature_of_##symbol, decltype(::symbol)>::value, \
                #symbol " is declared differently in cuda.h");
GPUSHM_CUDA_FUNCTIONS(GPUSHM_CHECK_FUNCTION)

#define GPUSHM_CHECK_ENUMERATOR(name, number) \
  static_assert(static_cast<long long>(::name) == (number), #name " has another value in cuda.h");
#define GPUSHM_CHECK_ENUM(type, list)                                                    \
  static_assert(sizeof(gpushm::cuda::type) == sizeof(::type), #type " differs in size"); \
  list(GPUSHM_CHECK_ENUMERATOR)
GPUSHM_CUDA_ENUMS(GPUSHM_CHECK_ENUM)

#define GPUSHM_CHECK_SIZE(type)                                     \
  static_assert(sizeof(gpushm::cuda::type) == sizeof(::type) &&     \
                    alignof(gpushm::cuda::type) == alignof(::type), \
                #type " differs in size")
#define GPUSHM_CHECK_FIELD(type, field)                                           \
  static_assert(offsetof(gpushm::cuda::type, field) == offsetof(::type, field) && \
                    sizeof(gpushm::cuda::type::field) == sizeof(::type::field),   \
                #type "::" #field " is elsewhere in cuda.h")
GPUSHM_CHECK_SIZE(CUdevice);
GPUSHM_CHECK_SIZE(CUdeviceptr);
GPUSHM_CHECK_SIZE(CUmemGenericAllocationHandle);
GPUSHM_CHECK_SIZE(CUuuid);
GPUSHM_CHECK_SIZE(CUipcMemHandle);
GPUSHM_CHECK_SIZE(CUipcEventHandle);
GPUSHM_CHECK_SIZE(CUmemLocation);
GPUSHM_CHECK_FIELD(CUmemLocation, type);
GPUSHM_CHECK_FIELD(CUmemLocation, id);
GPUSHM_CHECK_SIZE(CUmemAllocationProp);
GPUSHM_CHECK_FIELD(CUmemAllocationProp, type);
GPUSHM_CHECK_FIELD(CUmemAllocationProp, requestedHandleTypes);
GPUSHM_CHECK_FIELD(CUmemAllocationProp, location);
GPUSHM_CHECK_FIELD(CUmemAllocationProp, win32HandleMetaData);
GPUSHM_CHECK_FIELD(CUmemAllocationProp, allocFlags);
GPUSHM_CHECK_FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
GPUSHM_CHECK_SIZE(CUmemAccessDesc);
GPUSHM_CHECK_FIELD(CUmemAccessDesc, location);
GPUSHM_CHECK_FIELD(CUmemAccessDesc, flags);
GPUSHM_CHECK_SIZE(CUmemPoolProps);
GPUSHM_CHECK_FIELD(CUmemPoolProps, allocType);
GPUSHM_CHECK_FIELD(CUmemPoolProps, handleTypes);
GPUSHM_CHECK_FIELD(CUmemPoolProps, location);
GPUSHM_CHECK_FIELD(CUmemPoolProps, win32SecurityAttributes);
GPUSHM_CHECK_SIZE(CUmemPoolPtrExportData);
GPUSHM_CHECK_SIZE(CUstreamBatchMemOpParams);
#define GPUSHM_CHECK_OPERATION(field)                                            \
  static_assert(offsetof(gpushm::cuda::CUstreamBatchMemOpParams, field) ==       \
                        offsetof(::CUstreamBatchMemOpParams, waitValue.field) && \
                    offsetof(gpushm::cuda::CUstreamBatchMemOpParams, field) ==   \
                        offsetof(::CUstreamBatchMemOpParams, writeValue.field),  \
                #field " is elsewhere in cuda.h")
GPUSHM_CHECK_OPERATION(operation);
GPUSHM_CHECK_OPERATION(address);
GPUSHM_CHECK_OPERATION(value64);
GPUSHM_CHECK_OPERATION(flags);
GPUSHM_CHECK_OPERATION(alias);
GPUSHM_CHECK_SIZE(CUgraphEdgeData);
GPUSHM_CHECK_SIZE(CUDA_BATCH_MEM_OP_NODE_PARAMS);
GPUSHM_CHECK_FIELD(CUDA_BATCH_MEM_OP_NODE_PARAMS, ctx);
GPUSHM_CHECK_FIELD(CUDA_BATCH_MEM_OP_NODE_PARAMS, count);
GPUSHM_CHECK_FIELD(CUDA_BATCH_MEM_OP_NODE_PARAMS, paramArray);
GPUSHM_CHECK_FIELD(CUDA_BATCH_MEM_OP_NODE_PARAMS, flags);
static_assert(gpushm::cuda::ipc_handle_bytes == CU_IPC_HANDLE_SIZE);
static_assert(gpushm::cuda::memhostregister_portable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(gpushm::cuda::memhostregister_devicemap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(gpushm::cuda::memhostregister_read_only == CU_MEMHOSTREGISTER_READ_ONLY);
static_assert(gpushm::cuda::device_invalid == CU_DEVICE_INVALID);

#if GPUSHM_HAS_NVML
#define GPUSHM_CHECK_NVML(result, symbol, parameters)                                \
  static_assert(same_function<std::remove_pointer_t<gpushm::nvml::symbol##_pointer>, \
                              decltype(::symbol)>::value,                            \
                #symbol " is declared differently in nvml.h");
GPUSHM_NVML_FUNCTIONS(GPUSHM_CHECK_NVML)
GPUSHM_NVML_RESULTS(GPUSHM_CHECK_ENUMERATOR)
#define GPUSHM_CHECK_NVML_ENUM(type, list)                                               \
  static_assert(sizeof(gpushm::nvml::type) == sizeof(::type), #type " differs in size"); \
  list(GPUSHM_CHECK_ENUMERATOR)
GPUSHM_NVML_ENUMS(GPUSHM_CHECK_NVML_ENUM)
static_assert(gpushm::nvml::nvlink_max_links == NVML_NVLINK_MAX_LINKS);
static_assert(sizeof(gpushm::nvml::nvmlMemory_t) == sizeof(::nvmlMemory_t));
static_assert(offsetof(gpushm::nvml::nvmlMemory_t, used) == offsetof(::nvmlMemory_t, used));
static_assert(offsetof(gpushm::nvml::nvmlMemory_t, free) == offsetof(::nvmlMemory_t, free));
static_assert(sizeof(gpushm::nvml::nvmlPciInfo_t) == sizeof(::nvmlPciInfo_t));
static_assert(offsetof(gpushm::nvml::nvmlPciInfo_t, busId) == offsetof(::nvmlPciInfo_t, busId));
#define GPUSHM_CHECK_NVML_SIZE(type) \
  static_assert(sizeof(gpushm::nvml::type) == sizeof(::type), #type " differs in size")
#define GPUSHM_CHECK_NVML_FIELD(type, field)                                    \
  static_assert(offsetof(gpushm::nvml::type, field) == offsetof(::type, field), \
                #type "::" #field " is elsewhere in nvml.h")
GPUSHM_CHECK_NVML_SIZE(nvmlEventData_t);
GPUSHM_CHECK_NVML_FIELD(nvmlEventData_t, eventType);
GPUSHM_CHECK_NVML_FIELD(nvmlEventData_t, eventData);
GPUSHM_CHECK_NVML_FIELD(nvmlEventData_t, gpuInstanceId);
GPUSHM_CHECK_NVML_SIZE(nvmlDeviceAttributes_t);
GPUSHM_CHECK_NVML_FIELD(nvmlDeviceAttributes_t, gpuInstanceSliceCount);
GPUSHM_CHECK_NVML_FIELD(nvmlDeviceAttributes_t, computeInstanceSliceCount);
GPUSHM_CHECK_NVML_FIELD(nvmlDeviceAttributes_t, memorySizeMB);
GPUSHM_CHECK_NVML_SIZE(nvmlValue_t);
GPUSHM_CHECK_NVML_SIZE(nvmlFieldValue_t);
GPUSHM_CHECK_NVML_FIELD(nvmlFieldValue_t, valueType);
GPUSHM_CHECK_NVML_FIELD(nvmlFieldValue_t, nvmlReturn);
GPUSHM_CHECK_NVML_FIELD(nvmlFieldValue_t, value);
static_assert(gpushm::nvml::event_double_bit_ecc == nvmlEventTypeDoubleBitEccError);
static_assert(gpushm::nvml::event_xid_critical == nvmlEventTypeXidCriticalError);
#ifdef NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
static_assert(gpushm::nvml::field_gpu_recovery_action == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
#endif
#endif

}  // namespace
