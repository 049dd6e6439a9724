// SPDX-License-Identifier: Apache-2.0
// Events: the driver's own, through its file of events, which the exporter registers with a
// domain's broker. Without a domain, and only with GPUSHM_IPC_EVENTS=complete, records that return
// after their work.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ipc/definitions.h"
#include "ipc/domain.h"
#include "ipc/event_set.h"
#include "ipc/hooks.h"
#include "ipc/settings.h"

typedef cu_result (*get_function)(ipc_handle*, void*);
typedef cu_result (*open_function)(void**, ipc_handle);
typedef cu_result (*record_function)(void*, void*);
typedef cu_result (*record_with_flags_function)(void*, void*, unsigned int);
typedef cu_result (*event_function)(void*);
typedef cu_result (*add_node_function)(void**, void*, void* const*, unsigned long, void*);
typedef cu_result (*set_node_function)(void*, void*);
typedef cu_result (*set_launch_node_function)(void*, void*, void*);
typedef int (*shm_open_function)(const char*, int, mode_t);

// ---- The files of events that this process has created ----

enum { most_files = 64 };  // 4,096 events each

struct event_file {
  uint64_t number;  // as the driver counts them
  int fd;           // a duplicate of the driver's
  struct gpushm_descriptor* registration;
  uint32_t registered_number;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
// Guarded by `mutex`.
static struct event_file files[most_files];
static size_t file_count = 0;

// A forked child has no events; another thread may have held the mutex.
static void forget_files(void) {
  static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  mutex = fresh;
  for (size_t each = 0; each < file_count; ++each) {
    close(files[each].fd);
  }
  file_count = 0;
}

__attribute__((constructor)) static void prepare_forks(void) {
  pthread_atfork(NULL, NULL, forget_files);
}

static void keep_file(uint64_t number, int fd) {
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) {
    return;
  }
  pthread_mutex_lock(&mutex);
  const bool fits = file_count < most_files;
  if (fits) {
    files[file_count++] = (struct event_file){.number = number, .fd = own};
  }
  pthread_mutex_unlock(&mutex);
  if (!fits) {
    close(own);
  }
}

// The number under which the domain's broker has this process's file; 0 if it has not.
static uint32_t register_file(uint64_t number) {
  uint32_t registered = 0;
  pthread_mutex_lock(&mutex);
  for (size_t each = 0; each < file_count; ++each) {
    struct event_file* const file = &files[each];
    if (file->number == number) {
      if (file->registered_number == 0 &&
          ipc_register(file->fd, 0, ipc_process_tag(), &file->registration, &registered) ==
              ipc_registered) {
        file->registered_number = registered;
      }
      registered = file->registered_number;
    }
  }
  pthread_mutex_unlock(&mutex);
  return registered;
}

// The tag of the handle that this thread gives the driver, which then opens the file.
static __thread uint64_t opened_tag = 0;

GPUSHM_IPC_EXPORT int shm_open(const char* name, int flags, mode_t mode) {
  static _Atomic(void*) next = NULL;
  void* known = atomic_load_explicit(&next, memory_order_acquire);
  if (known == NULL) {
    known = ipc_next_definition("shm_open");  // of librt before 2.34
    atomic_store_explicit(&next, known, memory_order_release);
  }
  const shm_open_function real = (shm_open_function)known;
  uint32_t pid = 0;
  uint64_t file = 0;
  const bool is_event_file = ipc_is_on() && ipc_read_event_file_name(name, &pid, &file);
  const uint32_t number = is_event_file && opened_tag != 0 ? ipc_number_of_pid(pid) : 0;
  if (number != 0) {
    const int fd = ipc_resolve(number, opened_tag);
    errno = fd < 0 ? ENOENT : errno;
    return fd;
  }
  if (real == NULL) {
    errno = ENOSYS;
    return -1;
  }
  const int fd = real(name, flags, mode);
  if (fd >= 0 && is_event_file && (flags & O_CREAT) != 0 && pid == (uint32_t)getpid() &&
      ipc_has_domain()) {
    keep_file(file, fd);
  }
  return fd;
}

// ---- Events that are completed by the CPU ----

// Not by default: records would wait in programs that share the driver's own events already, and
// one that lets its work continue only after the record would never get there.
static bool completes_events(void) {
  const char* const text = getenv("GPUSHM_IPC_EVENTS");
  return text != NULL && strcmp(text, "complete") == 0;
}

// Waits until an event's work has completed; the program may be what must let it continue, so not
// without a limit.
static cu_result wait_for(void* event) {
  enum { short_waits = 100, wait_limit_s = 30 };
  const event_function query = (event_function)ipc_driver_definition("cuEventQuery");
  if (query == NULL) {
    return cu_error_not_found;
  }
  struct timespec begin = {0};
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int round = 0;; ++round) {
    const cu_result result = query(event);
    if (result != cu_error_not_ready) {
      return result;
    }
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec - begin.tv_sec > wait_limit_s) {
      static atomic_bool was_said = false;
      ipc_say_once(
          &was_said,
          "work before an event that another process has did not complete within %d s, and "
          "there is no domain in which that process could wait for it: mount one "
          "(gpushm.dev/ipc) in both containers",
          wait_limit_s);
      return cu_error_not_supported;
    }
    const struct timespec pause = {.tv_nsec = round < short_waits ? 2000 : 100000};
    nanosleep(&pause, NULL);
  }
}

static cu_result refuse_capture(const char* call) {
  static atomic_bool was_said = false;
  ipc_say_once(
      &was_said,
      "%s of an event that another process has is refused in graphs and captures: mount a "
      "domain (gpushm.dev/ipc) in both containers, so that events need not be completed by "
      "the CPU",
      call);
  return cu_error_not_supported;
}

static bool is_capturing(void* stream, bool is_per_thread) {
  cu_result (*const real)(void*, int*) = (cu_result(*)(void*, int*))ipc_driver_definition(
      is_per_thread ? "cuStreamIsCapturing_ptsz" : "cuStreamIsCapturing");
  int status = 0;
  return real == NULL || real(stream, &status) != cu_success || status != 0;
}

static cu_result complete(void* event, cu_result recorded) {
  return recorded == cu_success ? wait_for(event) : recorded;
}

static cu_result record(enum ipc_hook hook, void* event, void* stream, bool is_per_thread) {
  const record_function real = (record_function)ipc_real(hook);
  if (real == NULL) {
    return cu_error_not_found;
  }
  if (!ipc_has_event(event)) {
    return real(event, stream);
  }
  return is_capturing(stream, is_per_thread) ? refuse_capture("cuEventRecord")
                                             : complete(event, real(event, stream));
}

static cu_result record_with_flags(
    enum ipc_hook hook, void* event, void* stream, unsigned int flags, bool is_per_thread) {
  const record_with_flags_function real = (record_with_flags_function)ipc_real(hook);
  if (real == NULL) {
    return cu_error_not_found;
  }
  if (!ipc_has_event(event)) {
    return real(event, stream, flags);
  }
  return is_capturing(stream, is_per_thread) ? refuse_capture("cuEventRecordWithFlags")
                                             : complete(event, real(event, stream, flags));
}

cu_result cuEventRecord(void* event, void* stream) {
  return record(ipc_hook_cuEventRecord, event, stream, false);
}

cu_result cuEventRecord_ptsz(void* event, void* stream) {
  return record(ipc_hook_cuEventRecord_ptsz, event, stream, true);
}

cu_result cuEventRecordWithFlags(void* event, void* stream, unsigned int flags) {
  return record_with_flags(ipc_hook_cuEventRecordWithFlags, event, stream, flags, false);
}

cu_result cuEventRecordWithFlags_ptsz(void* event, void* stream, unsigned int flags) {
  return record_with_flags(ipc_hook_cuEventRecordWithFlags_ptsz, event, stream, flags, true);
}

cu_result cuGraphAddEventRecordNode(
    void** node, void* graph, void* const* dependencies, unsigned long count, void* event) {
  const add_node_function real = (add_node_function)ipc_real(ipc_hook_cuGraphAddEventRecordNode);
  if (real == NULL) {
    return cu_error_not_found;
  }
  return ipc_has_event(event) ? refuse_capture("cuGraphAddEventRecordNode")
                              : real(node, graph, dependencies, count, event);
}

cu_result cuGraphEventRecordNodeSetEvent(void* node, void* event) {
  const set_node_function real =
      (set_node_function)ipc_real(ipc_hook_cuGraphEventRecordNodeSetEvent);
  if (real == NULL) {
    return cu_error_not_found;
  }
  return ipc_has_event(event) ? refuse_capture("cuGraphEventRecordNodeSetEvent")
                              : real(node, event);
}

cu_result cuGraphExecEventRecordNodeSetEvent(void* graph, void* node, void* event) {
  const set_launch_node_function real =
      (set_launch_node_function)ipc_real(ipc_hook_cuGraphExecEventRecordNodeSetEvent);
  if (real == NULL) {
    return cu_error_not_found;
  }
  return ipc_has_event(event) ? refuse_capture("cuGraphExecEventRecordNodeSetEvent")
                              : real(graph, node, event);
}

static cu_result destroy(enum ipc_hook hook, void* event) {
  const event_function real = (event_function)ipc_real(hook);
  if (real == NULL) {
    return cu_error_not_found;
  }
  // Before the driver can give another event the same address.
  ipc_remove_event(event);
  return real(event);
}

cu_result cuEventDestroy(void* event) {
  return destroy(ipc_hook_cuEventDestroy, event);
}

cu_result cuEventDestroy_v2(void* event) {
  return destroy(ipc_hook_cuEventDestroy_v2, event);
}

// ---- Export and import ----

cu_result cuIpcGetEventHandle(ipc_handle* handle, void* event) {
  const get_function real = (get_function)ipc_real(ipc_hook_cuIpcGetEventHandle);
  if (real == NULL) {
    return cu_error_not_found;
  }
  ipc_handle received;
  cu_result result = real(&received, event);
  if (result != cu_success) {
    return result;
  }
  uint64_t file = 0;
  if (ipc_is_on() && ipc_event_file(&received, getpid(), &file)) {
    struct ipc_event_tag tag = {.process = ipc_process_tag()};
    tag.number = register_file(file);
    if (tag.number != 0) {
      tag.way = ipc_event_by_file;
    } else if (completes_events()) {
      tag.way = ipc_event_completed;
      if (!ipc_add_event(event)) {
        return cu_error_not_supported;
      }
      result = wait_for(event);
      if (result != cu_success) {
        ipc_remove_event(event);
        return result;
      }
    }
    if (tag.way != ipc_event_unknown) {
      ipc_tag_event(&received, &tag);
    }
    ipc_log("cuIpcGetEventHandle: %s",
            tag.way == ipc_event_by_file     ? "file registered with the domain's broker"
            : tag.way == ipc_event_completed ? "completed by the CPU, now and at each record"
                                             : "no domain, left as it is");
  } else if (ipc_is_on()) {
    static atomic_bool was_said = false;
    ipc_say_once(&was_said,
                 "this driver's event handles have an unknown layout and are left as they are: "
                 "they open only where both processes share /dev/shm and PIDs");
  }
  *handle = received;
  return cu_success;
}

// An event that has no work, and whose records are completed, as are the exporter's.
static cu_result create_completed(void** event) {
  cu_result (*const create)(void**, unsigned int) =
      (cu_result(*)(void**, unsigned int))ipc_driver_definition("cuEventCreate");
  enum { disable_timing = 2 };  // CU_EVENT_DISABLE_TIMING, which IPC events must have
  void* created = NULL;
  const cu_result result = create == NULL ? cu_error_not_found : create(&created, disable_timing);
  if (result != cu_success) {
    return result;
  }
  if (!ipc_add_event(created)) {
    const event_function real = (event_function)ipc_real(ipc_hook_cuEventDestroy_v2);
    return real == NULL ? cu_error_not_supported : (real(created), cu_error_not_supported);
  }
  *event = created;
  return cu_success;
}

cu_result cuIpcOpenEventHandle(void** event, ipc_handle handle) {
  const open_function real = (open_function)ipc_real(ipc_hook_cuIpcOpenEventHandle);
  if (real == NULL) {
    return cu_error_not_found;
  }
  struct ipc_event_tag tag;
  if (!ipc_is_on() || !ipc_take_event_tag(&handle, &tag) || tag.process == ipc_process_tag()) {
    const cu_result result = real(event, handle);
    if (result != cu_success && ipc_is_on() && tag.process != ipc_process_tag()) {
      static atomic_bool was_said = false;
      ipc_say_once(
          &was_said,
          "an event cannot be opened (%d): its exporter needs this library, and a domain in "
          "common with this process (gpushm.dev/ipc) or GPUSHM_IPC_EVENTS=complete",
          result);
    }
    return result;
  }
  if (tag.way == ipc_event_by_file) {
    ipc_handle by_number = handle;
    ipc_set_event_pid(&by_number, ipc_pid_of_number(tag.number));
    opened_tag = tag.process;
    const cu_result result = real(event, by_number);
    opened_tag = 0;
    ipc_log("cuIpcOpenEventHandle: registered file %u: %d", tag.number, result);
    if (result == cu_success) {
      return result;
    }
  }
  // Where PIDs and /dev/shm are shared, the driver needs nothing.
  const cu_result direct = real(event, handle);
  if (direct == cu_success || tag.way == ipc_event_by_file) {
    ipc_log("cuIpcOpenEventHandle: as it is: %d", direct);
    if (direct != cu_success) {
      static atomic_bool was_said = false;
      ipc_say_once(&was_said,
                   "an event's exporter uses a domain that this process cannot reach: mount the "
                   "same domain (gpushm.dev/ipc) in both containers");
    }
    return direct;
  }
  const cu_result result = create_completed(event);
  ipc_log("cuIpcOpenEventHandle: an event that the exporter completes by the CPU: %d", result);
  return result;
}
