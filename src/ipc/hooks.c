// SPDX-License-Identifier: Apache-2.0
// The ways to the driver: symbols, dlsym, dlvsym, cuGetProcAddress.
#include "ipc/hooks.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "ipc/definitions.h"
#include "ipc/entry.h"
#include "ipc/settings.h"

static const char* const names[] = {
#define IPC_HOOK_NAME(name) #name,
    IPC_HOOKS(IPC_HOOK_NAME)
#undef IPC_HOOK_NAME
};

// Of this library.
static void* replacement(enum ipc_hook hook) {
  switch (hook) {
#define IPC_HOOK_CASE(name) \
  case ipc_hook_##name:     \
    return (void*)&name;
    IPC_HOOKS(IPC_HOOK_CASE)
#undef IPC_HOOK_CASE
    default:
      return NULL;
  }
}

static _Atomic(void*) real_functions[ipc_hook_count];

static bool find_hook(const char* name, enum ipc_hook* hook) {
  if (name == NULL || name[0] != 'c' || name[1] != 'u') {
    return false;
  }
  static const size_t lengths[] = {
#define IPC_HOOK_LENGTH(name) sizeof(#name) - 1,
      IPC_HOOKS(IPC_HOOK_LENGTH)
#undef IPC_HOOK_LENGTH
  };
  const size_t length = strlen(name);
  for (int each = 0; each < ipc_hook_count; ++each) {
    if (length == lengths[each] && memcmp(name, names[each], length) == 0) {
      *hook = (enum ipc_hook)each;
      return true;
    }
  }
  return false;
}

// Keeps the first one: what another library put before the driver's stays before it.
static void keep_real(enum ipc_hook hook, void* function) {
  void* none = NULL;
  if (function != replacement(hook)) {
    atomic_compare_exchange_strong(&real_functions[hook], &none, function);
  }
}

void* ipc_real(enum ipc_hook hook) {
  void* real = atomic_load_explicit(&real_functions[hook], memory_order_acquire);
  if (real == NULL) {
    real = ipc_next_definition(names[hook]);
    if (real == NULL) {
      real = ipc_driver_definition(names[hook]);
    }
    if (real != NULL) {
      keep_real(hook, real);
    }
  }
  return real;
}

typedef void* (*dlsym_function)(void*, const char*);
typedef void* (*dlvsym_function)(void*, const char*, const char*);

void* ipc_next_of(enum ipc_entry entry) {
  static _Atomic(void*) next[ipc_entry_count];
  static const char* const entry_names[] = {[ipc_entry_dlsym] = "dlsym",
                                            [ipc_entry_dlvsym] = "dlvsym",
                                            [ipc_entry_syscall] = "syscall",
                                            [ipc_entry_close] = "close"};
  void* function = atomic_load_explicit(&next[entry], memory_order_acquire);
  if (function == NULL) {
    function = ipc_c_library_definition(entry_names[entry]);
    atomic_store_explicit(&next[entry], function, memory_order_release);
  }
  return function;
}

dlsym_function ipc_real_dlsym(void) {
  return (dlsym_function)ipc_next_of(ipc_entry_dlsym);
}

// What the caller of dlsym gets instead of `function`. libgpushm makes handles proof against PIDs
// by itself, and its exports are no business of other programs.
static void* instead_of(enum ipc_hook hook, void* handle, void* function, void* caller) {
  if (function == NULL) {
    return NULL;
  }
  if (function == replacement(hook)) {
    // Found in the global scope, where this library comes first: the symbol exists only if the
    // driver or another library has it. Otherwise dlsym fails as it would have, with its message.
    void* const real = ipc_real(hook);
    return real == NULL  ? ipc_real_dlsym()(handle, "cu (no such function)")
           : ipc_is_on() ? function
                         : real;
  }
  if (!ipc_is_on() || ipc_is_in_object(caller, "libgpushm")) {
    return function;
  }
  keep_real(hook, function);
  return replacement(hook);
}

static void* replaced_dlsym(void* handle, const char* name) {
  enum ipc_hook hook = ipc_hook_count;
  void* const function = ipc_real_dlsym()(handle, name);
  return find_hook(name, &hook) ? instead_of(hook, handle, function, __builtin_return_address(0))
                                : function;
}

static void* replaced_dlvsym(void* handle, const char* name, const char* version) {
  enum ipc_hook hook = ipc_hook_count;
  void* const function = ((dlvsym_function)ipc_next_of(ipc_entry_dlvsym))(handle, name, version);
  return find_hook(name, &hook) ? instead_of(hook, handle, function, __builtin_return_address(0))
                                : function;
}

void* ipc_route(enum ipc_entry entry, const char* name) {
  enum ipc_hook hook = ipc_hook_count;
  if (!find_hook(name, &hook)) {
    return ipc_next_of(entry);
  }
  return entry == ipc_entry_dlsym ? (void*)&replaced_dlsym : (void*)&replaced_dlvsym;
}

// ---- cuGetProcAddress ----

enum {
  first_version_of_get_proc_address_v2 = 12000,
  first_version_of_open_mem_handle_v2 = 11000,
  first_version_of_event_destroy_v2 = 4000,
  per_thread_default_stream = 2,  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
};

// Symbols are named there without the suffix of their version.
static bool find_procedure(
    const char* symbol, int version, uint64_t flags, const void* function, enum ipc_hook* hook) {
  static const struct {
    enum ipc_hook old_one;
    enum ipc_hook new_one;
    int first_version;
  } versions[] = {
      {ipc_hook_cuGetProcAddress,
       ipc_hook_cuGetProcAddress_v2,
       first_version_of_get_proc_address_v2},
      {ipc_hook_cuIpcOpenMemHandle,
       ipc_hook_cuIpcOpenMemHandle_v2,
       first_version_of_open_mem_handle_v2},
      {ipc_hook_cuEventDestroy, ipc_hook_cuEventDestroy_v2, first_version_of_event_destroy_v2},
  };
  static const struct {
    enum ipc_hook legacy;
    enum ipc_hook per_thread;
  } streams[] = {
      {ipc_hook_cuEventRecord, ipc_hook_cuEventRecord_ptsz},
      {ipc_hook_cuEventRecordWithFlags, ipc_hook_cuEventRecordWithFlags_ptsz},
  };
  if (!find_hook(symbol, hook)) {
    return false;
  }
  for (size_t each = 0; each < sizeof(versions) / sizeof(versions[0]); ++each) {
    if (*hook == versions[each].old_one && version >= versions[each].first_version) {
      *hook = versions[each].new_one;
    }
  }
  for (size_t each = 0; each < sizeof(streams) / sizeof(streams[0]); ++each) {
    if (*hook == streams[each].legacy &&
        ((flags & per_thread_default_stream) != 0 ||
         function == ipc_driver_definition(names[streams[each].per_thread]))) {
      *hook = streams[each].per_thread;
    }
  }
  return true;
}

static void replace_procedure(
    const char* symbol, void** function, int version, uint64_t flags, void* caller) {
  enum ipc_hook hook = ipc_hook_count;
  if (symbol == NULL || function == NULL || *function == NULL || !ipc_is_on() ||
      !find_procedure(symbol, version, flags, *function, &hook) ||
      ipc_is_in_object(caller, "libgpushm")) {
    return;
  }
  keep_real(hook, *function);
  *function = replacement(hook);
}

cu_result cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  cu_result (*const real)(const char*, void**, int, uint64_t) =
      (cu_result(*)(const char*, void**, int, uint64_t))ipc_real(ipc_hook_cuGetProcAddress);
  if (real == NULL) {
    return cu_error_not_found;
  }
  const cu_result result = real(symbol, function, version, flags);
  if (result == cu_success) {
    replace_procedure(symbol, function, version, flags, __builtin_return_address(0));
  }
  return result;
}

cu_result cuGetProcAddress_v2(
    const char* symbol, void** function, int version, uint64_t flags, int* status) {
  cu_result (*const real)(const char*, void**, int, uint64_t, int*) = (cu_result(*)(
      const char*, void**, int, uint64_t, int*))ipc_real(ipc_hook_cuGetProcAddress_v2);
  if (real == NULL) {
    return cu_error_not_found;
  }
  const cu_result result = real(symbol, function, version, flags, status);
  if (result == cu_success) {
    replace_procedure(symbol, function, version, flags, __builtin_return_address(0));
  }
  return result;
}
