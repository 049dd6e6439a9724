// SPDX-License-Identifier: Apache-2.0
// Compiled with a sanitizer, whose run-time library looks functions up by dlsym before other
// libraries are initialized, and must still find errors: "overflow" and "race" make one.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int counter = 0;

static void* count(void* unused) {
  ++counter;
  return unused;
}

int main(int argc, char** argv) {
  const char* const mistake = argc > 1 ? argv[1] : "";
  char* const text = malloc(8);
  if (text == NULL || dlopen("libm.so.6", RTLD_NOW) == NULL) {
    return 2;
  }
  memset(text, 'a', 8);
  printf("%c\n", text[strcmp(mistake, "overflow") == 0 ? 8 : 7]);
  free(text);
  pthread_t thread;
  if (pthread_create(&thread, NULL, count, NULL) != 0) {
    return 2;
  }
  if (strcmp(mistake, "race") == 0) {
    ++counter;
  }
  return pthread_join(thread, NULL);
}
