// SPDX-License-Identifier: Apache-2.0
#include "ipc/settings.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "ipc/handle.h"

extern char** environ;

enum state { state_unknown, state_on, state_off };

static bool is_set(const char* name, const char* value) {
  const char* const text = getenv(name);
  return text != NULL && strcmp(text, value) == 0;
}

bool ipc_is_on(void) {
  static _Atomic(enum state) state = state_unknown;
  enum state known = atomic_load_explicit(&state, memory_order_relaxed);
  if (known == state_unknown) {
    if (environ == NULL) {
      return false;  // called before the C library has its environment
    }
    known = getauxval(AT_SECURE) != 0 || is_set("GPUSHM_IPC", "0") ? state_off : state_on;
    atomic_store_explicit(&state, known, memory_order_relaxed);
  }
  return known == state_on;
}

__attribute__((format(printf, 1, 0))) static void write_line(const char* format, va_list values) {
  char line[600];
  const int begin = snprintf(line, sizeof(line), "gpushm-ipc[%d]: ", (int)getpid());
  const int size = vsnprintf(line + begin, sizeof(line) - (size_t)begin - 1, format, values);
  if (size < 0) {
    return;
  }
  size_t end = (size_t)begin + (size_t)size;
  end = end < sizeof(line) - 1 ? end : sizeof(line) - 2;
  line[end] = '\n';
  const int kept = errno;
  const ssize_t ignored = write(STDERR_FILENO, line, end + 1);
  (void)ignored;
  errno = kept;
}

void ipc_log(const char* format, ...) {
  static _Atomic(enum state) state = state_unknown;
  enum state known = atomic_load_explicit(&state, memory_order_relaxed);
  if (known == state_unknown) {
    known = is_set("GPUSHM_IPC_LOG", "1") ? state_on : state_off;
    atomic_store_explicit(&state, known, memory_order_relaxed);
  }
  if (known == state_on) {
    va_list values;
    va_start(values, format);
    write_line(format, values);
    va_end(values);
  }
}

void ipc_say_once(atomic_bool* was_said, const char* format, ...) {
  if (!atomic_exchange(was_said, true)) {
    va_list values;
    va_start(values, format);
    write_line(format, values);
    va_end(values);
  }
}

uint64_t ipc_random(void) {
  uint64_t value = 0;
  if (getrandom(&value, sizeof(value), GRND_NONBLOCK) != (ssize_t)sizeof(value)) {
    // Early after the machine's start: time and an address also differ between processes.
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    value = (uint64_t)now.tv_nsec * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)(uintptr_t)&value ^
            (uint64_t)getpid() << 32U;
  }
  return value;
}

static _Atomic(uint64_t) process_tag = 0;

static void forget_tag(void) {
  atomic_store(&process_tag, 0);
}

__attribute__((constructor)) static void prepare_forks(void) {
  pthread_atfork(NULL, NULL, forget_tag);
}

uint64_t ipc_process_tag(void) {
  uint64_t tag = atomic_load(&process_tag);
  if (tag == 0) {
    const uint64_t created = ipc_make_tag(ipc_random());
    tag = atomic_compare_exchange_strong(&process_tag, &tag, created) ? created : tag;
  }
  return tag;
}
