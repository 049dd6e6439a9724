// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_IPC_PROGRAMS_DRIVER_H
#define TESTS_IPC_PROGRAMS_DRIVER_H

// The part of the CUDA driver's interface that program.c uses, so that it builds without cuda.h.
// All functions return 0, or the number of an error.

#include <stddef.h>
#include <stdint.h>

typedef unsigned long long device_pointer;
typedef void* event;
typedef void* stream;
typedef void* graph;
struct ipc_handle {
  unsigned char bytes[64];
};

enum {
  ipc_flag_lazy_peer_access = 1,
  event_flag_disable_timing = 2,
  event_flag_interprocess = 4,
  stream_flag_non_blocking = 1,
  stream_wait_geq = 0,
  capture_relaxed = 2,
};

// X(name, symbol, version of CUDA, parameters): the symbol is what programs are linked with, name
// and version are what cuGetProcAddress takes.
#define DRIVER_FUNCTIONS(X)                                                                      \
  X(cuInit, cuInit, 2000, (unsigned int flags))                                                  \
  X(cuDeviceGet, cuDeviceGet, 2000, (int* device, int ordinal))                                  \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, (void** context, int device))      \
  X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, (void* context))                                     \
  X(cuMemAlloc, cuMemAlloc_v2, 3020, (device_pointer * pointer, size_t size))                    \
  X(cuMemFree, cuMemFree_v2, 3020, (device_pointer pointer))                                     \
  X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020, (void* target, device_pointer source, size_t size))     \
  X(cuMemcpyDtoDAsync,                                                                           \
    cuMemcpyDtoDAsync_v2,                                                                        \
    3020,                                                                                        \
    (device_pointer target, device_pointer source, size_t size, stream on))                      \
  X(cuMemsetD32Async,                                                                            \
    cuMemsetD32Async,                                                                            \
    3020,                                                                                        \
    (device_pointer target, unsigned int value, size_t count, stream on))                        \
  X(cuMemHostRegister, cuMemHostRegister_v2, 6050, (void* address, size_t size, unsigned flags)) \
  X(cuMemHostGetDevicePointer,                                                                   \
    cuMemHostGetDevicePointer_v2,                                                                \
    3020,                                                                                        \
    (device_pointer * pointer, void* address, unsigned int flags))                               \
  X(cuStreamCreate, cuStreamCreate, 2000, (stream * created, unsigned int flags))                \
  X(cuStreamSynchronize, cuStreamSynchronize, 2000, (stream on))                                 \
  X(cuStreamQuery, cuStreamQuery, 2000, (stream on))                                             \
  X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, (stream on, event waited, unsigned int flags))   \
  X(cuStreamWaitValue64,                                                                         \
    cuStreamWaitValue64_v2,                                                                      \
    11070,                                                                                       \
    (stream on, device_pointer address, uint64_t value, unsigned int flags))                     \
  X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, (stream on, int mode))                 \
  X(cuStreamEndCapture, cuStreamEndCapture, 10000, (stream on, graph * captured))                \
  X(cuEventCreate, cuEventCreate, 2000, (event * created, unsigned int flags))                   \
  X(cuEventDestroy, cuEventDestroy_v2, 4000, (event destroyed))                                  \
  X(cuEventRecord, cuEventRecord, 2000, (event recorded, stream on))                             \
  X(cuEventRecordWithFlags,                                                                      \
    cuEventRecordWithFlags,                                                                      \
    11010,                                                                                       \
    (event recorded, stream on, unsigned int flags))                                             \
  X(cuEventQuery, cuEventQuery, 2000, (event recorded))                                          \
  X(cuEventSynchronize, cuEventSynchronize, 2000, (event recorded))                              \
  X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, (struct ipc_handle * handle, device_pointer at)) \
  X(cuIpcOpenMemHandle,                                                                          \
    cuIpcOpenMemHandle_v2,                                                                       \
    11000,                                                                                       \
    (device_pointer * pointer, struct ipc_handle handle, unsigned int flags))                    \
  X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, (device_pointer pointer))                    \
  X(cuIpcGetEventHandle,                                                                         \
    cuIpcGetEventHandle,                                                                         \
    4010,                                                                                        \
    (struct ipc_handle * handle, event event_handle))                                            \
  X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010, (event * opened, struct ipc_handle handle))

struct driver {
#define DRIVER_MEMBER(name, symbol, version, parameters) int(*name) parameters;
  DRIVER_FUNCTIONS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
};

// Fills it by the way for which reach.c is compiled. Returns false, with a message on standard
// error, if a function is missing.
int reach_driver(struct driver* driver);

#endif
