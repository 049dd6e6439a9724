// SPDX-License-Identifier: Apache-2.0
// What dlsym, dlvsym and syscall answer to a program that is not concerned with IPC. Prints a line
// for each difference from what they must answer, and returns their number.
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int problems = 0;

static void expect(int holds, const char* rule) {
  if (!holds) {
    printf("%s\n", rule);
    ++problems;
  }
}

int main(void) {
  // Before the driver is loaded, its functions are nowhere, whatever a preloaded library exports.
  dlerror();
  expect(dlsym(RTLD_DEFAULT, "cuIpcGetMemHandle") == NULL, "cuIpcGetMemHandle without a driver");
  const char* message = dlerror();
  expect(message != NULL, "no message of dlsym");
  expect(dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2") == NULL,
         "cuGetProcAddress_v2 without a driver");
  dlerror();

  void* const cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  expect(cuda != NULL, "no libcuda.so.1");
  if (cuda == NULL) {
    return problems;
  }
  // Local to this program's handle.
  expect(dlsym(cuda, "cuIpcGetMemHandle") != NULL, "no cuIpcGetMemHandle");
  expect(dlsym(cuda, "cuIpcGetMemHandleX") == NULL, "cuIpcGetMemHandleX");
  message = dlerror();
  expect(message != NULL && strstr(message, "cuIpcGetMemHandleX") != NULL,
         "the message does not name cuIpcGetMemHandleX");
  expect(dlsym(cuda, "cuIpcGetMem") == NULL, "cuIpcGetMem");
  expect(dlsym(cuda, "") == NULL, "the empty name");
  expect(dlsym(cuda, "c") == NULL, "c");
  expect(dlsym(cuda, "cu") == NULL, "cu");
  // A hook that the driver does not have.
  expect(dlsym(cuda, "cuGraphAddEventRecordNode") == NULL, "cuGraphAddEventRecordNode");
  dlerror();
  // Of a handle that does not have it.
  void* const library = dlopen("libm.so.6", RTLD_NOW);
  expect(library != NULL && dlsym(library, "cuIpcGetMemHandle") == NULL,
         "cuIpcGetMemHandle of libm");
  dlerror();

  // Other names lead to the same addresses as without a preloaded library.
  Dl_info info;
  void* const init = dlsym(cuda, "cuInit");
  expect(init != NULL && dladdr(init, &info) != 0 && strstr(info.dli_fname, "libcuda") != NULL,
         "cuInit is not the driver's");
  void* const next = dlsym(RTLD_NEXT, "malloc");
  expect(next != NULL, "no malloc after this program");
  expect(dlvsym(library, "pow", "GLIBC_2.29") != NULL, "no pow of GLIBC_2.29");
  expect(dlvsym(library, "pow", "GLIBC_2.0") == NULL, "pow of GLIBC_2.0");
  dlerror();
  // A call of dlsym by its address, as of a library that looks dlsym up.
  void* (*again)(void*, const char*) = NULL;
  void* const address = dlsym(RTLD_DEFAULT, "dlsym");
  memcpy(&again, &address, sizeof(address));
  expect(again != NULL && again(cuda, "cuInit") == init, "dlsym by its address");

  expect(syscall(SYS_getpid) == getpid(), "getpid by syscall");
  errno = 0;
  expect(syscall(SYS_close, -1) == -1 && errno == EBADF, "the errno of syscall");
  // Six arguments arrive.
  expect(syscall(SYS_mmap, 0L, 4096L, 0L, 0x22L, -1L, 0L) != -1, "mmap by syscall");
  errno = 0;
  expect(syscall(SYS_pidfd_getfd, -1L, 0L, 0L) == -1 && errno == EBADF,
         "pidfd_getfd of no process");
  const long own = syscall(SYS_pidfd_open, (long)getpid(), 0L);
  expect(own >= 0, "pidfd_open of this process");
  const long copy = syscall(SYS_pidfd_getfd, own, 0L, 0L);
  expect(copy >= 0, "pidfd_getfd of a descriptor of this process");
  expect(close((int)copy) == 0 && close((int)own) == 0, "close");
  errno = 0;
  expect(close(-1) == -1 && errno == EBADF, "close of no descriptor");
  return problems;
}
