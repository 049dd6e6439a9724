// SPDX-License-Identifier: Apache-2.0
// A preloaded library of the kind of HAMi-core: it answers dlsym for functions of the driver that
// it changes, and passes all other names on.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int cuMemAlloc_v2(void);
EXPORTED void* dlsym(void* handle, const char* name);

int cuMemAlloc_v2(void) {
  return 2;
}

void* dlsym(void* handle, const char* name) {
  static void* (*next)(void*, const char*);
  if (next == NULL) {
#if defined(__x86_64__)
    void* const found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
#else
    void* const found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
#endif
    memcpy(&next, &found, sizeof(next));
  }
  return strcmp(name, "cuMemAlloc_v2") == 0 ? (void*)&cuMemAlloc_v2 : next(handle, name);
}
