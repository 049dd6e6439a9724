// SPDX-License-Identifier: Apache-2.0
// A preloaded library as allocators and profilers are: its malloc finds the next one by RTLD_NEXT,
// which must be that of the C library, and not its own again.
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_ulong calls;

__attribute__((visibility("default"))) void* malloc(size_t size) {
  static void* (*next)(size_t) = NULL;
  if (next == NULL) {
    void* const symbol = dlsym(RTLD_NEXT, "malloc");
    memcpy(&next, &symbol, sizeof(symbol));
    if (next == NULL || next == &malloc) {
      static const char message[] = "wrap_malloc: RTLD_NEXT is not the next malloc\n";
      (void)!write(STDERR_FILENO, message, sizeof(message) - 1);
      _exit(99);
    }
  }
  atomic_fetch_add(&calls, 1);
  return next(size);
}

__attribute__((destructor)) static void report(void) {
  const char* const path = getenv("WRAP_MALLOC_REPORT");
  FILE* const file = path == NULL ? NULL : fopen(path, "we");
  if (file != NULL) {
    fprintf(file, "%lu\n", atomic_load(&calls));
    fclose(file);
  }
}
