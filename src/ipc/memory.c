// SPDX-License-Identifier: Apache-2.0
// Legacy handles of memory.
#include <stdatomic.h>
#include <unistd.h>

#include "ipc/hooks.h"
#include "ipc/settings.h"

typedef cu_result (*get_function)(ipc_handle*, cu_device_pointer);
typedef cu_result (*open_function)(cu_device_pointer*, ipc_handle, unsigned int);

cu_result cuIpcGetMemHandle(ipc_handle* handle, cu_device_pointer pointer) {
  const get_function real = (get_function)ipc_real(ipc_hook_cuIpcGetMemHandle);
  if (real == NULL) {
    return cu_error_not_found;
  }
  const cu_result result = real(handle, pointer);
  if (result != cu_success || !ipc_is_on()) {
    return result;
  }
  const bool is_tagged = ipc_tag_memory(handle, getpid(), ipc_process_tag());
  ipc_log("cuIpcGetMemHandle: %s", is_tagged ? "tagged" : "unknown layout, left as it is");
  if (!is_tagged) {
    static atomic_bool was_said = false;
    ipc_say_once(&was_said,
                 "this driver's memory handles have an unknown layout and are left as they are: "
                 "they open in another container only if its process has another PID");
  }
  return result;
}

static cu_result open_memory(enum ipc_hook hook,
                             cu_device_pointer* pointer,
                             ipc_handle handle,
                             unsigned int flags) {
  const open_function real = (open_function)ipc_real(hook);
  if (real == NULL) {
    return cu_error_not_found;
  }
  if (!ipc_is_on()) {
    return real(pointer, handle, flags);
  }
  const uint64_t tag = ipc_take_memory_tag(&handle);
  const int32_t exporter = ipc_memory_pid(&handle);
  const bool collides = exporter == getpid();
  if (tag != 0 && tag != ipc_process_tag() && collides) {
    ipc_set_memory_pid(&handle, ipc_pid_of_exporter(tag));
  }
  cu_result result = real(pointer, handle, flags);
  if (tag == 0 && collides && result == cu_error_invalid_context) {
    // The driver took it for a handle of this process, whose own ones have a tag.
    ipc_set_memory_pid(&handle, IPC_PID_OF_UNKNOWN_EXPORTER);
    result = real(pointer, handle, flags);
  }
  ipc_log("cuIpcOpenMemHandle: PID %d, given as %d, %s tag: %d",
          (int)exporter,
          (int)ipc_memory_pid(&handle),
          tag == 0                   ? "without"
          : tag == ipc_process_tag() ? "own"
                                     : "foreign",
          result);
  return result;
}

cu_result cuIpcOpenMemHandle(cu_device_pointer* pointer, ipc_handle handle, unsigned int flags) {
  return open_memory(ipc_hook_cuIpcOpenMemHandle, pointer, handle, flags);
}

cu_result cuIpcOpenMemHandle_v2(cu_device_pointer* pointer, ipc_handle handle, unsigned int flags) {
  return open_memory(ipc_hook_cuIpcOpenMemHandle_v2, pointer, handle, flags);
}
