// SPDX-License-Identifier: Apache-2.0
// In place of libgpushm-ipc.so in tests that do not need what it does: it can be preloaded, has one
// of its functions, and needs a version of libc, as each library that does something.
#include <unistd.h>

__attribute__((visibility("default"))) int cuIpcOpenMemHandle_v2(void);

int cuIpcOpenMemHandle_v2(void) {
  return getppid() == -1;
}
