// SPDX-License-Identifier: Apache-2.0
// Compares the replacements of cmake/floor with this machine's glibc, if that has the functions. A
// program for the floor, in C.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// What a glibc before 2.30 runs, which dlsym would not choose here.
#include "thread.c"

extern uint32_t arc4random(void);
extern int close_range(unsigned, unsigned, int);
extern pid_t gettid(void);
extern const char* strerrorname_np(int);
extern const char* strerrordesc_np(int);
extern const char* sigdescr_np(int);
extern long __isoc23_strtol(const char*, char**, int);

#define REQUIRE(condition)                                                      \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

static int constructed = 0;
__attribute__((constructor)) static void construct(int count,
                                                   char** arguments,
                                                   char** environment) {
  constructed += count > 0 && arguments[0] != NULL && environment != NULL;
}

static bool same(const char* a, const char* b) {
  return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static void compare_names(const char* name, const char* (*ours)(int)) {
  const char* (*theirs)(int) = NULL;
  void* const symbol = dlsym(RTLD_DEFAULT, name);
  if (symbol == NULL) {
    return;
  }
  memcpy(&theirs, &symbol, sizeof theirs);
  REQUIRE(theirs != ours);
  for (int number = -1; number < 300; ++number) {
    if (!same(ours(number), theirs(number))) {
      fprintf(stderr, "%s(%d): %s, glibc: %s\n", name, number, ours(number), theirs(number));
      exit(1);
    }
  }
}

static struct timespec after(clockid_t clock, long milliseconds) {
  struct timespec at;
  clock_gettime(clock, &at);
  at.tv_sec += milliseconds / 1000;
  at.tv_nsec += milliseconds % 1000 * 1000000;
  if (at.tv_nsec >= ns_per_s) {
    at.tv_nsec -= ns_per_s;
    at.tv_sec += 1;
  }
  return at;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static bool is_set = false;

static void* set(void* unused) {
  (void)unused;
  pthread_mutex_lock(&mutex);
  is_set = true;
  pthread_cond_signal(&condition);
  pthread_mutex_unlock(&mutex);
  return NULL;
}

static void wait_with(clockwait* wait) {
  struct timespec now;
  is_set = false;
  pthread_mutex_lock(&mutex);
  // Not before its deadline.
  for (int i = 0; i < 2; ++i) {
    const clockid_t clock = i == 0 ? CLOCK_MONOTONIC : CLOCK_REALTIME;
    const struct timespec soon = after(clock, 20);
    int result = 0;
    while (result == 0) {
      result = wait(&condition, &mutex, clock, &soon);
    }
    REQUIRE(result == ETIMEDOUT);
    clock_gettime(clock, &now);
    REQUIRE(compare(&now, &soon) >= 0);
  }
  const struct timespec past = {0, 0};
  REQUIRE(wait(&condition, &mutex, CLOCK_MONOTONIC, &past) == ETIMEDOUT);
  REQUIRE(wait(&condition, &mutex, CLOCK_PROCESS_CPUTIME_ID, &past) == EINVAL);
  // Woken by another thread.
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, set, NULL) == 0);
  const struct timespec late = after(CLOCK_MONOTONIC, 60000);
  while (!is_set) {
    REQUIRE(wait(&condition, &mutex, CLOCK_MONOTONIC, &late) == 0);
  }
  pthread_mutex_unlock(&mutex);
  pthread_join(thread, NULL);
}

static void compare_stat(const char* path) {
  struct stat one;
  struct stat64 two;
  struct stat three;
  struct statx truth;
  REQUIRE(syscall(SYS_statx, AT_FDCWD, path, 0, STATX_BASIC_STATS, &truth) == 0);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  REQUIRE(stat(path, &one) == 0 && stat64(path, &two) == 0 && fstat(fd, &three) == 0);
  REQUIRE(one.st_ino == truth.stx_ino && one.st_mode == truth.stx_mode &&
          (uint64_t)one.st_size == truth.stx_size);
  REQUIRE(two.st_ino == truth.stx_ino && three.st_ino == truth.stx_ino &&
          one.st_nlink == truth.stx_nlink);
  REQUIRE(fstat64(fd, &two) == 0 && fstatat(AT_FDCWD, path, &three, 0) == 0);
  REQUIRE(two.st_ino == truth.stx_ino && three.st_ino == truth.stx_ino &&
          three.st_mtim.tv_sec == truth.stx_mtime.tv_sec);
  close(fd);
}

int main(void) {
  REQUIRE(constructed == 1);
  // Of glibc's own archive: no shared library has it in every version.
  REQUIRE(pthread_atfork(NULL, NULL, NULL) == 0);
  compare_names("strerrorname_np", strerrorname_np);
  compare_names("strerrordesc_np", strerrordesc_np);
  compare_names("sigdescr_np", sigdescr_np);
  REQUIRE(same(strerrorname_np(ENOENT), "ENOENT") && same(sigdescr_np(9), "Killed"));

  wait_with(wait_on_default_clock);
  wait_with(pthread_cond_clockwait);

  compare_stat("/");
  compare_stat("/proc/self/exe");
  struct stat link;
  REQUIRE(lstat("/proc/self/exe", &link) == 0 && S_ISLNK(link.st_mode));
  errno = 0;
  REQUIRE(stat("/does/not/exist", &link) == -1 && errno == ENOENT);
  char fifo[] = "/tmp/floor.XXXXXX";
  REQUIRE(mkdtemp(fifo) != NULL);
  REQUIRE(rmdir(fifo) == 0 && mknod(fifo, S_IFIFO | 0600, 0) == 0 && lstat(fifo, &link) == 0 &&
          S_ISFIFO(link.st_mode));
  REQUIRE(unlink(fifo) == 0);

  REQUIRE(gettid() == getpid());
  const int fd = dup(0);
  const bool is_refused =
      close_range((unsigned)fd, (unsigned)fd, 0) != 0 && (errno == ENOSYS || errno == EPERM);
  REQUIRE(is_refused || (fcntl(fd, F_GETFD) == -1 && errno == EBADF));
  const uint32_t first = arc4random();
  bool is_random = false;
  for (int i = 0; i < 100 && !is_random; ++i) {
    is_random = arc4random() != first;
  }
  REQUIRE(is_random);
  char* end = NULL;
  REQUIRE(__isoc23_strtol("-12x", &end, 10) == -12 && *end == 'x');
  puts("replacements: ok");
  return 0;
}
