// SPDX-License-Identifier: Apache-2.0
// The ways in which programs reach the driver; one is compiled in:
//   REACH_LINKED        linked with libcuda.so.1
//   REACH_DLSYM         dlopen and dlsym
//   REACH_PROC_ADDRESS  as the CUDA runtime: dlsym of cuGetProcAddress_v2, which finds the others
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

#if defined(REACH_LINKED)

#define DRIVER_DECLARE(name, symbol, version, parameters) extern int symbol parameters;
DRIVER_FUNCTIONS(DRIVER_DECLARE)
#undef DRIVER_DECLARE

int reach_driver(struct driver* driver) {
#define DRIVER_ASSIGN(name, symbol, version, parameters) driver->name = &symbol;
  DRIVER_FUNCTIONS(DRIVER_ASSIGN)
#undef DRIVER_ASSIGN
  return 1;
}

#else

static void* library(void) {
  void* const opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (opened == NULL) {
    fprintf(stderr, "%s\n", dlerror());
  }
  return opened;
}

#if defined(REACH_DLSYM)

static void* find(void* from, const char* name, const char* symbol, int version) {
  (void)name;
  (void)version;
  return dlsym(from, symbol);
}

#elif defined(REACH_PROC_ADDRESS)

typedef int (*get_proc_address)(const char*, void**, int, uint64_t, int*);

static void* find(void* from, const char* name, const char* symbol, int version) {
  static int (*get)(const char*, void**, int, uint64_t, int*) = NULL;
  (void)symbol;
  int status = -1;
  void* function = NULL;
  if (get == NULL) {
    // The runtime asks the driver's function for itself first.
    function = dlsym(from, "cuGetProcAddress_v2");
    memcpy(&get, &function, sizeof(function));
    if (get == NULL || get("cuGetProcAddress", &function, 12000, 0, &status) != 0 || status != 0) {
      return NULL;
    }
    memcpy(&get, &function, sizeof(function));
  }
  return get(name, &function, version, 0, &status) == 0 && status == 0 ? function : NULL;
}

#else
#error "no way to the driver"
#endif

int reach_driver(struct driver* driver) {
  void* const from = library();
  if (from == NULL) {
    return 0;
  }
  int complete = 1;
  void* function = NULL;
// ISO C has no conversion of what dlsym returns.
#define DRIVER_FIND(name, symbol, version, parameters) \
  function = find(from, #name, #symbol, version);      \
  memcpy(&driver->name, &function, sizeof(function));  \
  if (function == NULL) {                              \
    fprintf(stderr, "no %s\n", #name);                 \
    complete = 0;                                      \
  }
  DRIVER_FUNCTIONS(DRIVER_FIND)
#undef DRIVER_FIND
  return complete;
}

#endif
