// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSHM_IPC_HOOKS_H
#define GPUSHM_IPC_HOOKS_H

#include <stdint.h>

#include "ipc/handle.h"

// The driver's functions that this library replaces. Their numbers of arguments and types are those
// of cuda.h; a test compares them where there is one.
#define IPC_HOOKS(HOOK)                    \
  HOOK(cuGetProcAddress)                   \
  HOOK(cuGetProcAddress_v2)                \
  HOOK(cuIpcGetMemHandle)                  \
  HOOK(cuIpcOpenMemHandle)                 \
  HOOK(cuIpcOpenMemHandle_v2)              \
  HOOK(cuIpcGetEventHandle)                \
  HOOK(cuIpcOpenEventHandle)               \
  HOOK(cuEventRecord)                      \
  HOOK(cuEventRecord_ptsz)                 \
  HOOK(cuEventRecordWithFlags)             \
  HOOK(cuEventRecordWithFlags_ptsz)        \
  HOOK(cuEventDestroy)                     \
  HOOK(cuEventDestroy_v2)                  \
  HOOK(cuGraphAddEventRecordNode)          \
  HOOK(cuGraphEventRecordNodeSetEvent)     \
  HOOK(cuGraphExecEventRecordNodeSetEvent) \
  HOOK(cuMemExportToShareableHandle)

enum ipc_hook {
#define IPC_HOOK_ENUMERATOR(name) ipc_hook_##name,
  IPC_HOOKS(IPC_HOOK_ENUMERATOR)
#undef IPC_HOOK_ENUMERATOR
      ipc_hook_count
};

typedef int cu_result;
typedef unsigned long long cu_device_pointer;

enum {
  cu_success = 0,
  cu_error_invalid_value = 1,
  cu_error_invalid_context = 201,
  cu_error_not_found = 500,
  cu_error_not_ready = 600,
  cu_error_not_supported = 801,
};

// The function that a replaced one stands for: that of the driver, or of another preloaded library.
// NULL if there is none.
void* ipc_real(enum ipc_hook hook);
// The next definition of dlsym.
void* (*ipc_real_dlsym(void))(void*, const char*);

#define GPUSHM_IPC_EXPORT __attribute__((visibility("default")))

GPUSHM_IPC_EXPORT cu_result cuGetProcAddress(const char* symbol,
                                             void** function,
                                             int version,
                                             uint64_t flags);
GPUSHM_IPC_EXPORT cu_result
cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* status);
GPUSHM_IPC_EXPORT cu_result cuIpcGetMemHandle(ipc_handle* handle, cu_device_pointer pointer);
GPUSHM_IPC_EXPORT cu_result cuIpcOpenMemHandle(cu_device_pointer* pointer,
                                               ipc_handle handle,
                                               unsigned int flags);
GPUSHM_IPC_EXPORT cu_result cuIpcOpenMemHandle_v2(cu_device_pointer* pointer,
                                                  ipc_handle handle,
                                                  unsigned int flags);
GPUSHM_IPC_EXPORT cu_result cuIpcGetEventHandle(ipc_handle* handle, void* event);
GPUSHM_IPC_EXPORT cu_result cuIpcOpenEventHandle(void** event, ipc_handle handle);
GPUSHM_IPC_EXPORT cu_result cuEventRecord(void* event, void* stream);
GPUSHM_IPC_EXPORT cu_result cuEventRecord_ptsz(void* event, void* stream);
GPUSHM_IPC_EXPORT cu_result cuEventRecordWithFlags(void* event, void* stream, unsigned int flags);
GPUSHM_IPC_EXPORT cu_result cuEventRecordWithFlags_ptsz(void* event,
                                                        void* stream,
                                                        unsigned int flags);
GPUSHM_IPC_EXPORT cu_result cuEventDestroy(void* event);
GPUSHM_IPC_EXPORT cu_result cuEventDestroy_v2(void* event);
GPUSHM_IPC_EXPORT cu_result cuGraphAddEventRecordNode(
    void** node, void* graph, void* const* dependencies, unsigned long count, void* event);
GPUSHM_IPC_EXPORT cu_result cuGraphEventRecordNodeSetEvent(void* node, void* event);
GPUSHM_IPC_EXPORT cu_result cuGraphExecEventRecordNodeSetEvent(void* graph,
                                                               void* node,
                                                               void* event);
GPUSHM_IPC_EXPORT cu_result cuMemExportToShareableHandle(void* shareable,
                                                         unsigned long long allocation,
                                                         int type,
                                                         unsigned long long flags);

#endif
