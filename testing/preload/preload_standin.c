// SPDX-License-Identifier: Apache-2.0
// In place of libgpushm-ipc.so in tests that do not need what it does: it can be preloaded, and has
// one of its functions.
__attribute__((visibility("default"))) int cuIpcOpenMemHandle_v2(void);

int cuIpcOpenMemHandle_v2(void) {
  return 0;
}
