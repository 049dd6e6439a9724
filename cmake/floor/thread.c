// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { ns_per_s = 1000000000 };

typedef int clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

// Positive if `a` is later.
static int compare(const struct timespec* a, const struct timespec* b) {
  if (a->tv_sec != b->tv_sec) {
    return a->tv_sec < b->tv_sec ? -1 : 1;
  }
  return (a->tv_nsec > b->tv_nsec) - (a->tv_nsec < b->tv_nsec);
}

// For a condition variable of the default clock, as std::condition_variable's: waits on that clock,
// as libstdc++ did before glibc 2.30. If that clock has jumped ahead, this returns as if the
// condition had been signalled; callers expect such returns.
static int wait_on_default_clock(pthread_cond_t* condition,
                                 pthread_mutex_t* mutex,
                                 clockid_t clock,
                                 const struct timespec* deadline) {
  if (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME) {
    return EINVAL;
  }
  struct timespec now;
  struct timespec real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  real.tv_sec += deadline->tv_sec - now.tv_sec;
  real.tv_nsec += deadline->tv_nsec - now.tv_nsec;
  if (real.tv_nsec < 0) {
    real.tv_nsec += ns_per_s;
    real.tv_sec -= 1;
  } else if (real.tv_nsec >= ns_per_s) {
    real.tv_nsec -= ns_per_s;
    real.tv_sec += 1;
  }
  const int result = pthread_cond_timedwait(condition, mutex, &real);
  if (result == ETIMEDOUT) {
    clock_gettime(clock, &now);
    return compare(&now, deadline) < 0 ? 0 : ETIMEDOUT;
  }
  return result;
}

// Since glibc 2.30.
int pthread_cond_clockwait(pthread_cond_t* condition,
                           pthread_mutex_t* mutex,
                           clockid_t clock,
                           const struct timespec* deadline) {
  static _Atomic(clockwait*) chosen = NULL;
  clockwait* function = atomic_load_explicit(&chosen, memory_order_acquire);
  if (function == NULL) {
    void* const symbol = dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    if (symbol != NULL) {
      memcpy(&function, &symbol, sizeof function);
    } else {
      function = wait_on_default_clock;
    }
    atomic_store_explicit(&chosen, function, memory_order_release);
  }
  return function(condition, mutex, clock, deadline);
}
