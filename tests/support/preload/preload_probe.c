// SPDX-License-Identifier: Apache-2.0
// Prints for each argument which file dlsym finds that function in, and then the variables that
// libgpushm-ipc.so and the loader read.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void print_variable(const char* name) {
  const char* const value = getenv(name);
  printf("%s=%s\n", name, value == NULL ? "(unset)" : value);
}

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    void* const function = dlsym(RTLD_DEFAULT, argv[i]);
    Dl_info info = {0};
    printf("%s %s\n",
           argv[i],
           function != NULL && dladdr(function, &info) != 0 ? info.dli_fname : "(none)");
  }
  print_variable("LD_PRELOAD");
  print_variable("GPUSHM_IPC_DOMAIN");
  print_variable("GPUSHM_SOCKET");
  return 0;
}
