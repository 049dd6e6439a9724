// SPDX-License-Identifier: Apache-2.0
// A program that uses CUDA IPC and knows nothing of gpushm. It does what the lines of its standard
// input say, and answers each by a line: the command, the number of the driver's error or 0, and a
// value. Memory and events have slots, so that a test can name them. Work is enqueued to one
// stream.
//
//   --fork    a child process does it; this process waits for it
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

enum { slots = 16, gate_bytes = 4096, most_hex = 129, most_line = 512 };

static struct driver cu;
static stream on;
static event events[slots];
static struct {
  device_pointer pointer;
  size_t size;
} memory[slots];

struct command {
  const char* name;
  unsigned int slot;
  unsigned long number;  // the second argument, as a number
  const char* text;      // the second argument
  unsigned long more;    // the third argument
};

static void answer(const struct command* command, int result, const char* value) {
  printf("%s %d %s\n", command->name, result, value);
}

static void to_hex(const struct ipc_handle* handle, char* text) {
  for (size_t each = 0; each < sizeof(handle->bytes); ++each) {
    snprintf(text + 2 * each, 3, "%02x", handle->bytes[each]);
  }
}

static struct ipc_handle from_hex(const char* text) {
  struct ipc_handle handle = {{0}};
  for (size_t each = 0; each < sizeof(handle.bytes) && text[2 * each] != '\0'; ++each) {
    unsigned int byte = 0;
    sscanf(text + 2 * each, "%2x", &byte);
    handle.bytes[each] = (unsigned char)byte;
  }
  return handle;
}

static int fill(const struct command* command) {
  const size_t words = memory[command->slot].size / 4;
  return cu.cuMemsetD32Async(
      memory[command->slot].pointer, (unsigned int)command->number, words, on);
}

// The number of words that are not the given one.
static void check(const struct command* command) {
  const size_t size = memory[command->slot].size;
  unsigned int* const copy = malloc(size);
  int result = cu.cuMemcpyDtoH(copy, memory[command->slot].pointer, size);
  size_t wrong = 0;
  for (size_t each = 0; result == 0 && each < size / 4; ++each) {
    wrong += copy[each] != (unsigned int)command->number;
  }
  free(copy);
  char value[32];
  snprintf(value, sizeof(value), "%zu", wrong);
  answer(command, result, value);
}

// The stream waits until another process stores 1 in the first word of this file.
static int block(const char* path) {
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  void* const page = mmap(NULL, gate_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || page == MAP_FAILED) {
    return -1;
  }
  close(fd);
  device_pointer address = 0;
  int result = cu.cuMemHostRegister(page, gate_bytes, 0);
  if (result == 0) {
    result = cu.cuMemHostGetDevicePointer(&address, page, 0);
  }
  return result != 0 ? result : cu.cuStreamWaitValue64(on, address, 1, stream_wait_geq);
}

// Opens and closes the handle again and again; the last result.
static int cycle_memory(const struct command* command) {
  const struct ipc_handle handle = from_hex(command->text);
  int result = 0;
  for (unsigned long each = 0; result == 0 && each < command->more; ++each) {
    device_pointer pointer = 0;
    result = cu.cuIpcOpenMemHandle(&pointer, handle, ipc_flag_lazy_peer_access);
    if (result == 0) {
      result = cu.cuIpcCloseMemHandle(pointer);
    }
  }
  return result;
}

static int cycle_event(const struct command* command) {
  const struct ipc_handle handle = from_hex(command->text);
  int result = 0;
  for (unsigned long each = 0; result == 0 && each < command->more; ++each) {
    event opened = NULL;
    result = cu.cuIpcOpenEventHandle(&opened, handle);
    if (result == 0) {
      result = cu.cuEventDestroy(opened);
    }
  }
  return result;
}

// Handles that no driver made: fewer results other than 0 than given is an error.
static int open_random(const struct command* command) {
  const struct ipc_handle given = from_hex(command->text);
  srand(1);
  unsigned long refused = 0;
  for (unsigned long each = 0; each < command->more; ++each) {
    struct ipc_handle handle = given;
    // Every second one keeps its end, which a library may look at.
    const size_t changed = each % 2 == 0 ? sizeof(handle.bytes) : 48;
    for (size_t at = 0; at < changed; ++at) {
      handle.bytes[at] = (unsigned char)rand();
    }
    device_pointer pointer = 0;
    event opened = NULL;
    refused += cu.cuIpcOpenMemHandle(&pointer, handle, ipc_flag_lazy_peer_access) != 0;
    refused += cu.cuIpcOpenEventHandle(&opened, handle) != 0 || cu.cuEventDestroy(opened) == 0;
  }
  return refused == 2 * command->more ? 0 : -1;
}

// The results of a record in a capture, and of the end of the capture.
static void capture_record(const struct command* command) {
  graph captured = NULL;
  int result = cu.cuStreamBeginCapture(on, capture_relaxed);
  int ended = -1;
  if (result == 0) {
    result = cu.cuEventRecord(events[command->slot], on);
    ended = cu.cuStreamEndCapture(on, &captured);
  }
  char value[32];
  snprintf(value, sizeof(value), "%d", ended);
  answer(command, result, value);
}

static void count_descriptors(const struct command* command) {
  int count = 0;
  DIR* const listing = opendir("/proc/self/fd");
  while (listing != NULL && readdir(listing) != NULL) {
    ++count;
  }
  closedir(listing);
  char value[32];
  snprintf(value, sizeof(value), "%d", count);
  answer(command, 0, value);
}

static void count_mappings(const struct command* command) {
  int count = 0;
  FILE* const list = fopen("/proc/self/maps", "re");
  char line[most_line];
  // Arenas of the C library's allocator come and go.
  while (list != NULL && fgets(line, sizeof(line), list) != NULL) {
    count += strchr(line, '/') != NULL;
  }
  fclose(list);
  char value[32];
  snprintf(value, sizeof(value), "%d", count);
  answer(command, 0, value);
}

static void get_handle(const struct command* command, bool of_event) {
  struct ipc_handle handle = {{0}};
  char hex[most_hex] = "";
  const int result = of_event ? cu.cuIpcGetEventHandle(&handle, events[command->slot])
                              : cu.cuIpcGetMemHandle(&handle, memory[command->slot].pointer);
  to_hex(&handle, hex);
  answer(command, result, hex);
}

static int open_memory(const struct command* command) {
  memory[command->slot].size = command->more;
  return cu.cuIpcOpenMemHandle(
      &memory[command->slot].pointer, from_hex(command->text), ipc_flag_lazy_peer_access);
}

static int allocate(const struct command* command) {
  memory[command->slot].size = command->number;
  return cu.cuMemAlloc(&memory[command->slot].pointer, command->number);
}

static int copy(const struct command* command) {
  return cu.cuMemcpyDtoDAsync(memory[command->slot].pointer,
                              memory[command->number % slots].pointer,
                              memory[command->slot].size,
                              on);
}

static int create_event(const struct command* command) {
  return cu.cuEventCreate(&events[command->slot],
                          event_flag_interprocess | event_flag_disable_timing);
}

// Whether the command is one that answers by itself.
static bool run_with_value(const struct command* command) {
  if (strcmp(command->name, "check") == 0) {
    check(command);
  } else if (strcmp(command->name, "handle") == 0) {
    get_handle(command, false);
  } else if (strcmp(command->name, "event-handle") == 0) {
    get_handle(command, true);
  } else if (strcmp(command->name, "capture-record") == 0) {
    capture_record(command);
  } else if (strcmp(command->name, "descriptors") == 0) {
    count_descriptors(command);
  } else if (strcmp(command->name, "mappings") == 0) {
    count_mappings(command);
  } else if (strcmp(command->name, "pid") == 0) {
    answer(command, getpid(), "");
  } else {
    return false;
  }
  return true;
}

static int run(const struct command* command) {
  const char* const name = command->name;
  event* const which = &events[command->slot];
  if (strcmp(name, "alloc") == 0) {
    return allocate(command);
  }
  if (strcmp(name, "free") == 0) {
    return cu.cuMemFree(memory[command->slot].pointer);
  }
  if (strcmp(name, "fill") == 0) {
    return fill(command);
  }
  if (strcmp(name, "copy") == 0) {
    return copy(command);
  }
  if (strcmp(name, "open") == 0) {
    return open_memory(command);
  }
  if (strcmp(name, "close") == 0) {
    return cu.cuIpcCloseMemHandle(memory[command->slot].pointer);
  }
  if (strcmp(name, "cycle") == 0) {
    return cycle_memory(command);
  }
  if (strcmp(name, "cycle-event") == 0) {
    return cycle_event(command);
  }
  if (strcmp(name, "open-random") == 0) {
    return open_random(command);
  }
  if (strcmp(name, "event") == 0) {
    return create_event(command);
  }
  if (strcmp(name, "event-open") == 0) {
    return cu.cuIpcOpenEventHandle(which, from_hex(command->text));
  }
  if (strcmp(name, "event-destroy") == 0) {
    return cu.cuEventDestroy(*which);
  }
  if (strcmp(name, "record") == 0) {
    return cu.cuEventRecord(*which, on);
  }
  if (strcmp(name, "record-flags") == 0) {
    return cu.cuEventRecordWithFlags(*which, on, 0);
  }
  if (strcmp(name, "wait") == 0) {
    return cu.cuStreamWaitEvent(on, *which, 0);
  }
  if (strcmp(name, "query") == 0) {
    return cu.cuEventQuery(*which);
  }
  if (strcmp(name, "event-sync") == 0) {
    return cu.cuEventSynchronize(*which);
  }
  if (strcmp(name, "block") == 0) {
    return block(command->text);
  }
  if (strcmp(name, "sync") == 0) {
    return cu.cuStreamSynchronize(on);
  }
  if (strcmp(name, "stream-query") == 0) {
    return cu.cuStreamQuery(on);
  }
  if (strcmp(name, "exec") == 0) {
    execl("/proc/self/exe", "program", (char*)NULL);
  }
  return -1;
}

static int start(void) {
  int device = 0;
  void* context = NULL;
  if (!reach_driver(&cu)) {
    return -1;
  }
  int result = cu.cuInit(0);
  result = result != 0 ? result : cu.cuDeviceGet(&device, 0);
  result = result != 0 ? result : cu.cuDevicePrimaryCtxRetain(&context, device);
  result = result != 0 ? result : cu.cuCtxSetCurrent(context);
  return result != 0 ? result : cu.cuStreamCreate(&on, stream_flag_non_blocking);
}

static int serve(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  const int result = start();
  printf("started %d\n", result);
  char line[most_line];
  while (result == 0 && fgets(line, sizeof(line), stdin) != NULL) {
    char name[32] = "";
    char text[256] = "";
    struct command command = {.name = name, .text = text};
    if (sscanf(line, "%31s %u %255s %lu", name, &command.slot, text, &command.more) < 1) {
      continue;
    }
    command.slot %= slots;
    command.number = strtoul(text, NULL, 10);
    if (strcmp(name, "exit") == 0) {
      break;
    }
    if (!run_with_value(&command)) {
      answer(&command, run(&command), "");
    }
  }
  return result == 0 ? 0 : 1;
}

// load_module.c runs it as a module.
#ifdef MODULE
#define main program_main
__attribute__((visibility("default")))
#endif
int main(int argc, char** argv);

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--fork") == 0) {
    const pid_t child = fork();
    if (child > 0) {
      int status = 0;
      waitpid(child, &status, 0);
      return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
  }
  return serve();
}
