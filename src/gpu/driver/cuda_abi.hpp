// SPDX-License-Identifier: Apache-2.0
#pragma once

// Declarations of the parts of the CUDA driver API in use: building requires no toolkit. Names are
// the driver's. `tests/conformance/abi_check.cpp` compares each with a real cuda.h if one is found.

#include <cstddef>
#include <cstdint>

// Global, because users pass these pointers (`cudaStream_t` is `CUstream_st*`).
struct CUctx_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;
struct CUmemPoolHandle_st;
struct CUstream_st;

namespace gpushm::cuda {

// clang-format off
// Every enumerator used, as X(name, value): declarations, names in messages and the check against
// cuda.h are generated from the same lists.
#define GPUSHM_CUDA_RESULTS(X) \
  X(CUDA_SUCCESS, 0) \
  X(CUDA_ERROR_INVALID_VALUE, 1) \
  X(CUDA_ERROR_OUT_OF_MEMORY, 2) \
  X(CUDA_ERROR_NOT_INITIALIZED, 3) \
  X(CUDA_ERROR_DEINITIALIZED, 4) \
  X(CUDA_ERROR_STUB_LIBRARY, 34) \
  X(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, 36) \
  X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46) \
  X(CUDA_ERROR_NO_DEVICE, 100) \
  X(CUDA_ERROR_INVALID_DEVICE, 101) \
  X(CUDA_ERROR_DEVICE_NOT_LICENSED, 102) \
  X(CUDA_ERROR_INVALID_IMAGE, 200) \
  X(CUDA_ERROR_INVALID_CONTEXT, 201) \
  X(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, 202) \
  X(CUDA_ERROR_MAP_FAILED, 205) \
  X(CUDA_ERROR_UNMAP_FAILED, 206) \
  X(CUDA_ERROR_ARRAY_IS_MAPPED, 207) \
  X(CUDA_ERROR_ALREADY_MAPPED, 208) \
  X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209) \
  X(CUDA_ERROR_ALREADY_ACQUIRED, 210) \
  X(CUDA_ERROR_NOT_MAPPED, 211) \
  X(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, 212) \
  X(CUDA_ERROR_NOT_MAPPED_AS_POINTER, 213) \
  X(CUDA_ERROR_ECC_UNCORRECTABLE, 214) \
  X(CUDA_ERROR_UNSUPPORTED_LIMIT, 215) \
  X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216) \
  X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217) \
  X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220) \
  X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, 224) \
  X(CUDA_ERROR_INVALID_SOURCE, 300) \
  X(CUDA_ERROR_FILE_NOT_FOUND, 301) \
  X(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, 302) \
  X(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, 303) \
  X(CUDA_ERROR_OPERATING_SYSTEM, 304) \
  X(CUDA_ERROR_INVALID_HANDLE, 400) \
  X(CUDA_ERROR_ILLEGAL_STATE, 401) \
  X(CUDA_ERROR_NOT_FOUND, 500) \
  X(CUDA_ERROR_NOT_READY, 600) \
  X(CUDA_ERROR_ILLEGAL_ADDRESS, 700) \
  X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701) \
  X(CUDA_ERROR_LAUNCH_TIMEOUT, 702) \
  X(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, 703) \
  X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704) \
  X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705) \
  X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708) \
  X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709) \
  X(CUDA_ERROR_ASSERT, 710) \
  X(CUDA_ERROR_TOO_MANY_PEERS, 711) \
  X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712) \
  X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713) \
  X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714) \
  X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715) \
  X(CUDA_ERROR_MISALIGNED_ADDRESS, 716) \
  X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717) \
  X(CUDA_ERROR_INVALID_PC, 718) \
  X(CUDA_ERROR_LAUNCH_FAILED, 719) \
  X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720) \
  X(CUDA_ERROR_NOT_PERMITTED, 800) \
  X(CUDA_ERROR_NOT_SUPPORTED, 801) \
  X(CUDA_ERROR_SYSTEM_NOT_READY, 802) \
  X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803) \
  X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804) \
  X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900) \
  X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901) \
  X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906) \
  X(CUDA_ERROR_TIMEOUT, 909) \
  X(CUDA_ERROR_EXTERNAL_DEVICE, 911) \
  X(CUDA_ERROR_UNKNOWN, 999)
#define GPUSHM_CUDA_DEVICE_ATTRIBUTES(X) \
  X(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 13) \
  X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16) \
  X(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 20) \
  X(CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 32) \
  X(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 33) \
  X(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 34) \
  X(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 36) \
  X(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 37) \
  X(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 38) \
  X(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 40) \
  X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41) \
  X(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 50) \
  X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75) \
  X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76) \
  X(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91) \
  X(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 99) \
  X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102) \
  X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103) \
  X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110) \
  X(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 115) \
  X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 116) \
  X(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 119) \
  X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 128)
#define GPUSHM_CUDA_POINTER_ATTRIBUTES(X) \
  X(CU_POINTER_ATTRIBUTE_CONTEXT, 1) \
  X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2) \
  X(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 3) \
  X(CU_POINTER_ATTRIBUTE_HOST_POINTER, 4) \
  X(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 6) \
  X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7) \
  X(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8) \
  X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9) \
  X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10) \
  X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11) \
  X(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12) \
  X(CU_POINTER_ATTRIBUTE_MAPPED, 13) \
  X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 14) \
  X(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, 15) \
  X(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, 16) \
  X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 17) \
  X(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 18) \
  X(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, 19)
#define GPUSHM_CUDA_CUmemLocationType(X) \
  X(CU_MEM_LOCATION_TYPE_INVALID, 0) \
  X(CU_MEM_LOCATION_TYPE_DEVICE, 1)
#define GPUSHM_CUDA_CUmemAllocationType(X) \
  X(CU_MEM_ALLOCATION_TYPE_INVALID, 0) \
  X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)
#define GPUSHM_CUDA_CUmemAllocationHandleType(X) \
  X(CU_MEM_HANDLE_TYPE_NONE, 0) \
  X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1) \
  X(CU_MEM_HANDLE_TYPE_FABRIC, 8)
#define GPUSHM_CUDA_CUmemAccess_flags(X) \
  X(CU_MEM_ACCESS_FLAGS_PROT_NONE, 0) \
  X(CU_MEM_ACCESS_FLAGS_PROT_READ, 1) \
  X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)
#define GPUSHM_CUDA_CUmemAllocationGranularity_flags(X) \
  X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0) \
  X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1)
#define GPUSHM_CUDA_CUmemorytype(X) \
  X(CU_MEMORYTYPE_HOST, 1) \
  X(CU_MEMORYTYPE_DEVICE, 2)
#define GPUSHM_CUDA_CUstream_flags(X) \
  X(CU_STREAM_DEFAULT, 0) \
  X(CU_STREAM_NON_BLOCKING, 1)
#define GPUSHM_CUDA_CUstreamWriteValue_flags(X) \
  X(CU_STREAM_WRITE_VALUE_DEFAULT, 0)
#define GPUSHM_CUDA_CUstreamWaitValue_flags(X) \
  X(CU_STREAM_WAIT_VALUE_GEQ, 0) \
  X(CU_STREAM_WAIT_VALUE_EQ, 1) \
  X(CU_STREAM_WAIT_VALUE_AND, 2) \
  X(CU_STREAM_WAIT_VALUE_NOR, 3)
#define GPUSHM_CUDA_CUstreamBatchMemOpType(X) \
  X(CU_STREAM_MEM_OP_WAIT_VALUE_64, 4) \
  X(CU_STREAM_MEM_OP_WRITE_VALUE_64, 5)
#define GPUSHM_CUDA_CUstreamCaptureStatus(X) \
  X(CU_STREAM_CAPTURE_STATUS_NONE, 0) \
  X(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1) \
  X(CU_STREAM_CAPTURE_STATUS_INVALIDATED, 2)
#define GPUSHM_CUDA_CUstreamCaptureMode(X) \
  X(CU_STREAM_CAPTURE_MODE_GLOBAL, 0) \
  X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1) \
  X(CU_STREAM_CAPTURE_MODE_RELAXED, 2)
#define GPUSHM_CUDA_CUevent_flags(X) \
  X(CU_EVENT_DEFAULT, 0) \
  X(CU_EVENT_BLOCKING_SYNC, 1) \
  X(CU_EVENT_DISABLE_TIMING, 2) \
  X(CU_EVENT_INTERPROCESS, 4)
#define GPUSHM_CUDA_CUipcMem_flags(X) \
  X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)
#define GPUSHM_CUDA_CUdevice_P2PAttribute(X) \
  X(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 1) \
  X(CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 2) \
  X(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 3)
// X(enumeration, list of its enumerators)
#define GPUSHM_CUDA_ENUMS(X) \
  X(CUresult, GPUSHM_CUDA_RESULTS) \
  X(CUdevice_attribute, GPUSHM_CUDA_DEVICE_ATTRIBUTES) \
  X(CUpointer_attribute, GPUSHM_CUDA_POINTER_ATTRIBUTES) \
  X(CUmemLocationType, GPUSHM_CUDA_CUmemLocationType) \
  X(CUmemAllocationType, GPUSHM_CUDA_CUmemAllocationType) \
  X(CUmemAllocationHandleType, GPUSHM_CUDA_CUmemAllocationHandleType) \
  X(CUmemAccess_flags, GPUSHM_CUDA_CUmemAccess_flags) \
  X(CUmemAllocationGranularity_flags, GPUSHM_CUDA_CUmemAllocationGranularity_flags) \
  X(CUmemorytype, GPUSHM_CUDA_CUmemorytype) \
  X(CUstream_flags, GPUSHM_CUDA_CUstream_flags) \
  X(CUstreamWriteValue_flags, GPUSHM_CUDA_CUstreamWriteValue_flags) \
  X(CUstreamWaitValue_flags, GPUSHM_CUDA_CUstreamWaitValue_flags) \
  X(CUstreamBatchMemOpType, GPUSHM_CUDA_CUstreamBatchMemOpType) \
  X(CUstreamCaptureStatus, GPUSHM_CUDA_CUstreamCaptureStatus) \
  X(CUstreamCaptureMode, GPUSHM_CUDA_CUstreamCaptureMode) \
  X(CUevent_flags, GPUSHM_CUDA_CUevent_flags) \
  X(CUipcMem_flags, GPUSHM_CUDA_CUipcMem_flags) \
  X(CUdevice_P2PAttribute, GPUSHM_CUDA_CUdevice_P2PAttribute)
// clang-format on

// NOLINTBEGIN(bugprone-macro-parentheses): lists of declarations, which parentheses would break
#define GPUSHM_CUDA_ENUMERATOR(name, value) name = value,
#define GPUSHM_CUDA_ENUM(type, list) enum type : unsigned int { list(GPUSHM_CUDA_ENUMERATOR) };
GPUSHM_CUDA_ENUMS(GPUSHM_CUDA_ENUM)
#undef GPUSHM_CUDA_ENUM
#undef GPUSHM_CUDA_ENUMERATOR
// NOLINTEND(bugprone-macro-parentheses)

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using CUcontext = ::CUctx_st*;
using CUevent = ::CUevent_st*;
using CUgraph = ::CUgraph_st*;
using CUgraphExec = ::CUgraphExec_st*;
using CUgraphNode = ::CUgraphNode_st*;
using CUmemoryPool = ::CUmemPoolHandle_st*;
using CUstream = ::CUstream_st*;

/// Size of a legacy handle (CU_IPC_HANDLE_SIZE), and the offset of its exporter's PID (LE int32).
inline constexpr std::size_t ipc_handle_bytes = 64;
inline constexpr std::size_t ipc_handle_pid_offset = 8;
/// Flags of cuMemHostRegister (macros in cuda.h).
inline constexpr unsigned int memhostregister_portable = 0x01;
inline constexpr unsigned int memhostregister_devicemap = 0x02;
inline constexpr unsigned int memhostregister_read_only = 0x08;
/// The driver's value for a location that this process does not enumerate (CU_DEVICE_INVALID).
inline constexpr CUdevice device_invalid = -2;

// NOLINTBEGIN(modernize-avoid-c-arrays): the layouts are the driver's
struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[ipc_handle_bytes];
};
struct CUipcEventHandle {
  char reserved[ipc_handle_bytes];
};
struct CUmemLocation {
  CUmemLocationType type;
  int id;
};
struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};
struct CUmemPoolProps {
  CUmemAllocationType allocType;
  CUmemAllocationHandleType handleTypes;
  CUmemLocation location;
  void* win32SecurityAttributes;
  std::size_t maxSize;
  unsigned short usage;
  unsigned char reserved[54];
};
struct CUmemPoolPtrExportData {
  unsigned char reserved[64];
};
/// A wait or a write of 64 bits: the members that both have in the driver's union.
struct CUstreamBatchMemOpParams {
  CUstreamBatchMemOpType operation;
  CUdeviceptr address;
  std::uint64_t value64;
  unsigned int flags;
  CUdeviceptr alias;
  std::uint64_t rest;
};
/// The kind of a dependency.
struct CUgraphEdgeData {
  unsigned char from_port;
  unsigned char to_port;
  unsigned char type;
  unsigned char reserved[5];
};
struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
  CUcontext ctx;
  unsigned int count;
  CUstreamBatchMemOpParams* paramArray;
  unsigned int flags;
};
// NOLINTEND(modernize-avoid-c-arrays)

// clang-format off
// Every function used, as X(symbol, parameters): the loader's table, the fake driver and the check
// against cuda.h are generated from this list. All return CUresult.
#define GPUSHM_CUDA_FUNCTIONS(X) \
  X(cuInit, (unsigned int flags)) \
  X(cuDriverGetVersion, (int* version)) \
  X(cuGetErrorName, (CUresult error, const char** text)) \
  X(cuGetErrorString, (CUresult error, const char** text)) \
  X(cuDeviceGetCount, (int* count)) \
  X(cuDeviceGet, (CUdevice* device, int ordinal)) \
  X(cuDeviceGetName, (char* name, int size, CUdevice device)) \
  X(cuDeviceGetUuid_v2, (CUuuid* uuid, CUdevice device)) \
  X(cuDeviceGetPCIBusId, (char* text, int size, CUdevice device)) \
  X(cuDeviceGetAttribute, (int* value, CUdevice_attribute attribute, CUdevice device)) \
  X(cuDeviceTotalMem_v2, (std::size_t* bytes, CUdevice device)) \
  X(cuDeviceCanAccessPeer, (int* can, CUdevice device, CUdevice peer)) \
  X(cuDeviceGetP2PAttribute, \
     (int* value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice target)) \
  X(cuDevicePrimaryCtxRetain, (CUcontext* context, CUdevice device)) \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice device)) \
  X(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int* flags, int* active)) \
  X(cuDevicePrimaryCtxReset_v2, (CUdevice device)) \
  X(cuCtxGetCurrent, (CUcontext* context)) \
  X(cuCtxSetCurrent, (CUcontext context)) \
  X(cuCtxPushCurrent_v2, (CUcontext context)) \
  X(cuCtxPopCurrent_v2, (CUcontext* context)) \
  X(cuCtxGetDevice, (CUdevice* device)) \
  X(cuCtxGetId, (CUcontext context, unsigned long long* id)) \
  X(cuCtxSynchronize, (void)) \
  X(cuMemGetInfo_v2, (std::size_t* free_bytes, std::size_t* total_bytes)) \
  X(cuMemGetAllocationGranularity, \
     (std::size_t* granularity, const CUmemAllocationProp* prop, \
      CUmemAllocationGranularity_flags option)) \
  X(cuMemCreate, \
     (CUmemGenericAllocationHandle* handle, std::size_t size, const CUmemAllocationProp* prop, \
      unsigned long long flags)) \
  X(cuMemRelease, (CUmemGenericAllocationHandle handle)) \
  X(cuMemAddressReserve, \
     (CUdeviceptr* pointer, std::size_t size, std::size_t alignment, CUdeviceptr address, \
      unsigned long long flags)) \
  X(cuMemAddressFree, (CUdeviceptr pointer, std::size_t size)) \
  X(cuMemMap, \
     (CUdeviceptr pointer, std::size_t size, std::size_t offset, \
      CUmemGenericAllocationHandle handle, unsigned long long flags)) \
  X(cuMemUnmap, (CUdeviceptr pointer, std::size_t size)) \
  X(cuMemSetAccess, \
     (CUdeviceptr pointer, std::size_t size, const CUmemAccessDesc* descriptions, \
      std::size_t count)) \
  X(cuMemExportToShareableHandle, \
     (void* shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, \
      unsigned long long flags)) \
  X(cuMemImportFromShareableHandle, \
     (CUmemGenericAllocationHandle* handle, void* shareable, CUmemAllocationHandleType type)) \
  X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle* handle, void* address)) \
  X(cuMemGetAllocationPropertiesFromHandle, \
     (CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle)) \
  X(cuMemAlloc_v2, (CUdeviceptr* pointer, std::size_t size)) \
  X(cuMemFree_v2, (CUdeviceptr pointer)) \
  X(cuMemcpyHtoD_v2, (CUdeviceptr target, const void* source, std::size_t size)) \
  X(cuMemcpyDtoH_v2, (void* target, CUdeviceptr source, std::size_t size)) \
  X(cuMemcpyDtoD_v2, (CUdeviceptr target, CUdeviceptr source, std::size_t size)) \
  X(cuMemcpyHtoDAsync_v2, \
     (CUdeviceptr target, const void* source, std::size_t size, CUstream stream)) \
  X(cuMemcpyDtoHAsync_v2, (void* target, CUdeviceptr source, std::size_t size, CUstream stream)) \
  X(cuMemcpyDtoDAsync_v2, \
     (CUdeviceptr target, CUdeviceptr source, std::size_t size, CUstream stream)) \
  X(cuMemsetD8_v2, (CUdeviceptr target, unsigned char value, std::size_t count)) \
  X(cuMemsetD32_v2, (CUdeviceptr target, unsigned int value, std::size_t count)) \
  X(cuMemsetD32Async, \
     (CUdeviceptr target, unsigned int value, std::size_t count, CUstream stream)) \
  X(cuMemsetD8Async, \
     (CUdeviceptr target, unsigned char value, std::size_t count, CUstream stream)) \
  X(cuStreamCreate, (CUstream* stream, unsigned int flags)) \
  X(cuStreamDestroy_v2, (CUstream stream)) \
  X(cuStreamSynchronize, (CUstream stream)) \
  X(cuStreamQuery, (CUstream stream)) \
  X(cuStreamWriteValue64_v2, \
     (CUstream stream, CUdeviceptr address, std::uint64_t value, unsigned int flags)) \
  X(cuStreamWaitValue64_v2, \
     (CUstream stream, CUdeviceptr address, std::uint64_t value, unsigned int flags)) \
  X(cuStreamBatchMemOp_v2, \
     (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations, \
      unsigned int flags)) \
  X(cuStreamGetCtx, (CUstream stream, CUcontext* context)) \
  X(cuStreamGetId, (CUstream stream, unsigned long long* id)) \
  X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags)) \
  X(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* status)) \
  X(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode)) \
  X(cuStreamEndCapture, (CUstream stream, CUgraph* graph)) \
  X(cuStreamGetCaptureInfo_v3, \
     (CUstream stream, CUstreamCaptureStatus* status, std::uint64_t* id, CUgraph* graph, \
      const CUgraphNode** dependencies, const CUgraphEdgeData** edges, std::size_t* count)) \
  X(cuGraphInstantiateWithFlags, \
     (CUgraphExec* executable, CUgraph graph, unsigned long long flags)) \
  X(cuGraphExecBatchMemOpNodeSetParams, \
     (CUgraphExec executable, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* values)) \
  X(cuGraphLaunch, (CUgraphExec executable, CUstream stream)) \
  X(cuGraphExecDestroy, (CUgraphExec executable)) \
  X(cuGraphDestroy, (CUgraph graph)) \
  X(cuEventCreate, (CUevent* event, unsigned int flags)) \
  X(cuEventDestroy_v2, (CUevent event)) \
  X(cuEventRecord, (CUevent event, CUstream stream)) \
  X(cuEventQuery, (CUevent event)) \
  X(cuEventSynchronize, (CUevent event)) \
  X(cuEventElapsedTime, (float* milliseconds, CUevent start, CUevent end)) \
  X(cuIpcGetMemHandle, (CUipcMemHandle* handle, CUdeviceptr pointer)) \
  X(cuIpcOpenMemHandle_v2, (CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags)) \
  X(cuIpcCloseMemHandle, (CUdeviceptr pointer)) \
  X(cuIpcGetEventHandle, (CUipcEventHandle* handle, CUevent event)) \
  X(cuIpcOpenEventHandle, (CUevent* event, CUipcEventHandle handle)) \
  X(cuMemHostAlloc, (void** address, std::size_t size, unsigned int flags)) \
  X(cuMemFreeHost, (void* address)) \
  X(cuMemHostRegister_v2, (void* address, std::size_t size, unsigned int flags)) \
  X(cuMemHostUnregister, (void* address)) \
  X(cuMemHostGetDevicePointer_v2, (CUdeviceptr* pointer, void* address, unsigned int flags)) \
  X(cuPointerGetAttribute, (void* data, CUpointer_attribute attribute, CUdeviceptr pointer)) \
  X(cuPointerGetAttributes, \
     (unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr pointer)) \
  X(cuMemGetAddressRange_v2, (CUdeviceptr* base, std::size_t* size, CUdeviceptr pointer)) \
  X(cuDeviceGetDefaultMemPool, (CUmemoryPool* pool, CUdevice device)) \
  X(cuMemPoolCreate, (CUmemoryPool* pool, const CUmemPoolProps* props)) \
  X(cuMemPoolDestroy, (CUmemoryPool pool)) \
  X(cuMemPoolTrimTo, (CUmemoryPool pool, std::size_t keep_bytes)) \
  X(cuMemPoolSetAccess, \
     (CUmemoryPool pool, const CUmemAccessDesc* descriptions, std::size_t count)) \
  X(cuMemAllocAsync, (CUdeviceptr* pointer, std::size_t size, CUstream stream)) \
  X(cuMemAllocFromPoolAsync, \
     (CUdeviceptr* pointer, std::size_t size, CUmemoryPool pool, CUstream stream)) \
  X(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream)) \
  X(cuMemPoolExportToShareableHandle, \
     (void* shareable, CUmemoryPool pool, CUmemAllocationHandleType type, \
      unsigned long long flags)) \
  X(cuMemPoolImportFromShareableHandle, \
     (CUmemoryPool* pool, void* shareable, CUmemAllocationHandleType type, \
      unsigned long long flags)) \
  X(cuMemPoolExportPointer, (CUmemPoolPtrExportData* data, CUdeviceptr pointer)) \
  X(cuMemPoolImportPointer, (CUdeviceptr* pointer, CUmemoryPool pool, CUmemPoolPtrExportData* data))
// clang-format on

// NOLINTBEGIN(bugprone-macro-parentheses): declarations, which parentheses would break
#define GPUSHM_CUDA_POINTER(symbol, parameters) using symbol##_pointer = CUresult(*) parameters;
GPUSHM_CUDA_FUNCTIONS(GPUSHM_CUDA_POINTER)
#undef GPUSHM_CUDA_POINTER
// NOLINTEND(bugprone-macro-parentheses)

/// One pointer per function, named like the driver's symbol.
struct functions {
#define GPUSHM_CUDA_MEMBER(symbol, parameters) symbol##_pointer symbol = nullptr;
  GPUSHM_CUDA_FUNCTIONS(GPUSHM_CUDA_MEMBER)
#undef GPUSHM_CUDA_MEMBER
};

}  // namespace gpushm::cuda
