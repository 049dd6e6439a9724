// SPDX-License-Identifier: Apache-2.0
#include "ipc/domain.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpushm/descriptor.h"
#include "gpushm/gpushm.h"
#include "ipc/definitions.h"
#include "ipc/hooks.h"
#include "ipc/settings.h"

enum {
  connect_timeout_ms = 1000,
  request_limit_ms = 5000,
  retry_after_s = 1,  // after a broker could not be reached
};

static const char domains[] = "/run/gpushm/d";

// libgpushm's functions; found once, never unloaded.
static struct {
  __typeof__(gpushm_client_connect)* connect;
  __typeof__(gpushm_last_error)* last_error;
  __typeof__(gpushm_error_message)* error_message;
  __typeof__(gpushm_client_register_descriptor)* register_descriptor;
  __typeof__(gpushm_descriptor_number)* number;
  __typeof__(gpushm_descriptor_close)* close;
  __typeof__(gpushm_client_resolve_descriptor)* resolve;
} library;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
// Guarded by `mutex`.
static gpushm_client* client = NULL;
static time_t next_attempt = 0;
static bool is_loaded = false;

// Writes PLACE/NAME and `last`, unless that is longer than a socket's path may be.
static bool join(char* path, size_t size, const char* place, const char* name, const char* last) {
  const int used = snprintf(path, size, "%s/%s%s", place, name, last);
  return used > 0 && (size_t)used < size;
}

// Whether a directory has a domain; with `needs_socket`, one whose broker has not ended: that
// leaves its directories.
static bool has_domain_in(const char* place, bool needs_socket) {
  DIR* const listing = opendir(place);
  bool result = false;
  for (const struct dirent* entry = NULL;
       listing != NULL && !result && (entry = readdir(listing)) != NULL;) {
    char path[GPUSHM_MAX_SOCKET_PATH_BYTES + 1];
    result = entry->d_name[0] != '.' &&
             (!needs_socket || (join(path, sizeof(path), place, entry->d_name, "/socket") &&
                                access(path, F_OK) == 0));
  }
  if (listing != NULL) {
    closedir(listing);
  }
  return result;
}

static const char* environment(const char* name) {
  const char* const text = getenv(name);
  return text == NULL || *text == '\0' ? NULL : text;
}

// Where clients find brokers of this user (base/files/domain_places.hpp). libgpushm chooses one of
// them, and refuses directories that others can write to.
static bool has_user_domain(void) {
  char path[GPUSHM_MAX_SOCKET_PATH_BYTES + 1];
  char own[32];
  snprintf(own, sizeof(own), "gpushm-%u", (unsigned)geteuid());
  const char* const uid = own + strlen("gpushm-");
  const char* const runtime = environment("XDG_RUNTIME_DIR");
  return (runtime != NULL && join(path, sizeof(path), runtime, "gpushm/d", "") &&
          has_domain_in(path, true)) ||
         (join(path, sizeof(path), "/run/user", uid, "/gpushm/d") && has_domain_in(path, true)) ||
         (join(path, sizeof(path), "/tmp", own, "/d") && has_domain_in(path, true));
}

bool ipc_has_domain(void) {
  // Mounts do not change while a container runs; without a mount the next call looks again.
  static atomic_bool is_known = false;
  if (!atomic_load_explicit(&is_known, memory_order_relaxed) &&
      (environment("GPUSHM_IPC_DOMAIN") != NULL || environment("GPUSHM_SOCKET") != NULL ||
       has_domain_in(domains, false) || has_user_domain())) {
    atomic_store_explicit(&is_known, true, memory_order_relaxed);
  }
  return atomic_load_explicit(&is_known, memory_order_relaxed);
}

// A forked child cannot use its parent's connection, and another thread may have held the mutex.
static void start_again(void) {
  static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  mutex = fresh;
  client = NULL;
  next_attempt = 0;
}

__attribute__((constructor)) static void prepare_forks(void) {
  pthread_atfork(NULL, NULL, start_again);
}

static void say_unusable(const char* cause) {
  static atomic_bool was_said = false;
  ipc_say_once(&was_said,
               "no use of the domain: %s; events and descriptors do not reach other containers",
               cause);
}

static bool load(void) {
  if (is_loaded) {
    return library.resolve != NULL;
  }
  is_loaded = true;
  // Of libdl.so.2 or, from 2.34 on, of libc.so.6.
  __typeof__(dlopen)* const open_library = ipc_next_definition("dlopen");
  __typeof__(dlsym)* const find = ipc_real_dlsym();
  if (open_library == NULL || find == NULL) {
    say_unusable("this program has no dlopen");
    return false;
  }
  char path[4096];
  char* slash = ipc_own_path(path, sizeof(path)) ? strrchr(path, '/') : NULL;
  void* handle = NULL;
  static const char name[] = "libgpushm.so.1";
  if (slash != NULL && (size_t)(slash + 1 - path) + sizeof(name) <= sizeof(path)) {
    strcpy(slash + 1, name);
    handle = open_library(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  }
  if (handle == NULL) {
    handle = open_library(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  }
  if (handle == NULL) {
    say_unusable("libgpushm.so.1 cannot be loaded from this library's folder");
    return false;
  }
  library.connect = find(handle, "gpushm_client_connect");
  library.last_error = find(handle, "gpushm_last_error");
  library.error_message = find(handle, "gpushm_error_message");
  library.register_descriptor = find(handle, "gpushm_client_register_descriptor");
  library.number = find(handle, "gpushm_descriptor_number");
  library.close = find(handle, "gpushm_descriptor_close");
  library.resolve = find(handle, "gpushm_client_resolve_descriptor");
  if (library.connect == NULL || library.last_error == NULL || library.error_message == NULL ||
      library.register_descriptor == NULL || library.number == NULL || library.close == NULL ||
      library.resolve == NULL) {
    library.resolve = NULL;
    say_unusable("libgpushm.so.1 is of a version without registered descriptors");
  }
  return library.resolve != NULL;
}

static const char* last_message(void) {
  return library.error_message(library.last_error()).data;
}

// The connection, or NULL. The library connects again by itself when the broker was restarted.
// Empty: as `gpushm_client_connect` finds it. The same choice as that of process_client.cpp; a
// wrong name is not a reason to use another domain.
static bool choose_socket(char* path, size_t size) {
  path[0] = '\0';
  const char* const domain = environment("GPUSHM_IPC_DOMAIN");
  if (domain == NULL) {
    return true;
  }
  const int used = snprintf(path, size, "%s/%s/socket", domains, domain);
  if (strchr(domain, '/') != NULL || domain[0] == '.' || used < 0 || (size_t)used >= size) {
    say_unusable("GPUSHM_IPC_DOMAIN is not the name of a domain (a name in /run/gpushm/d)");
    return false;
  }
  return true;
}

static gpushm_client* connected(void) {
  if (!ipc_has_domain()) {
    return NULL;
  }
  pthread_mutex_lock(&mutex);
  struct timespec now = {0};
  clock_gettime(CLOCK_MONOTONIC, &now);
  char path[GPUSHM_MAX_SOCKET_PATH_BYTES + 1];
  if (client == NULL && now.tv_sec >= next_attempt && load() && choose_socket(path, sizeof(path))) {
    gpushm_connect_options options = GPUSHM_INIT(options);
    options.socket_path = gpushm_text(path);
    options.request_limit_ms = request_limit_ms;
    options.has_cache_max_bytes = true;
    options.has_cache_max_entries = true;
    if (library.connect(&options, connect_timeout_ms, &client) != GPUSHM_OK) {
      client = NULL;
      next_attempt = now.tv_sec + retry_after_s;
      say_unusable(last_message());
    }
  }
  gpushm_client* const result = client;
  pthread_mutex_unlock(&mutex);
  return result;
}

enum ipc_registered ipc_register(int fd,
                                 uint32_t number,
                                 uint64_t tag,
                                 struct gpushm_descriptor** registration,
                                 uint32_t* chosen) {
  gpushm_client* const domain = connected();
  if (domain == NULL) {
    return ipc_not_registered;
  }
  const gpushm_errc result = library.register_descriptor(domain, fd, number, tag, registration);
  if (result == GPUSHM_OK) {
    *chosen = library.number(*registration);
    return ipc_registered;
  }
  // The second: by a process that has died and may still write.
  if (result == GPUSHM_ERRC_ALREADY_EXISTS || result == GPUSHM_ERRC_WRITER_ENDING) {
    return ipc_number_is_taken;
  }
  static atomic_bool was_said = false;
  ipc_say_once(&was_said, "%s", last_message());
  return ipc_not_registered;
}

void ipc_unregister(struct gpushm_descriptor* registration) {
  library.close(registration);
}

int ipc_resolve(uint32_t number, uint64_t tag) {
  gpushm_client* const domain = connected();
  int fd = -1;
  if (domain != NULL && library.resolve(domain, number, tag, &fd) != GPUSHM_OK) {
    ipc_log("%s", last_message());
    return -1;
  }
  return fd;
}
