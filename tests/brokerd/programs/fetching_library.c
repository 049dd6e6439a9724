/* SPDX-License-Identifier: Apache-2.0
 *
 * What a communication library such as UCX does with memory that is exported as a descriptor: the
 * exporter packs its PID, the inode of its PID namespace and the descriptor's number; the importer
 * fetches the descriptor with pidfd_getfd if it has the same PID namespace, and otherwise by
 * gpushm_resolve_fd of libgpushm.so.1, which it opens with dlopen. It is not linked to libgpushm.
 *
 *   fetching_library LIBGPUSHM export
 *       prints "handle PID NAMESPACE NUMBER" and waits for the end of its input; then "holds TEXT"
 *   fetching_library LIBGPUSHM import PID NAMESPACE NUMBER
 *       prints "fetched by kernel|gpushm: TEXT" and writes "seen", or prints "failed NUMBER" (an
 *       errno)
 *
 * The exporter's part of gpushm is that of libgpushm-ipc.so. The broker is at $GPUSHM_SOCKET. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpushm/descriptor.h"

#define FILE_BYTES 81920 /* the driver's file of events */

/* What is sent to importers. */
struct packed_handle {
  int64_t pid;
  uint64_t pid_namespace;
  int number;
};

static uint64_t own_namespace(void) {
  struct stat info;
  return stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

static void* function(void* library, const char* name) {
  void* const result = dlsym(library, name);
  if (result == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return result;
}

static int export_one(void* library) {
  gpushm_errc (*connect_client)(const gpushm_connect_options*, int64_t, gpushm_client**);
  gpushm_errc (*register_descriptor)(gpushm_client*, int, uint32_t, uint64_t, gpushm_descriptor**);
  uint32_t (*number_of)(const gpushm_descriptor*);
  char text[8] = "unseen";
  char name[64];
  gpushm_client* client = NULL;
  gpushm_descriptor* registration = NULL;
  int file;
  *(void**)&connect_client = function(library, "gpushm_client_connect");
  *(void**)&register_descriptor = function(library, "gpushm_client_register_descriptor");
  *(void**)&number_of = function(library, "gpushm_descriptor_number");
  snprintf(name, sizeof name, "/gpushm-test-%ld", (long)getpid());
  file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file == -1 || shm_unlink(name) != 0 || ftruncate(file, FILE_BYTES) != 0 ||
      pwrite(file, text, sizeof text, 0) != sizeof text) {
    perror("shm_open");
    return 1;
  }
  if (connect_client(NULL, 20000, &client) != GPUSHM_OK ||
      register_descriptor(client, file, (uint32_t)file, 0, &registration) != GPUSHM_OK) {
    fprintf(stderr, "not registered\n");
    return 1;
  }
  printf("handle %ld %" PRIu64 " %" PRIu32 "\n",
         (long)getpid(),
         own_namespace(),
         number_of(registration));
  fflush(stdout);
  while (getchar() != EOF) {
  }
  if (pread(file, text, sizeof text, 0) != sizeof text) {
    return 1;
  }
  text[sizeof text - 1] = '\0';
  printf("holds %s\n", text);
  fflush(stdout);
  _exit(0); /* the process's end ends the registration */
}

/* 0, or an errno. */
static int fetch(void* library,
                 const struct packed_handle* handle,
                 int* file,
                 const char** method) {
  int (*resolve)(int64_t, uint64_t, int, int*);
  if (handle->pid_namespace == own_namespace()) {
    const int process = (int)syscall(SYS_pidfd_open, (pid_t)handle->pid, 0);
    *method = "kernel";
    *file = process == -1 ? -1 : (int)syscall(SYS_pidfd_getfd, process, handle->number, 0);
    return *file == -1 ? errno : 0;
  }
  *method = "gpushm";
  *(void**)&resolve = function(library, "gpushm_resolve_fd");
  return -resolve(handle->pid, handle->pid_namespace, handle->number, file);
}

static int import_one(void* library, char** words) {
  struct packed_handle from;
  int file = -1;
  const char* method = "";
  char* mapped;
  int failed;
  from.pid = strtoll(words[0], NULL, 10);
  from.pid_namespace = strtoull(words[1], NULL, 10);
  from.number = (int)strtol(words[2], NULL, 10);
  failed = fetch(library, &from, &file, &method);
  if (failed != 0) {
    printf("failed %d\n", failed);
    return 0;
  }
  mapped = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    perror("mmap");
    return 1;
  }
  printf("fetched by %s: %.7s\n", method, mapped);
  memcpy(mapped, "seen", sizeof "seen");
  close(file);
  return 0;
}

int main(int argc, char** argv) {
  void* library;
  if (argc != 3 && argc != 6) {
    return 2;
  }
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  return argc == 3 ? export_one(library) : import_one(library, argv + 3);
}
