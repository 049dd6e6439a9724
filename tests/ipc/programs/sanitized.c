// SPDX-License-Identifier: Apache-2.0
// Compiled with AddressSanitizer: its run-time library looks functions up by dlsym with RTLD_NEXT,
// and must still find errors. With an argument, there is one.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
  (void)argv;
  char* const text = malloc(8);
  if (text == NULL || dlopen("libcuda.so.1", RTLD_NOW) == NULL) {
    return 2;
  }
  memset(text, 'a', 8);
  printf("%c\n", text[argc == 1 ? 7 : 8]);
  free(text);
  return 0;
}
