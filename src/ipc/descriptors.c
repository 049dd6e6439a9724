// SPDX-License-Identifier: Apache-2.0
// Descriptors of memory that other processes fetch by PID and number: each gets a number that is
// unique in the domain, and is registered under it.
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/definitions.h"
#include "ipc/domain.h"
#include "ipc/entry.h"
#include "ipc/hooks.h"
#include "ipc/numbers.h"
#include "ipc/settings.h"

enum {
  most_attempts = 16,
  swept_numbers = 64,  // looked at with each export
};

// The numbers are the process's own, so a child created by fork or vfork does not end
// registrations.
static atomic_int owner_pid = 0;
static atomic_int first_number = 0;
static _Atomic(struct gpushm_descriptor*) registrations[ipc_most_numbers];

static int raw_close(int fd) {
  typedef int (*close_function)(int);
  return ((close_function)ipc_next_of(ipc_entry_close))(fd);
}

// Resolves `close` before the program has threads, signal handlers and children.
__attribute__((constructor)) static void prepare(void) {
  raw_close(-1);
}

static void end_registration(int fd) {
  const size_t index = (size_t)(fd - atomic_load(&first_number));
  struct gpushm_descriptor* const ended = atomic_exchange(&registrations[index], NULL);
  if (ended != NULL) {
    ipc_log("close: descriptor %d is no longer registered", fd);
    ipc_unregister(ended);
  }
}

static bool is_registered(int fd) {
  const int first = atomic_load_explicit(&first_number, memory_order_relaxed);
  return first != 0 && fd >= first && fd - first < ipc_most_numbers &&
         atomic_load_explicit(&registrations[fd - first], memory_order_relaxed) != NULL;
}

GPUSHM_IPC_EXPORT int close(int fd) {
  const bool was_registered = is_registered(fd);
  const int result = raw_close(fd);
  if (was_registered && getpid() == atomic_load(&owner_pid)) {
    const int kept = errno;
    end_registration(fd);
    errno = kept;
  }
  return result;
}

// Ends registrations of numbers that were closed in another way (dup2, close_range).
static void sweep(void) {
  static atomic_uint next = 0;
  for (int each = 0; each < swept_numbers; ++each) {
    const int fd =
        atomic_load(&first_number) + (int)(atomic_fetch_add(&next, 1) % ipc_most_numbers);
    if (is_registered(fd) && fcntl(fd, F_GETFD) < 0) {
      end_registration(fd);
    }
  }
}

// Before the first export of a process, also of a forked one. Returns false if the limits leave no
// numbers.
static bool start_numbers(const struct rlimit* limit) {
  const struct ipc_numbers numbers = ipc_choose_numbers(limit->rlim_cur, limit->rlim_max);
  if (numbers.first <= STDERR_FILENO || numbers.count == 0) {
    return false;
  }
  if (atomic_load(&owner_pid) != 0) {  // its parent's
    for (int each = 0; each < ipc_most_numbers; ++each) {
      atomic_store_explicit(&registrations[each], NULL, memory_order_relaxed);
    }
  }
  atomic_store(&first_number, (int)numbers.first);
  atomic_store(&owner_pid, getpid());
  return true;
}

// Duplicates `fd` with `number`; -1 if that is in use.
static int duplicate(int fd, int number, int command, const struct rlimit* limit) {
  struct rlimit raised = *limit;
  const bool raises = (rlim_t)number >= limit->rlim_cur;
  raised.rlim_cur = limit->rlim_max;
  if (raises && setrlimit(RLIMIT_NOFILE, &raised) != 0) {
    return -1;
  }
  const int created = fcntl(fd, command, number);
  if (raises) {
    setrlimit(RLIMIT_NOFILE, limit);
  }
  if (created >= 0 && created != number) {
    raw_close(created);
    return -1;
  }
  return created;
}

// Returns the descriptor under its new number, or `fd` if it keeps its own.
static int give_number(int fd) {
  if (!ipc_has_domain()) {
    ipc_log("cuMemExportToShareableHandle: no domain, descriptor %d keeps its number", fd);
    return fd;
  }
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
      (atomic_load(&owner_pid) != getpid() && !start_numbers(&limit))) {
    return fd;
  }
  const int first = atomic_load(&first_number);
  if (limit.rlim_max <= (rlim_t)first) {
    return fd;
  }
  const rlim_t left = limit.rlim_max - (rlim_t)first;
  const rlim_t count = left < ipc_most_numbers ? left : ipc_most_numbers;
  sweep();
  const int flags = fcntl(fd, F_GETFD);
  const int command = flags >= 0 && (flags & FD_CLOEXEC) == 0 ? F_DUPFD : F_DUPFD_CLOEXEC;
  for (int attempt = 0; attempt < most_attempts; ++attempt) {
    const int number = first + (int)(ipc_random() % count);
    const int created = duplicate(fd, number, command, &limit);
    if (created < 0) {
      continue;
    }
    struct gpushm_descriptor* registration = NULL;
    uint32_t chosen = 0;
    const enum ipc_registered result =
        ipc_register(created, (uint32_t)number, 0, &registration, &chosen);
    if (result == ipc_registered) {
      atomic_store(&registrations[number - first], registration);
      raw_close(fd);
      ipc_log("cuMemExportToShareableHandle: descriptor %d is now %d", fd, number);
      return created;
    }
    raw_close(created);
    if (result == ipc_not_registered) {
      return fd;
    }
  }
  static atomic_bool was_said = false;
  ipc_say_once(
      &was_said,
      "no number for an exported descriptor in %d attempts: raise the hard limit of open files "
      "(RLIMIT_NOFILE)",
      most_attempts);
  return fd;
}

cu_result cuMemExportToShareableHandle(void* shareable,
                                       unsigned long long allocation,
                                       int type,
                                       unsigned long long flags) {
  typedef cu_result (*export_function)(void*, unsigned long long, int, unsigned long long);
  const export_function real = (export_function)ipc_real(ipc_hook_cuMemExportToShareableHandle);
  if (real == NULL) {
    return cu_error_not_found;
  }
  const cu_result result = real(shareable, allocation, type, flags);
  enum { posix_file_descriptor = 1 };  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
  if (result == cu_success && type == posix_file_descriptor && ipc_is_on()) {
    int* const fd = shareable;
    *fd = give_number(*fd);
  }
  return result;
}

// ---- The importer's side ----

static long next_syscall(long number, long first, long second, long third) {
  typedef long (*syscall_function)(long, ...);
  return ((syscall_function)ipc_next_of(ipc_entry_syscall))(number, first, second, third);
}

// Keeps errno, which is the refused call's.
static bool serves_importers(void) {
  const int kept = errno;
  const bool result = ipc_is_on() && ipc_has_domain() && ipc_driver_definition("cuInit") != NULL;
  errno = kept;
  return result;
}

// Where the kernel knows no such process, a descriptor that looks like that of one that has ended:
// poll reports it as readable.
static long open_pidfd(long pid, long flags) {
  const long result = next_syscall(SYS_pidfd_open, pid, flags, 0);
  if (result >= 0 || errno == EINVAL || errno == EMFILE || errno == ENFILE || !serves_importers()) {
    return result;
  }
  const int kept = errno;
  const int placeholder = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ipc_log("pidfd_open: PID %ld is of another namespace: %d", pid, placeholder);
  errno = kept;
  return placeholder;
}

// What the kernel answers wins: a descriptor of a process of this namespace.
static long get_descriptor(long pidfd, long number, long flags) {
  const long result = next_syscall(SYS_pidfd_getfd, pidfd, number, flags);
  if (result >= 0 || flags != 0 || number <= 0 || number >= (long)IPC_NUMBER_END ||
      errno == EMFILE || errno == ENFILE || !serves_importers()) {
    return result;
  }
  const int kept = errno;
  const int fd = ipc_resolve((uint32_t)number, 0);
  ipc_log("pidfd_getfd: number %ld from the domain's broker: %d", number, fd);
  errno = kept;
  return fd;
}

// Called by entry.S, for these two calls only.
long ipc_replaced_syscall(long number, long first, long second, long third);
long ipc_replaced_syscall(long number, long first, long second, long third) {
  return number == SYS_pidfd_open ? open_pidfd(first, second)
                                  : get_descriptor(first, second, third);
}

// Functions of the C library from 2.36 on.
GPUSHM_IPC_EXPORT int pidfd_open(pid_t pid, unsigned int flags);
GPUSHM_IPC_EXPORT int pidfd_open(pid_t pid, unsigned int flags) {
  return (int)open_pidfd(pid, (long)flags);
}

GPUSHM_IPC_EXPORT int pidfd_getfd(int pidfd, int number, unsigned int flags);
GPUSHM_IPC_EXPORT int pidfd_getfd(int pidfd, int number, unsigned int flags) {
  return (int)get_descriptor(pidfd, number, (long)flags);
}
