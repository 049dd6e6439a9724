// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSHM_IPC_DEFINITIONS_H
#define GPUSHM_IPC_DEFINITIONS_H

#include <stdbool.h>
#include <stddef.h>

// Definitions of symbols in the loaded objects, read from their symbol tables: dlsym is one of the
// functions that this library replaces, and dlvsym wants the version that a C library has given a
// symbol. Any thread; they take the dynamic loader's lock, but allocate nothing.

// The first definition in the objects that were loaded after this library, or NULL: what its
// callers would reach without this library.
void* ipc_next_definition(const char* name);
// The same for a function of the C library, without the loader's lock. Works before other libraries
// are initialized.
void* ipc_c_library_definition(const char* name);
// The definition in libcuda.so, or NULL.
void* ipc_driver_definition(const char* name);
// Whether `address` lies in an object whose file name begins with `prefix`.
bool ipc_is_in_object(void* address, const char* prefix);
// Writes the path of this library's file, and returns false if it does not fit.
bool ipc_own_path(char* path, size_t size);

#endif
