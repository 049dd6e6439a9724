/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered descriptors: file descriptors that processes of a domain fetch by a number, for
 * programs that exchange (PID, descriptor number) and would need pidfd_getfd, which cannot name a
 * process of another PID namespace (docs/unmodified.md). The rules at the top of gpushm/gpushm.h
 * apply. */
#ifndef GPUSHM_DESCRIPTOR_H
#define GPUSHM_DESCRIPTOR_H

#include "gpushm/gpushm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN: this is C */

/* Numbers of registered descriptors are below this, 2^30, and not 0. */
#define GPUSHM_DESCRIPTOR_NUMBERS 1073741824U
/* The largest size of a registered file of a tmpfs. */
#define GPUSHM_MAX_DESCRIPTOR_FILE_BYTES 1048576U

/* The kinds of files that can be registered. */
typedef enum gpushm_descriptor_kind GPUSHM_INT {
  /* memory of a GPU, as exported by the driver: an open file of /dev/nvidiactl */
  GPUSHM_DESCRIPTOR_GPU_MEMORY = 1,
  /* a regular file of a tmpfs, of at most GPUSHM_MAX_DESCRIPTOR_FILE_BYTES: the driver's events */
  GPUSHM_DESCRIPTOR_FILE = 2
} gpushm_descriptor_kind;

/* A registration. Release with gpushm_descriptor_close, which ends it. It also ends with its
 * process, when that can no longer write (docs/sharing.md, "The fence"). In a child created by
 * fork, and after exec, it stays the parent's. */
typedef struct gpushm_descriptor gpushm_descriptor;

/* Registers an open file with the domain's broker. `fd` stays the caller's: the broker, and this
 * process for a broker that is started again, keep duplicates of it until the registration ends.
 * `number`: 1 to GPUSHM_DESCRIPTOR_NUMBERS - 1, or 0 for a random one that is free. `tag`: what
 * gpushm_client_resolve_descriptor must give to get it; 0: nothing. It tells one owner of a number
 * from a later one, and is not a secret: each process of the domain can list and fetch what is
 * registered (docs/threat-model.md). Two round trips to the broker.
 * GPUSHM_ERRC_ALREADY_EXISTS (the number is taken), GPUSHM_ERRC_WRITER_ENDING (by a process that
 * has died and may still write), GPUSHM_ERRC_WRONG_DESCRIPTOR_KIND (not one of the kinds above),
 * GPUSHM_ERRC_INVALID_ARGUMENT (not an open descriptor, the number is too large),
 * GPUSHM_ERRC_UNSUPPORTED_VERSION (the broker is older than this interface), and as
 * gpushm_client_create: a registration is charged as a segment and a descriptor, not as memory. */
GPUSHM_API gpushm_errc gpushm_client_register_descriptor(
    gpushm_client* client, int fd, uint32_t number, uint64_t tag, gpushm_descriptor** registration);
/* 0 for NULL. */
GPUSHM_API uint32_t gpushm_descriptor_number(const gpushm_descriptor* registration);
/* Ends the registration, without waiting for the broker: the number is free when the broker has
 * received it. Descriptors that others have fetched stay theirs. */
GPUSHM_API void gpushm_descriptor_close(gpushm_descriptor* registration);

/* Fetches the file that is registered under a number, as a new descriptor, with FD_CLOEXEC, of the
 * same open file description (it has its owner's access mode and offset). Close it with close(2).
 * Does not wait for a registration; one round trip, nothing is held at the broker afterwards, and
 * nothing is cached. `tag`: 0 accepts any. GPUSHM_ERRC_NO_SUCH_SEGMENT (nothing has this number, or
 * it has another tag), GPUSHM_ERRC_WRITER_ENDING (its process has died),
 * GPUSHM_ERRC_TOO_MANY_DESCRIPTORS (this process has none left), GPUSHM_ERRC_INVALID_ARGUMENT (the
 * number), and as gpushm_client_open. */
GPUSHM_API gpushm_errc gpushm_client_resolve_descriptor(gpushm_client* client,
                                                        uint32_t number,
                                                        uint64_t tag,
                                                        int* fd);

/* A registration, as its process described it. */
typedef struct gpushm_descriptor_info {
  size_t struct_size;
  uint64_t tag;
  uint64_t pid_namespace; /* inode of its /proc/self/ns/pid; 0: unknown */
  int32_t pid;            /* of its process, in that namespace */
  uint32_t number;
  gpushm_descriptor_kind kind;
  uint32_t comm_size;
  char comm[16];       /* the name of its program, at most 15 bytes */
  int32_t creator_pid; /* as the broker sees it; 0: unknown */
  uint32_t creator_uid;
} gpushm_descriptor_info;

/* Describes the file that is registered under a number: fetches and closes it. As
 * gpushm_client_resolve_descriptor. gpushm_client_list shows registrations, as segments with the
 * backend GPUSHM_BACKEND_DESCRIPTOR and the name ".fd/NUMBER", only under a prefix that begins with
 * ".fd/"; the same holds for events. */
GPUSHM_API gpushm_errc gpushm_client_describe_descriptor(gpushm_client* client,
                                                         uint32_t number,
                                                         gpushm_descriptor_info* info);

/* For libraries that open libgpushm.so.1 with dlopen, when pidfd_open or pidfd_getfd has failed: as
 * gpushm_client_resolve_descriptor, with a client of the process, connected at the first call to
 * the domain $GPUSHM_IPC_DOMAIN, else as gpushm_client_connect without a path. Returns 0,
 * or a negative errno and leaves `fd` as it is. `pid` and `pid_namespace` (the inode of
 * /proc/self/ns/pid) are those of the process that registered `number`, as itself sees them; 0
 * accepts any.
 * -ENOENT: nothing is registered under this number. -ESRCH: another process has registered it, or
 * its process has died. -EINVAL: `fd` or `number`. -ECONNREFUSED: there is no broker. -ENOTUNIQ:
 * several domains, and none is chosen. -EMFILE: this process has no descriptor left. -ENOMEM,
 * -ETIMEDOUT, -EACCES, and -EIO for all other errors; gpushm_last_error has the cause. In a forked
 * child the next call connects again. Thread-safe. */
GPUSHM_API int gpushm_resolve_fd(int64_t pid, uint64_t pid_namespace, int number, int* fd);

/* NOLINTEND */

#ifdef __cplusplus
}
#endif

#endif
