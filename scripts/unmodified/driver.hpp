// SPDX-License-Identifier: Apache-2.0
// What this folder's programs over the driver interface share.
#pragma once

#include <cuda.h>

#include <cstdio>
#include <cstdlib>

namespace unmodified {

/// Ends the program, with the call and its error, unless it succeeded.
inline void must(CUresult error, const char* call) {
  if (error != CUDA_SUCCESS) {
    const char* name = nullptr;
    cuGetErrorName(error, &name);
    printf("%s: %d %s\n", call, static_cast<int>(error), name == nullptr ? "" : name);
    exit(2);
  }
}
#define MUST(call) unmodified::must(call, #call)

/// Makes the primary context of the first GPU current.
inline void start() {
  CUdevice device;
  CUcontext context;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
}

}  // namespace unmodified
