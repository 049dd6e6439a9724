// SPDX-License-Identifier: Apache-2.0
// Runs program.c as a module that is linked with libcuda.so.1, as plug-ins and Python's extensions
// are:
//
//   load_module MODULE plain|deepbind
//
// With RTLD_DEEPBIND the module's own libraries come before preloaded ones.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  const int flags = strcmp(argv[2], "deepbind") == 0 ? RTLD_DEEPBIND : 0;
  void* const module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | flags);
  void* const symbol = module == NULL ? NULL : dlsym(module, "program_main");
  if (symbol == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int (*run)(int, char**) = NULL;
  memcpy(&run, &symbol, sizeof(symbol));
  return run(1, argv);
}
