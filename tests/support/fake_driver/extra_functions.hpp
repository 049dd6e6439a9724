// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpu/driver/cuda_abi.hpp"

namespace gpushm::cuda {

// clang-format off
// Functions that gpushm does not call, but programs that tests run under a preloaded library: as
// X(symbol, parameters). All return CUresult.
#define GPUSHM_FAKE_EXTRA_FUNCTIONS(X) \
  X(cuGetProcAddress, (const char* name, void** function, int version, std::uint64_t flags)) \
  X(cuGetProcAddress_v2, \
     (const char* name, void** function, int version, std::uint64_t flags, unsigned int* status)) \
  X(cuIpcOpenMemHandle, (CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags)) \
  X(cuEventRecord_ptsz, (CUevent event, CUstream stream)) \
  X(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags)) \
  X(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned int flags)) \
  X(cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned int flags)) \
  X(cuStreamQuery_ptsz, (CUstream stream)) \
  X(cuStreamSynchronize_ptsz, (CUstream stream)) \
  X(cuStreamIsCapturing_ptsz, (CUstream stream, CUstreamCaptureStatus* status))
// clang-format on

/// Handles of the two default streams (macros in cuda.h).
inline const auto stream_legacy = reinterpret_cast<CUstream>(1);
inline const auto stream_per_thread = reinterpret_cast<CUstream>(2);

}  // namespace gpushm::cuda
