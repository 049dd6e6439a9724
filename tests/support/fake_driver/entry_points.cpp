// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: the way by which the CUDA runtime finds the driver's functions.
#include <algorithm>
#include <array>
#include <string_view>

#include "tests/support/fake_driver/extra_functions.hpp"
#include "tests/support/fake_driver/state.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::entry;

namespace {

constexpr int driver_version = 13000;
constexpr std::uint64_t flag_legacy_stream = 1;
constexpr std::uint64_t flag_per_thread_default_stream = 2;
enum : unsigned int { status_success = 0, status_not_found = 1, status_version_not_sufficient = 2 };

struct introduction {
  std::string_view symbol;
  int version;
};

// The version of CUDA that introduced each symbol (cudaTypedefs.h). The last lines are symbols that
// the fake lacks, so that a request for them does not lead to an older one with other parameters.
constexpr introduction introductions[] = {
    {"cuInit", 2000},
    {"cuDriverGetVersion", 2020},
    {"cuGetErrorName", 6000},
    {"cuGetErrorString", 6000},
    {"cuDeviceGetCount", 2000},
    {"cuDeviceGet", 2000},
    {"cuDeviceGetName", 2000},
    {"cuDeviceGetUuid_v2", 11040},
    {"cuDeviceGetPCIBusId", 4010},
    {"cuDeviceGetAttribute", 2000},
    {"cuDeviceTotalMem_v2", 3020},
    {"cuDeviceCanAccessPeer", 4000},
    {"cuDeviceGetP2PAttribute", 8000},
    {"cuDevicePrimaryCtxRetain", 7000},
    {"cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuDevicePrimaryCtxGetState", 7000},
    {"cuDevicePrimaryCtxReset_v2", 11000},
    {"cuCtxGetCurrent", 4000},
    {"cuCtxSetCurrent", 4000},
    {"cuCtxPushCurrent_v2", 4000},
    {"cuCtxPopCurrent_v2", 4000},
    {"cuCtxGetDevice", 2000},
    {"cuCtxGetId", 12000},
    {"cuCtxSynchronize", 2000},
    {"cuMemGetInfo_v2", 3020},
    {"cuMemGetAllocationGranularity", 10020},
    {"cuMemCreate", 10020},
    {"cuMemRelease", 10020},
    {"cuMemAddressReserve", 10020},
    {"cuMemAddressFree", 10020},
    {"cuMemMap", 10020},
    {"cuMemUnmap", 10020},
    {"cuMemSetAccess", 10020},
    {"cuMemExportToShareableHandle", 10020},
    {"cuMemImportFromShareableHandle", 10020},
    {"cuMemRetainAllocationHandle", 11000},
    {"cuMemGetAllocationPropertiesFromHandle", 10020},
    {"cuMemAlloc_v2", 3020},
    {"cuMemFree_v2", 3020},
    {"cuMemcpyHtoD_v2", 3020},
    {"cuMemcpyDtoH_v2", 3020},
    {"cuMemcpyDtoD_v2", 3020},
    {"cuMemcpyHtoDAsync_v2", 3020},
    {"cuMemcpyDtoHAsync_v2", 3020},
    {"cuMemcpyDtoDAsync_v2", 3020},
    {"cuMemsetD8_v2", 3020},
    {"cuMemsetD32_v2", 3020},
    {"cuMemsetD32Async", 3020},
    {"cuMemsetD8Async", 3020},
    {"cuStreamCreate", 2000},
    {"cuStreamDestroy_v2", 4000},
    {"cuStreamSynchronize", 2000},
    {"cuStreamQuery", 2000},
    {"cuStreamWriteValue64_v2", 11070},
    {"cuStreamWaitValue64_v2", 11070},
    {"cuStreamBatchMemOp_v2", 11070},
    {"cuStreamGetCtx", 9020},
    {"cuStreamGetId", 12000},
    {"cuStreamWaitEvent", 3020},
    {"cuStreamIsCapturing", 10000},
    {"cuStreamBeginCapture_v2", 10010},
    {"cuStreamEndCapture", 10000},
    {"cuStreamGetCaptureInfo_v3", 12030},
    {"cuGraphInstantiateWithFlags", 11040},
    {"cuGraphExecBatchMemOpNodeSetParams", 11070},
    {"cuGraphLaunch", 10000},
    {"cuGraphExecDestroy", 10000},
    {"cuGraphDestroy", 10000},
    {"cuEventCreate", 2000},
    {"cuEventDestroy_v2", 4000},
    {"cuEventRecord", 2000},
    {"cuEventQuery", 2000},
    {"cuEventSynchronize", 2000},
    {"cuEventElapsedTime", 2000},
    {"cuIpcGetMemHandle", 4010},
    {"cuIpcOpenMemHandle_v2", 11000},
    {"cuIpcCloseMemHandle", 4010},
    {"cuIpcGetEventHandle", 4010},
    {"cuIpcOpenEventHandle", 4010},
    {"cuMemHostAlloc", 2020},
    {"cuMemFreeHost", 2000},
    {"cuMemHostRegister_v2", 6050},
    {"cuMemHostUnregister", 4000},
    {"cuMemHostGetDevicePointer_v2", 3020},
    {"cuPointerGetAttribute", 4000},
    {"cuPointerGetAttributes", 7000},
    {"cuMemGetAddressRange_v2", 3020},
    {"cuDeviceGetDefaultMemPool", 11020},
    {"cuMemPoolCreate", 11020},
    {"cuMemPoolDestroy", 11020},
    {"cuMemPoolTrimTo", 11020},
    {"cuMemPoolSetAccess", 11020},
    {"cuMemAllocAsync", 11020},
    {"cuMemAllocFromPoolAsync", 11020},
    {"cuMemFreeAsync", 11020},
    {"cuMemPoolExportToShareableHandle", 11020},
    {"cuMemPoolImportFromShareableHandle", 11020},
    {"cuMemPoolExportPointer", 11020},
    {"cuMemPoolImportPointer", 11020},
    {"cuGetProcAddress", 11030},
    {"cuGetProcAddress_v2", 12000},
    {"cuIpcOpenMemHandle", 4010},
    {"cuEventRecord_ptsz", 7000},
    {"cuEventRecordWithFlags", 11010},
    {"cuEventRecordWithFlags_ptsz", 11010},
    {"cuStreamWaitEvent_ptsz", 7000},
    {"cuStreamQuery_ptsz", 7000},
    {"cuStreamSynchronize_ptsz", 7000},
    {"cuStreamIsCapturing_ptsz", 10000},
    {"cuCtxGetDevice_v2", 13000},
    {"cuCtxSynchronize_v2", 13000},
    {"cuStreamGetCtx_v2", 12050},
    {"cuEventElapsedTime_v2", 12080},
};

struct function {
  std::string_view symbol;
  void* address;
};

#define GPUSHM_FAKE_FUNCTION(symbol, parameters) {#symbol, reinterpret_cast<void*>(&cuda::symbol)},
const function functions[] = {GPUSHM_CUDA_FUNCTIONS(GPUSHM_FAKE_FUNCTION)
                                  GPUSHM_FAKE_EXTRA_FUNCTIONS(GPUSHM_FAKE_FUNCTION)};
#undef GPUSHM_FAKE_FUNCTION

constexpr bool is_introduced(std::string_view symbol) {
  return std::any_of(std::begin(introductions), std::end(introductions), [&](const auto& each) {
    return each.symbol == symbol;
  });
}
#define GPUSHM_FAKE_CHECK(symbol, parameters) static_assert(is_introduced(#symbol));
GPUSHM_CUDA_FUNCTIONS(GPUSHM_FAKE_CHECK)
GPUSHM_FAKE_EXTRA_FUNCTIONS(GPUSHM_FAKE_CHECK)
#undef GPUSHM_FAKE_CHECK

constexpr std::string_view per_thread_suffix = "_ptsz";

bool is_per_thread(std::string_view symbol) {
  return symbol.size() > per_thread_suffix.size() &&
         symbol.substr(symbol.size() - per_thread_suffix.size()) == per_thread_suffix;
}

// "cuMemAlloc" of "cuMemAlloc_v2", "cuEventRecord" of "cuEventRecord_ptsz".
std::string_view base_name(std::string_view symbol) {
  if (is_per_thread(symbol)) {
    symbol.remove_suffix(per_thread_suffix.size());
  }
  const auto length = symbol.size();
  if (length > 3 && symbol[length - 3] == '_' && symbol[length - 2] == 'v') {
    symbol.remove_suffix(3);
  }
  return symbol;
}

// The last symbol for `name` that `version` has, of those for the per-thread default stream or of
// the others; null if there is none.
const introduction* find_introduction(std::string_view name, int version, bool per_thread) {
  const introduction* last = nullptr;
  for (const introduction& each : introductions) {
    if (is_per_thread(each.symbol) == per_thread && base_name(each.symbol) == name &&
        each.version <= version && (last == nullptr || each.version > last->version)) {
      last = &each;
    }
  }
  return last;
}

void* address_of(std::string_view symbol) {
  const auto* const found = std::find_if(std::begin(functions),
                                         std::end(functions),
                                         [&](const auto& each) { return each.symbol == symbol; });
  return found == std::end(functions) ? nullptr : found->address;
}

CUresult get_address(
    const char* name, void** address, int version, std::uint64_t flags, unsigned int* status) {
  if (name == nullptr || address == nullptr || version > driver_version ||
      (flags & ~(flag_legacy_stream | flag_per_thread_default_stream)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const introduction* introduction = nullptr;
  if ((flags & flag_per_thread_default_stream) != 0) {
    introduction = find_introduction(name, version, true);
  }
  if (introduction == nullptr) {
    introduction = find_introduction(name, version, false);
  }
  *address = introduction == nullptr ? nullptr : address_of(introduction->symbol);
  if (status != nullptr) {
    *status = *address != nullptr ? status_success
              : find_introduction(name, driver_version, false) != nullptr
                  ? status_version_not_sufficient
                  : status_not_found;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuda::cuGetProcAddress(const char* name,
                                void** function,
                                int version,
                                std::uint64_t flags) {
  return entry(
      "cuGetProcAddress",
      [&] {
        const CUresult result = get_address(name, function, version, flags, nullptr);
        return result == CUDA_SUCCESS && *function == nullptr ? CUDA_ERROR_NOT_FOUND : result;
      },
      false);
}

CUresult cuda::cuGetProcAddress_v2(
    const char* name, void** function, int version, std::uint64_t flags, unsigned int* status) {
  return entry(
      "cuGetProcAddress_v2",
      [&] { return get_address(name, function, version, flags, status); },
      false);
}
