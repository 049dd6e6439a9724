/* SPDX-License-Identifier: Apache-2.0
 *
 * gpushm: shared memory for GPUs. This is the interface that libgpushm.so.1 exports; the C++
 * headers in this folder are a layer over it. gpushm/broker.h has the in-process broker. gpushm(3)
 * is an overview; examples/c has programs.
 *
 * Rules for every function, unless its comment says otherwise:
 *
 * Errors. A function that can fail returns GPUSHM_OK or the code of the failure;
 * gpushm_last_error() then has cause and next step. Results are written through pointers only on
 * GPUSHM_OK.
 *
 * Handles. Types without members here are handles. The caller owns each handle that it receives and
 * releases it with the function named at the type; releasing NULL does nothing. Elsewhere NULL is
 * GPUSHM_ERRC_INVALID_ARGUMENT; functions that return no code return NULL, 0, or an empty string
 * for it. In a child created by fork, the parent's handles fail with GPUSHM_ERRC_FORKED, and
 * releasing them does nothing.
 *
 * Threads. Functions may be called from any thread, also concurrently with the same handle, except
 * those that release it. Only functions that take a callback call back.
 *
 * Structures. Those that begin with `struct_size` may grow: set it to the structure's size and all
 * other members to 0, the default of each option; GPUSHM_INIT does both. A NULL options pointer
 * means all defaults. Options unknown to the loaded library must be 0; results unknown to it are
 * not written. In an array of them `struct_size` is the same, or the call takes the size of one.
 * All other structures never change: gpushm_string, gpushm_device, gpushm_epoch,
 * gpushm_open_result.
 *
 * Strings. A string argument is a gpushm_string: UTF-8 with a length, without a terminating NUL.
 * Returned strings also have a terminating NUL. The library owns every gpushm_string that it
 * returns; the function's comment states how long it is valid.
 *
 * Times. Milliseconds. How long a call waits is always its parameter `timeout_ms`: with 0 it does
 * not wait, with GPUSHM_FOREVER without a limit, and with GPUSHM_DEFAULT_TIMEOUT as long as its
 * comment says, or 30,000 if it has none. Other negative values are
 * GPUSHM_ERRC_INVALID_ARGUMENT. Round trips to a broker are not waits: each of them ends at the
 * client's `request_limit_ms`. */
#ifndef GPUSHM_GPUSHM_H
#define GPUSHM_GPUSHM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gpushm/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN: this is C */

/* ---- Basic types ---- */

#define GPUSHM_VERSION_MAJOR 0
#define GPUSHM_VERSION_MINOR 2
#define GPUSHM_VERSION_PATCH 0

/* Timeouts without a limit, and of the usual length ("Times" above). */
#define GPUSHM_FOREVER INT64_MAX
#define GPUSHM_DEFAULT_TIMEOUT INT64_MIN

#define GPUSHM_MAX_NAME_BYTES 255        /* of a segment's name, UTF-8 */
#define GPUSHM_MAX_METADATA_BYTES 65536  /* given to gpushm_segment_publish */
#define GPUSHM_MAX_TICKET_BYTES 4096     /* docs/ticket.md */
#define GPUSHM_MAX_DEVICE_TEXT_BYTES 128 /* of a device's UUID, and of its PCI address */
#define GPUSHM_MAX_SOCKET_PATH_BYTES 107 /* sun_path without its NUL */

typedef struct gpushm_string {
  const char* data; /* may be NULL when size is 0 */
  size_t size;      /* bytes, without a terminating NUL */
} gpushm_string;

/* Wraps a NUL-terminated string, without copying it; NULL gives an empty one. */
static inline gpushm_string gpushm_text(const char* text) {
  gpushm_string result;
  result.data = text;
  result.size = text == NULL ? 0 : strlen(text);
  return result;
}

#ifndef __cplusplus
/* gpushm_open_options options = GPUSHM_INIT(options); */
#define GPUSHM_INIT(variable) \
  { .struct_size = sizeof(variable) }
#endif

/* C enumerations are int wide; C++ needs the underlying type. */
#ifdef __cplusplus
#define GPUSHM_INT : int
#else
#define GPUSHM_INT
#endif

/* The reason for a failure; docs/errors.md lists each with its causes and remedies. Values of this
 * and of all enumerations never change; new ones may be added. */
typedef enum gpushm_errc GPUSHM_INT {
  GPUSHM_OK = 0,
  GPUSHM_ERRC_INVALID_ARGUMENT = 1,   /* an argument, or a call in this state, makes no sense */
  GPUSHM_ERRC_NO_SUCH_SEGMENT = 2,    /* the name is not published, or not in time */
  GPUSHM_ERRC_ALREADY_EXISTS = 3,     /* the name is in use */
  GPUSHM_ERRC_PERMISSION_DENIED = 4,  /* the broker or the kernel refuses it to this process */
  GPUSHM_ERRC_TIMED_OUT = 5,          /* it did not happen in time */
  GPUSHM_ERRC_BROKER_UNREACHABLE = 6, /* no broker answers at the socket */
  GPUSHM_ERRC_BROKER_GONE = 7, /* the broker has died; the next request connects to its successor */
  GPUSHM_ERRC_PROTOCOL_ERROR = 8,          /* the broker has sent something that is not valid */
  GPUSHM_ERRC_UNSUPPORTED_VERSION = 9,     /* broker and library have no common version */
  GPUSHM_ERRC_QUOTA_EXCEEDED = 10,         /* a quota of the domain does not allow it */
  GPUSHM_ERRC_OUT_OF_MEMORY = 11,          /* the device or the host has not enough memory */
  GPUSHM_ERRC_TOO_MANY_SEGMENTS = 12,      /* the broker's table is full */
  GPUSHM_ERRC_TOO_MANY_DESCRIPTORS = 13,   /* a process has no file descriptors left */
  GPUSHM_ERRC_TOO_MANY_CONNECTIONS = 14,   /* the broker accepts no further connection */
  GPUSHM_ERRC_TOO_MANY_REQUESTS = 15,      /* more is in flight, or held, than is allowed */
  GPUSHM_ERRC_DEVICE_NOT_FOUND = 16,       /* there is no such GPU */
  GPUSHM_ERRC_DEVICE_NOT_VISIBLE = 17,     /* this process may not use the GPU */
  GPUSHM_ERRC_DRIVER_UNAVAILABLE = 18,     /* there is no CUDA driver */
  GPUSHM_ERRC_DRIVER_ERROR = 19,           /* the CUDA driver has failed */
  GPUSHM_ERRC_WRONG_DESCRIPTOR_KIND = 20,  /* a descriptor is not memory of the expected kind */
  GPUSHM_ERRC_WRONG_DESCRIPTOR_COUNT = 21, /* descriptors are missing */
  GPUSHM_ERRC_SIZE_MISMATCH = 22, /* the size is another one, or elements are outside the segment */
  GPUSHM_ERRC_FORKED = 23,        /* the object belongs to the parent process */
  GPUSHM_ERRC_PEER_DIED = 24,     /* the other process has died */
  GPUSHM_ERRC_STALE_GENERATION = 25,  /* the segment was replaced */
  GPUSHM_ERRC_MESSAGE_TOO_LARGE = 26, /* it does not fit into a message */
  GPUSHM_ERRC_ADDRESS_IN_USE = 27,    /* another process uses the path */
  GPUSHM_ERRC_AMBIGUOUS_DOMAIN = 28,  /* several domains are mounted */
  GPUSHM_ERRC_ALREADY_PUBLISHED = 30, /* the segment was published before */
  GPUSHM_ERRC_SEGMENT_REMOVED = 31,   /* the segment was removed */
  GPUSHM_ERRC_SYSTEM_ERROR = 32,      /* a system call has failed */
  GPUSHM_ERRC_NOT_EXPORTABLE = 33, /* the memory cannot be shared; the next step names the remedy */
  GPUSHM_ERRC_PID_COLLISION = 34,  /* both processes have the same PID */
  GPUSHM_ERRC_GONE_OR_REPLACED = 35, /* the memory was freed, or has another owner */
  GPUSHM_ERRC_INVALID_TICKET = 36,   /* the bytes are not a ticket */
  GPUSHM_ERRC_PEER_UNREACHABLE = 37, /* the exporter's broker cannot be reached */
  GPUSHM_ERRC_SHARE_EXCEEDED = 38,   /* a principal has used its share of the broker's resources */
  GPUSHM_ERRC_WRITER_ENDING = 39,    /* a dead process may still write to the segment */
  GPUSHM_ERRC_CANCELLED = 40,        /* a gpushm_stop ended the wait */
  GPUSHM_ERRC_VALUE_OUT_OF_RANGE = 41, /* the value is larger than a timeline can have */
  GPUSHM_ERRC_TOO_MANY_WAITS = 42,     /* as many streams wait as CUDA has connections */
  GPUSHM_ERRC_INVALID_FILE = 43,       /* a file is truncated, or not what its format defines */
  GPUSHM_ERRC_NOT_SUPPORTED = 44,      /* memory of this kind cannot do that */
  GPUSHM_ERRC_SEGMENT_BUSY = 45        /* GPU work, another handle or another process uses it */
} gpushm_errc;

/* How a mapping may be used. A promise of the importer that guards against mistakes, not against
 * attackers: any process that has the descriptor can map it read-write (docs/threat-model.md). */
typedef enum gpushm_access GPUSHM_INT {
  GPUSHM_ACCESS_READ = 0,
  GPUSHM_ACCESS_READ_WRITE = 1
} gpushm_access;

/* When the broker frees a segment. */
typedef enum gpushm_lifetime GPUSHM_INT {
  GPUSHM_LIFETIME_LEASED = 0,    /* when its last lease ends, including its creator's */
  GPUSHM_LIFETIME_PERSISTENT = 1 /* when it is removed by name */
} gpushm_lifetime;

/* State of a mapped segment, readable without a system call. */
typedef enum gpushm_segment_state GPUSHM_INT {
  GPUSHM_SEGMENT_LIVE = 0,
  GPUSHM_SEGMENT_REMOVED = 1,       /* the name is gone; this mapping stays valid */
  GPUSHM_SEGMENT_EXPORTER_GONE = 2, /* the exporting process died; this mapping stays valid */
  /* the broker died; this mapping stays valid, the lease is lost */
  GPUSHM_SEGMENT_BROKER_GONE = 3,
  GPUSHM_SEGMENT_UNKNOWN = 4, /* imported without a broker: the exporter is not monitored */
  /* its GPU was lost, and the memory with it: GPU work on it fails; the name is gone */
  GPUSHM_SEGMENT_DEVICE_LOST = 5,
  /* this process has unmapped it for a time: the address is reserved, and any access there fails as
   * to unmapped memory (SIGSEGV, a fault of the GPU); the lease and its handles stay valid */
  GPUSHM_SEGMENT_SUSPENDED = 6
} gpushm_segment_state;

/* What gpushm_segment_suspend does with the memory. */
typedef enum gpushm_suspend_mode GPUSHM_INT {
  GPUSHM_SUSPEND_KEEP = 0, /* it stays with the broker, and with all other processes that have it */
  GPUSHM_SUSPEND_HOST = 1, /* it is freed; its contents are kept in host memory of this process */
  GPUSHM_SUSPEND_DISCARD = 2 /* it is freed, and its contents are lost */
} gpushm_suspend_mode;

/* How a segment's memory is allocated and shared. */
typedef enum gpushm_backend GPUSHM_INT {
  GPUSHM_BACKEND_HOST = 0,      /* sealed memfds */
  GPUSHM_BACKEND_CUDA_VMM = 1,  /* cuMemCreate chunks, shared as descriptors */
  GPUSHM_BACKEND_CUDA_IPC = 2,  /* cudaMalloc memory, as a legacy handle; bound to its exporter */
  GPUSHM_BACKEND_CUDA_POOL = 3, /* memory of an exportable pool; bound to its exporter */
  GPUSHM_BACKEND_SIGNALS = 4,   /* the words of one process's timelines; made by the broker */
  GPUSHM_BACKEND_TIMELINE = 5,  /* a timeline: no memory of its own, a word in such a page */
  /* a registered descriptor (gpushm/descriptor.h): no segment to open; another process's memory */
  GPUSHM_BACKEND_DESCRIPTOR = 6
} gpushm_backend;

typedef enum gpushm_device_kind GPUSHM_INT {
  GPUSHM_DEVICE_HOST = 0,
  GPUSHM_DEVICE_GPU = 1,
  GPUSHM_DEVICE_MIG = 2
} gpushm_device_kind;

/* How a broker determines that a process, including its GPU work, can no longer write
 * (docs/sharing.md, "The fence"). */
typedef enum gpushm_fence GPUSHM_INT {
  GPUSHM_FENCE_NONE = 0,    /* it cannot: it waits for a documented time instead */
  GPUSHM_FENCE_PROVEN = 1,  /* the process has ended, and no child can have its driver files */
  GPUSHM_FENCE_UNPROVEN = 2 /* the process has ended; a child of it may have them */
} gpushm_fence;

/* The condition that the leases of a connection that ended without a goodbye message wait for. */
typedef enum gpushm_fence_wait GPUSHM_INT {
  GPUSHM_FENCE_WAIT_PROCESS = 0,    /* the end of the process */
  GPUSHM_FENCE_WAIT_DESCENDANT = 1, /* it has ended; a descendant may have its driver files */
  GPUSHM_FENCE_WAIT_DELAY = 2       /* a documented time */
} gpushm_fence_wait;

/* Why the memory of a segment is gone with its GPU. */
typedef enum gpushm_loss_cause GPUSHM_INT {
  GPUSHM_LOSS_NONE = 0,        /* it is not gone, or not for such a reason */
  GPUSHM_LOSS_REPORTED = 1,    /* an operator reported it; also a cause that is not known */
  GPUSHM_LOSS_XID = 2,         /* an Xid of the driver that is fatal for memory */
  GPUSHM_LOSS_UNREACHABLE = 3, /* the driver cannot reach the GPU */
  GPUSHM_LOSS_RESET = 4        /* the GPU was reset */
} gpushm_loss_cause;

/* Kinds of events that a subscription reports. */
typedef enum gpushm_event_kind GPUSHM_INT {
  GPUSHM_EVENT_PUBLISHED = 1,
  GPUSHM_EVENT_OPENED = 2, /* another connection was granted a lease; its import may still fail */
  /* the last lease other than the creator's ended; not reported if no such lease was used, as after
   * a failed import */
  GPUSHM_EVENT_RELEASED = 3,
  GPUSHM_EVENT_REMOVED = 4,
  /* a process that created or held the segment ended without a goodbye message; it can no longer
   * write (docs/sharing.md, "The fence") */
  GPUSHM_EVENT_PEER_DIED = 5,
  GPUSHM_EVENT_RESYNC = 6,   /* events were lost (slow subscriber, or a new broker): list again */
  GPUSHM_EVENT_UNFENCED = 7, /* an operator dropped such a process's leases: it may still write */
  /* an alias of a version refers to another one; the event's name is the alias's, and its
   * generation that of the move */
  GPUSHM_EVENT_ALIAS_MOVED = 8
} gpushm_event_kind;

typedef enum gpushm_version_state GPUSHM_INT {
  GPUSHM_VERSION_BUILDING = 0,  /* parts are missing: nobody else sees any of it */
  GPUSHM_VERSION_PUBLISHED = 1, /* all parts are visible */
  GPUSHM_VERSION_ENDING = 2     /* removed: none of its names is found */
} gpushm_version_state;

typedef enum gpushm_log_level GPUSHM_INT {
  GPUSHM_LOG_DEBUG = 0,
  GPUSHM_LOG_INFO = 1,
  GPUSHM_LOG_WARNING = 2,
  GPUSHM_LOG_ERROR = 3
} gpushm_log_level;

/* Stable names of the enumerators ("no_such_segment", "read-write"); "unknown" for a value unknown
 * to this version. Static strings. */
GPUSHM_API gpushm_string gpushm_errc_name(gpushm_errc value);
GPUSHM_API gpushm_string gpushm_access_name(gpushm_access value);
GPUSHM_API gpushm_string gpushm_lifetime_name(gpushm_lifetime value);
GPUSHM_API gpushm_string gpushm_segment_state_name(gpushm_segment_state value);
GPUSHM_API gpushm_string gpushm_backend_name(gpushm_backend value);
GPUSHM_API gpushm_string gpushm_suspend_mode_name(gpushm_suspend_mode value);
GPUSHM_API gpushm_string gpushm_device_kind_name(gpushm_device_kind value);
GPUSHM_API gpushm_string gpushm_fence_name(gpushm_fence value);
GPUSHM_API gpushm_string gpushm_fence_wait_name(gpushm_fence_wait value);
GPUSHM_API gpushm_string gpushm_event_kind_name(gpushm_event_kind value);
GPUSHM_API gpushm_string gpushm_version_state_name(gpushm_version_state value);
GPUSHM_API gpushm_string gpushm_loss_cause_name(gpushm_loss_cause value);

/* Version of the loaded library: MAJOR << 16 | MINOR << 8 | PATCH. */
GPUSHM_API uint32_t gpushm_version(void);

/* Where a segment's memory is. Has the same meaning in every process: it does not include ordinals,
 * which CUDA_VISIBLE_DEVICES changes. */
typedef struct gpushm_device {
  gpushm_device_kind kind;
  int32_t minor;                               /* N of /dev/nvidiaN; -1 when unknown or the host */
  uint32_t uuid_size;                          /* 0 for the host */
  uint32_t pci_address_size;                   /* 0 for the host */
  char uuid[GPUSHM_MAX_DEVICE_TEXT_BYTES + 4]; /* "GPU-..." or "MIG-..." */
  char pci_address[GPUSHM_MAX_DEVICE_TEXT_BYTES + 4]; /* "0000:18:00.0" */
} gpushm_device;

/* A random number that a broker generates when it starts. With a generation it identifies memory
 * forever. */
typedef struct gpushm_epoch {
  uint8_t bytes[16];
} gpushm_epoch;

/* ---- Errors ---- */

/* Release with gpushm_error_free. Immutable. */
typedef struct gpushm_error gpushm_error;

/* The calling thread's latest failure; NULL if it had none. Owned by the library, valid until the
 * thread's next failure. Success does not change it. */
GPUSHM_API const gpushm_error* gpushm_last_error(void);

GPUSHM_API gpushm_errc gpushm_error_code(const gpushm_error* error);
/* Parts of the error, valid as long as the error is. May be empty. */
GPUSHM_API gpushm_string gpushm_error_operation(const gpushm_error* error);
GPUSHM_API gpushm_string gpushm_error_object(const gpushm_error* error);
GPUSHM_API gpushm_string gpushm_error_cause(const gpushm_error* error);
GPUSHM_API gpushm_string gpushm_error_next_step(const gpushm_error* error);
/* OPERATION "OBJECT": CAUSE (NEXT STEP), as one line that is safe to print on a terminal. */
GPUSHM_API gpushm_string gpushm_error_message(const gpushm_error* error);
/* The process that the cause is about, such as the one that has died or has the name, as the broker
 * sees it (as this process does, without a broker); 0: none, or not known. */
GPUSHM_API int32_t gpushm_error_pid(const gpushm_error* error);
/* The number that the cause is about, such as a timeline's last value: docs/errors.md says which,
 * for each code. False, and `*value` is not written, if there is none. `value` may be NULL. */
GPUSHM_API bool gpushm_error_value(const gpushm_error* error, uint64_t* value);

/* Returns another handle to the same error. Never fails. */
GPUSHM_API gpushm_error* gpushm_error_dup(const gpushm_error* error);
GPUSHM_API void gpushm_error_free(gpushm_error* error);
/* The parts of an error besides its code that a program may need. */
typedef struct gpushm_error_details {
  size_t struct_size;
  uint64_t value; /* if `has_value` */
  int32_t pid;    /* 0: none */
  bool has_value;
} gpushm_error_details;

/* For layers over this one that report failures. `details` may be NULL. Returns NULL if out of
 * memory. */
GPUSHM_API gpushm_error* gpushm_error_create(gpushm_errc code,
                                             gpushm_string operation,
                                             gpushm_string object,
                                             gpushm_string cause,
                                             gpushm_string next_step,
                                             const gpushm_error_details* details);

/* ---- Cancellation ---- */

/* Cancels waits. Release with gpushm_stop_free, at any time: calls that wait keep a reference. */
typedef struct gpushm_stop gpushm_stop;

GPUSHM_API gpushm_errc gpushm_stop_create(gpushm_stop** stop);
/* Every call that was given `stop`, now or later, stops waiting. If a call reports by a bool that
 * its timeout has passed, such as `*arrived` of gpushm_subscription_next, it reports this in the
 * same way: the bool is false. All others fail with GPUSHM_ERRC_CANCELLED. Does not block. Not
 * async-signal-safe: a signal handler must have a thread call it. */
GPUSHM_API void gpushm_stop_request(gpushm_stop* stop);
GPUSHM_API void gpushm_stop_free(gpushm_stop* stop);

/* ---- Log ---- */

/* Called from any thread, without a lock of the library held. May call gpushm, but must not close a
 * client or send a request to a broker in this process. Must return; a C++ exception must not leave
 * it. `text` is valid during the call only. */
typedef void (*gpushm_log_sink)(void* user, gpushm_log_level level, gpushm_string text);
/* Frees `user`. Called once, by the last thread that was using it. */
typedef void (*gpushm_destroy)(void* user);

/* Sends the library's log lines (mostly warnings) to `sink`; NULL discards them, the default.
 * `destroy`, unless NULL, is called after the sink was replaced and no call of it is running, and
 * also if this function fails. */
GPUSHM_API gpushm_errc gpushm_set_log_sink(gpushm_log_sink sink,
                                           void* user,
                                           gpushm_destroy destroy);

/* ---- Clients ---- */

/* A connection to a broker. Segments and subscriptions created with it stay usable after it is
 * closed (they share the connection). When the broker dies, requests in flight fail with
 * GPUSHM_ERRC_BROKER_GONE and the next request connects to its successor. Release with
 * gpushm_client_close. */
typedef struct gpushm_client gpushm_client;
/* A segment mapped into this process, with its lease. Release with gpushm_segment_close. */
typedef struct gpushm_segment gpushm_segment;
/* Segments with a broker's information about them. Release with gpushm_segment_list_free. */
typedef struct gpushm_segment_list gpushm_segment_list;
/* A stream of events. Release with gpushm_subscription_close. */
typedef struct gpushm_subscription gpushm_subscription;

/* Mappings of persistent segments are cached for the next open after their last user is gone,
 * within these limits; mappings in use do not count. */
typedef struct gpushm_connect_options {
  size_t struct_size;
  /* The broker's socket. Empty: $GPUSHM_SOCKET; else the one domain under /run/gpushm/d
   * (several: GPUSHM_ERRC_AMBIGUOUS_DOMAIN); else this user's (docs/cli.md, "Broker selection"). */
  gpushm_string socket_path;
  /* Limit of each request, excluding waits for names: not a time that a call waits, but the end of
   * a broker that does not answer. 0: 30,000. */
  int64_t request_limit_ms;
  /* Cancels the wait for a broker, even when a later call of the client reconnects. */
  gpushm_stop* stop;
  /* Upper bounds of the bytes and mappings that are cached while unused: 0 caches nothing,
   * UINT64_MAX is unlimited. They apply where the matching `has_` member is true; else the
   * environment's GPUSHM_CACHE_MAX_BYTES (also sizes such as "16GiB") and GPUSHM_CACHE_MAX_ENTRIES
   * apply (both accept "unlimited"), else 64 GiB and 256. */
  uint64_t cache_max_bytes;
  uint64_t cache_max_entries;
  bool has_cache_max_bytes;
  bool has_cache_max_entries;
  /* `prefetch_count` names that the caller is about to open. Requested together with the
   * connection, so that the next open of each then only maps, without a request. As
   * gpushm_client_prefetch, but of any lifetime: each is a lease of this client, which keeps the
   * memory of a leased segment until it is opened and closed, or until gpushm_client_trim. A name
   * that is not published, is a timeline's, or is memory bound to its exporter is left out, without
   * an error. */
  const gpushm_string* prefetch;
  size_t prefetch_count;
} gpushm_connect_options;

/* Connects; waits for a broker that is not running yet, including its welcome, at most `timeout_ms`
 * (GPUSHM_DEFAULT_TIMEOUT: 0). With 0 it does not wait for it to appear; its welcome is a round
 * trip. When a later call of the client reconnects, it waits as long. Fails with
 * broker_unreachable, ambiguous_domain, permission_denied, unsupported_version,
 * too_many_connections, invalid_argument (a name), timed_out, cancelled. */
GPUSHM_API gpushm_errc gpushm_client_connect(const gpushm_connect_options* options,
                                             int64_t timeout_ms,
                                             gpushm_client** client);
/* Returns another handle to the same connection. */
GPUSHM_API gpushm_errc gpushm_client_dup(const gpushm_client* client, gpushm_client** dup);
/* If this is the last use of the connection, blocks until the client's thread has ended. */
GPUSHM_API void gpushm_client_close(gpushm_client* client);

typedef struct gpushm_create_options {
  size_t struct_size;
  uint64_t size_bytes; /* must not be 0 */
  /* An ordinal as CUDA numbers it, also as "cuda:1", "GPU-<uuid>", "MIG-<uuid>", "host" or "cpu",
   * or "auto" (same as empty): the first visible GPU, else the host. */
  gpushm_string device;
  /* Size of one physical allocation, rounded up to the device's granularity; 0: a single
   * allocation. Keep 0 for memory that is passed to other libraries: many query the driver for the
   * range of an address (cuMemGetAddressRange) and see the first chunk only. */
  uint64_t chunk_bytes;
  gpushm_lifetime lifetime;
  /* Host segments only: use 2 MiB huge pages (out_of_memory if the node has none free). */
  bool huge_pages;
  /* Generation of a segment that may have the name, and that this process may remove; 0: none. It
   * keeps the name until gpushm_segment_publish of the new one, which removes it and moves the name
   * at once: an open of the name finds one of the two. Until then stat, list and remove by name
   * mean the published one; by name and generation this connection also finds the new one. */
  uint64_t replaces;
} gpushm_create_options;

/* Reserves the name, allocates the memory, maps it for reading and writing, and passes its
 * descriptors to the broker. No other client sees the segment before gpushm_segment_publish;
 * contents are zero on the host and undefined on GPUs. If a dead process holds the name, blocks
 * until that process can no longer write, at most ten seconds. Fails with invalid_argument,
 * already_exists, gone_or_replaced (another segment than `replaces` has the name),
 * permission_denied (this process may not remove `replaces`), writer_ending, quota_exceeded,
 * out_of_memory, too_many_segments, too_many_descriptors, device_not_found, driver_unavailable,
 * driver_error, broker_gone, timed_out, forked. */
GPUSHM_API gpushm_errc gpushm_client_create(gpushm_client* client,
                                            gpushm_string name,
                                            const gpushm_create_options* options,
                                            gpushm_segment** segment);

typedef struct gpushm_share_options {
  size_t struct_size;
  /* Persistent only for memory that is shared as descriptors (chunks of virtual memory, memfds). */
  gpushm_lifetime lifetime;
  /* If true, only this client sees the segment until gpushm_segment_publish. */
  bool unpublished;
  /* Available to every client that opens the segment. */
  const void* metadata;
  size_t metadata_size;
} gpushm_share_options;

/* Turns memory that was allocated elsewhere in this process into a segment, and publishes it. The
 * range may be anywhere in cudaMalloc memory, in an exportable pool, in virtual memory (also across
 * chunks), or in a sealed memfd. The segment's data is `pointer`; the memory remains owned by its
 * allocator. Finish the writes that readers rely on first.
 *
 * The broker keeps virtual memory and memfds alive. cudaMalloc and pool memory remains
 * owned by this process: call gpushm_segment_unshare before it is freed. The segment ends with its
 * last handle here, with this process (later opens fail with peer_died), or when an import finds
 * that the memory was freed (gone_or_replaced). Legacy handles give importers the whole allocation,
 * not only this range.
 *
 * Fails with invalid_argument, not_exportable (naming the allocator and the remedy), and as
 * gpushm_client_create. */
GPUSHM_API gpushm_errc gpushm_client_share(gpushm_client* client,
                                           gpushm_string name,
                                           void* pointer,
                                           uint64_t size_bytes,
                                           const gpushm_share_options* options,
                                           gpushm_segment** segment);

typedef struct gpushm_open_options {
  size_t struct_size;
  gpushm_access access;
  /* The GPU that will use the memory, in the format of gpushm_create_options; empty: the GPU that
   * the memory is on, or the first visible GPU if CUDA does not show that one. */
  gpushm_string device;
  /* If not 0: fails with size_mismatch unless the segment has exactly this size. */
  uint64_t expected_size_bytes;
  /* Cancels the wait for the name immediately. A name that is already published is opened anyway.
   */
  gpushm_stop* stop;
} gpushm_open_options;

/* Opens a published segment. Blocks until the name is published, at most `timeout_ms`
 * (GPUSHM_DEFAULT_TIMEOUT: 0). Fails with no_such_segment (not published in time), size_mismatch,
 * device_not_visible, device_not_found, driver_unavailable, driver_error, too_many_descriptors,
 * broker_gone, cancelled, forked; for memory bound to its exporter also peer_died,
 * gone_or_replaced, pid_collision, peer_unreachable.
 */
GPUSHM_API gpushm_errc gpushm_client_open(gpushm_client* client,
                                          gpushm_string name,
                                          const gpushm_open_options* options,
                                          int64_t timeout_ms,
                                          gpushm_segment** segment);
/* As gpushm_client_open, but returns GPUSHM_OK and NULL if the name is not published (in time), if
 * its exporter has died, or if only dead processes that may still write to the segment hold it. */
GPUSHM_API gpushm_errc gpushm_client_try_open(gpushm_client* client,
                                              gpushm_string name,
                                              const gpushm_open_options* options,
                                              int64_t timeout_ms,
                                              gpushm_segment** segment);

/* Exactly one of the two is not NULL. */
typedef struct gpushm_open_result {
  gpushm_segment* segment; /* owned by the caller */
  gpushm_error* failure;   /* owned by the caller */
} gpushm_open_result;

/* Opens any number of names with few round trips; `results` has room for `count` results, in the
 * order of `names`. `timeout_ms` is for all of them together. Fails, without results, if one of the
 * names is not valid (invalid_argument) or no request could be sent (broker_unreachable,
 * broker_gone, forked). */
GPUSHM_API gpushm_errc gpushm_client_open_many(gpushm_client* client,
                                               const gpushm_string* names,
                                               size_t count,
                                               const gpushm_open_options* options,
                                               int64_t timeout_ms,
                                               gpushm_open_result* results);

/* Requests in advance what opens of persistent segments under `prefix` need from the broker: the
 * next open of each then only maps, without a request. Each prefetched segment is a lease of this
 * client, which keeps the segment's descriptors until gpushm_client_trim or until the segment, the
 * client or the broker ends. Skips segments that this client already has, memory bound to its
 * exporter, and segments of more than 253 chunks; keeps at most 4,096 segments and a quarter of the
 * descriptors that the process may open, and nothing if the cache keeps nothing. Blocks for several
 * round trips, at most one request limit. `count`, unless NULL, receives the number of segments
 * added. Fails with broker_gone, timed_out, forked; segments received before the failure are kept.
 */
GPUSHM_API gpushm_errc gpushm_client_prefetch(gpushm_client* client,
                                              gpushm_string prefix,
                                              size_t* count);

/* A broker's information about a segment. */
typedef struct gpushm_segment_info {
  size_t struct_size;
  uint64_t generation;
  uint64_t size_bytes;      /* as requested */
  uint64_t allocated_bytes; /* rounded up to the device's granularity */
  uint64_t metadata_bytes;
  int64_t ending_for_ms;
  uint32_t chunks;    /* physical allocations, one descriptor each */
  uint32_t leases;    /* connections that hold one, including the creator's */
  uint32_t ending;    /* of `leases`, those whose connection has ended without a goodbye
                            message; they end with their fence (docs/sharing.md) */
  int32_t ending_pid; /* process of the oldest, as the broker sees it; 0: not visible to it */
  gpushm_fence_wait ending_waits;
  uint32_t creator_uid; /* as the broker sees it */
  int32_t creator_pid;  /* as the broker sees it; 0: not visible to it */
  gpushm_backend backend;
  gpushm_lifetime lifetime;
  gpushm_segment_state state;
  bool published;
  bool creator_alive; /* the creator is still connected */
  uint32_t name_size;
  char name[GPUSHM_MAX_NAME_BYTES + 1];
  gpushm_device device;
} gpushm_segment_info;

/* Lists published segments, and this client's unpublished ones, whose names start with `prefix`,
 * sorted by name. */
GPUSHM_API gpushm_errc gpushm_client_list(gpushm_client* client,
                                          gpushm_string prefix,
                                          gpushm_segment_list** list);
GPUSHM_API size_t gpushm_segment_list_size(const gpushm_segment_list* list);
/* Fails with invalid_argument if `index` is not below the list's size. */
GPUSHM_API gpushm_errc gpushm_segment_list_get(const gpushm_segment_list* list,
                                               size_t index,
                                               gpushm_segment_info* info);
GPUSHM_API void gpushm_segment_list_free(gpushm_segment_list* list);

/* Fails with no_such_segment. */
GPUSHM_API gpushm_errc gpushm_client_stat(gpushm_client* client,
                                          gpushm_string name,
                                          gpushm_segment_info* info);
/* As above, of this generation only. Fails also with gone_or_replaced: another segment has the name
 * now; and with invalid_argument for the generation 0. */
GPUSHM_API gpushm_errc gpushm_client_stat_generation(gpushm_client* client,
                                                     gpushm_string name,
                                                     uint64_t generation,
                                                     gpushm_segment_info* info);

/* Removes the name; the memory is freed with the last lease. Allowed to the creator's connection,
 * the creator's uid and the broker's uid. Fails with no_such_segment, permission_denied. */
GPUSHM_API gpushm_errc gpushm_client_remove(gpushm_client* client, gpushm_string name);
/* As above, if this generation has the name: never removes a segment that has replaced it. Fails
 * also with gone_or_replaced: another segment has the name now; and with invalid_argument for the
 * generation 0. */
GPUSHM_API gpushm_errc gpushm_client_remove_generation(gpushm_client* client,
                                                       gpushm_string name,
                                                       uint64_t generation);

/* For operators: ends the segment's leases whose connections ended without a goodbye message and
 * whose fence is still pending, though their processes may still write. Subscribers receive
 * GPUSHM_EVENT_UNFENCED. Allowed as gpushm_client_remove. Fails with no_such_segment,
 * permission_denied, invalid_argument (no lease of the segment waits for a fence). */
GPUSHM_API gpushm_errc gpushm_client_unfence(gpushm_client* client, gpushm_string name);

/* A broker's information about itself. */
typedef struct gpushm_broker_info {
  size_t struct_size;
  uint64_t max_segments;
  uint64_t quota_bytes;   /* of the domain; 0: no limit */
  int64_t fence_delay_ms; /* how long it waits where there is no fence */
  uint32_t protocol_version;
  int32_t pid;        /* as this process sees it; 0: not visible to it */
  gpushm_fence fence; /* how it detects that this process can no longer write after it ended */
  gpushm_epoch epoch;
  uint32_t socket_path_size;
  char socket_path[GPUSHM_MAX_SOCKET_PATH_BYTES + 1];
  uint32_t domain_size;
  char domain[GPUSHM_MAX_NAME_BYTES + 1];
} gpushm_broker_info;

/* Reconnects if the broker has died. */
GPUSHM_API gpushm_errc gpushm_client_broker(gpushm_client* client, gpushm_broker_info* info);

/* Counters and contents of a client's import cache. */
typedef struct gpushm_cache_stats {
  size_t struct_size;
  uint64_t hits;         /* opens without broker and driver */
  uint64_t misses;       /* opens that sent a request to the broker */
  uint64_t evictions;    /* mappings dropped because of the limits */
  uint64_t kept_entries; /* unused mappings */
  uint64_t kept_bytes;
  uint64_t used_entries; /* mappings in use */
  uint64_t used_bytes;
} gpushm_cache_stats;

/* Reads memory only. */
GPUSHM_API gpushm_errc gpushm_client_cache_stats(const gpushm_client* client,
                                                 gpushm_cache_stats* stats);
/* Unmaps unused mappings. Blocks for the driver. */
GPUSHM_API gpushm_errc gpushm_client_trim(gpushm_client* client);

/* ---- Segments ---- */

/* Returns another handle to the same mapping, for libraries that keep memory for as long as they
 * use it (a DLPack capsule, a tensor's deleter). Never fails. */
GPUSHM_API gpushm_segment* gpushm_segment_dup(const gpushm_segment* segment);
/* The mapping and its lease end with the last handle of that generation in the process, or later if
 * cached for the next open (gpushm_connect_options). Does not wait for GPU work that still uses the
 * memory: synchronize first. May be called on any thread. */
GPUSHM_API void gpushm_segment_close(gpushm_segment* segment);

/* The first byte: a device pointer (also a CUdeviceptr) for GPU segments, a CPU pointer for host
 * segments. Valid as long as the handle exists. Also while the segment is suspended: then nothing
 * is mapped there. */
GPUSHM_API const void* gpushm_segment_data(const gpushm_segment* segment);
/* As gpushm_segment_data, for writing; NULL if it was opened with GPUSHM_ACCESS_READ (the hardware
 * also refuses writes there). */
GPUSHM_API void* gpushm_segment_mutable_data(const gpushm_segment* segment);
/* As requested at creation; the mapping may be longer. */
GPUSHM_API uint64_t gpushm_segment_size_bytes(const gpushm_segment* segment);
/* Valid as long as the handle exists; empty if it was imported without a broker. */
GPUSHM_API gpushm_string gpushm_segment_name(const gpushm_segment* segment);
/* Where the memory is. */
GPUSHM_API gpushm_errc gpushm_segment_device(const gpushm_segment* segment, gpushm_device* device);
/* The device that uses the mapping, as CUDA numbers it in this process (CUDA_VISIBLE_DEVICES
 * applies); -1 for the host. Differs from the memory's device if a peer GPU opened the segment. */
GPUSHM_API int32_t gpushm_segment_ordinal(const gpushm_segment* segment);
GPUSHM_API gpushm_backend gpushm_segment_backend(const gpushm_segment* segment);
GPUSHM_API gpushm_access gpushm_segment_access(const gpushm_segment* segment);
GPUSHM_API gpushm_lifetime gpushm_segment_lifetime(const gpushm_segment* segment);
GPUSHM_API uint64_t gpushm_segment_generation(const gpushm_segment* segment);
/* Zeros without a broker. */
GPUSHM_API gpushm_errc gpushm_segment_epoch(const gpushm_segment* segment, gpushm_epoch* epoch);
/* The metadata passed to gpushm_segment_publish, valid as long as the handle exists; empty before
 * publication. */
GPUSHM_API gpushm_errc gpushm_segment_metadata(const gpushm_segment* segment,
                                               const void** data,
                                               size_t* size);
/* Reads shared memory only: no system call, does not block. */
GPUSHM_API gpushm_segment_state gpushm_segment_current_state(const gpushm_segment* segment);

/* Makes a created segment visible to other clients, with metadata. Does not synchronize any stream:
 * finish the writes that readers rely on first. Blocks for one round trip to the broker (at most
 * the client's request limit). Fails with already_published, message_too_large,
 * permission_denied, broker_gone, timed_out, forked. */
GPUSHM_API gpushm_errc gpushm_segment_publish(gpushm_segment* segment,
                                              const void* metadata,
                                              size_t metadata_size);
/* Reverses gpushm_client_share: after it returns, the memory is not given to new importers and may
 * be freed. Existing mappings remain. Handles of the segment stay valid until the memory is freed.
 * Blocks for one round trip to the broker. Fails with invalid_argument (this process does not share
 * it, or no longer), timed_out, forked. */
GPUSHM_API gpushm_errc gpushm_segment_unshare(gpushm_segment* segment);

/* Unmaps the memory, and keeps the address: nothing else of this process gets it, and any access
 * there fails as to unmapped memory, until gpushm_segment_resume. For all handles in this process
 * that have this mapping (the same segment, client, access and device); their state is
 * GPUSHM_SEGMENT_SUSPENDED. No effect if it is suspended in this mode already. An open by this
 * client gives the suspended mapping.
 *
 * GPUSHM_SUSPEND_KEEP: lease, quota and opens by other processes are unchanged.
 * GPUSHM_SUSPEND_HOST and GPUSHM_SUSPEND_DISCARD: the segment is removed, so that memory and quota
 * are free. Only for the client that has created it, and if nobody else has it. Opens of its name
 * wait, up to their timeouts; another process may take the name meanwhile.
 *
 * No CPU, GPU, stream, graph, timeline or other library may use the memory or have it registered,
 * from this call until the resume. Only work of the legacy default stream of the GPU that uses it
 * is detected (segment_busy); synchronize all others first. Does not wait for GPU work; blocks
 * while the driver unmaps, for round trips to the broker unless this process has kept the
 * descriptors, and while GPUSHM_SUSPEND_HOST copies. After a failure the segment is mapped as
 * before, unless its state is GPUSHM_SEGMENT_SUSPENDED: then the driver has failed, and it is
 * suspended in the mode GPUSHM_SUSPEND_KEEP.
 *
 * Fails with not_supported (the backend is neither host nor cuda_vmm: nothing has changed), in_use
 * (also: other handles, mappings or connections have it), invalid_argument (suspended in another
 * mode; created by another client, or mapped for reading only), out_of_memory, no_such_segment and
 * gone_or_replaced (it was removed), too_many_descriptors, broker_gone, timed_out, driver_error,
 * system_error, forked. */
GPUSHM_API gpushm_errc gpushm_segment_suspend(gpushm_segment* segment, gpushm_suspend_mode mode);
/* Maps the memory again, at the same address and for the same access. After GPUSHM_SUSPEND_HOST and
 * GPUSHM_SUSPEND_DISCARD that is a new segment of that name, with a new generation: with the same
 * contents, and published with the same metadata if the former was (host); or with undefined
 * contents and not published (discard). Timelines of the segment have to be created again. Blocks
 * while the driver allocates, maps and copies, and for round trips to the broker, which
 * GPUSHM_SUSPEND_KEEP needs only if there was no room for the descriptors. After a failure the
 * segment is suspended as before, and the call may be repeated. Fails with invalid_argument (it is
 * not suspended), already_exists (the name is in use), quota_exceeded, out_of_memory, broker_gone,
 * timed_out, too_many_descriptors, driver_error, system_error, forked, and as gpushm_client_create.
 */
GPUSHM_API gpushm_errc gpushm_segment_resume(gpushm_segment* segment);

/* Copy between the segment and host memory, for every device; return when done. Use a stream of
 * their own, which no other stream waits for, and which waits for none, nor for the legacy default
 * stream: work of streams on the same bytes must be complete, or pass its stream to the forms with
 * one. The range must be within the segment. Fail with invalid_argument (out of range, or writing
 * to a read-only mapping), driver_error, forked (GPU memory in a forked child). */
GPUSHM_API gpushm_errc gpushm_segment_read(const gpushm_segment* segment,
                                           uint64_t offset_bytes,
                                           void* destination,
                                           size_t size);
GPUSHM_API gpushm_errc gpushm_segment_write(gpushm_segment* segment,
                                            uint64_t offset_bytes,
                                            const void* source,
                                            size_t size);
/* Copies `size` bytes at `source`, which is memory of a GPU that this process uses (of any GPU, and
 * of any allocator), into the segment, on any device; from another GPU through host memory. Returns
 * when done. Work that writes to the source must be complete. Fails as gpushm_segment_write, and
 * with invalid_argument for an address that is not a GPU's, driver_unavailable. */
GPUSHM_API gpushm_errc gpushm_segment_write_from_gpu(gpushm_segment* segment,
                                                     uint64_t offset_bytes,
                                                     const void* source,
                                                     size_t size);
/* Sets every byte; returns when done. Fails as gpushm_segment_write. */
GPUSHM_API gpushm_errc gpushm_segment_fill(gpushm_segment* segment, uint8_t value);
/* As those above, after the work that was enqueued on `stream` before: a CUstream or cudaStream_t
 * of any GPU. NULL is the legacy default stream of the segment's GPU (of the source's GPU, for
 * gpushm_segment_write_from_gpu_on; of the current context, for host memory), which waits for all
 * streams that are not non-blocking. Nothing is only enqueued: these calls block until the stream
 * has done that work, and then until the copy is done. If this thread is to signal what the stream
 * waits for, they never return. Fail also with invalid_argument if the stream is captured,
 * driver_unavailable, driver_error. */
GPUSHM_API gpushm_errc gpushm_segment_read_on(const gpushm_segment* segment,
                                              uint64_t offset_bytes,
                                              void* destination,
                                              size_t size,
                                              void* stream);
GPUSHM_API gpushm_errc gpushm_segment_write_on(
    gpushm_segment* segment, uint64_t offset_bytes, const void* source, size_t size, void* stream);
GPUSHM_API gpushm_errc gpushm_segment_write_from_gpu_on(
    gpushm_segment* segment, uint64_t offset_bytes, const void* source, size_t size, void* stream);
GPUSHM_API gpushm_errc gpushm_segment_fill_on(gpushm_segment* segment, uint8_t value, void* stream);

/* ---- Subscriptions ---- */

typedef struct gpushm_event {
  size_t struct_size;
  uint64_t generation;
  gpushm_event_kind kind;
  uint32_t leases;  /* after the event */
  int32_t peer_pid; /* of the process that caused it, as the broker sees it; 0: unknown */
  uint32_t name_size;
  char name[GPUSHM_MAX_NAME_BYTES + 1];
  gpushm_loss_cause loss; /* of GPUSHM_EVENT_REMOVED: its GPU was lost, and the memory with it */
  uint32_t xid;           /* the Xid, if that is the cause; else 0 */
} gpushm_event;

/* Subscribes to events of segments whose names start with `prefix`, from now on. `present`, unless
 * NULL, receives the segments that already exist, as from gpushm_client_list: no segment is missed
 * between the two, but the first events may be about segments in the list. */
GPUSHM_API gpushm_errc gpushm_client_subscribe(gpushm_client* client,
                                               gpushm_string prefix,
                                               gpushm_segment_list** present,
                                               gpushm_subscription** subscription);
/* Must not run concurrently with another call on the subscription. */
GPUSHM_API void gpushm_subscription_close(gpushm_subscription* subscription);

/* The functions below must not run concurrently for the same subscription. */

/* Returns the next event; `arrived` is false if `timeout_ms` passed, or `stop` (may be NULL) was
 * requested, first. At most 1,024 unread events are queued; beyond that the oldest are dropped and
 * a resync event reports it. Fails with broker_gone once, when the broker is gone and all earlier
 * events were read; later calls resume on the new broker after a resync. */
GPUSHM_API gpushm_errc gpushm_subscription_next(gpushm_subscription* subscription,
                                                int64_t timeout_ms,
                                                gpushm_stop* stop,
                                                gpushm_event* event,
                                                bool* arrived);

/* A descriptor for poll(2), select(2) or epoll(7): readable when gpushm_subscription_dispatch has
 * work to do. Owned by the subscription and valid as long as the subscription exists: do not read
 * or close it. To wait for a name in an event loop, subscribe to the name and open it when it is
 * published. */
GPUSHM_API gpushm_errc gpushm_subscription_descriptor(gpushm_subscription* subscription,
                                                      int* descriptor);

/* Called on the thread that calls gpushm_subscription_dispatch, without a lock of the library held.
 * May call gpushm, but must not call functions of this subscription or close it. `event` is valid
 * during the call only. Return false to stop the dispatch. A C++ exception must not leave it. */
typedef bool (*gpushm_event_handler)(void* user, const gpushm_event* event);

/* Passes every unread event to `handler`, without waiting for more. `count`, unless NULL, receives
 * their number, also on failure. Fails as gpushm_subscription_next. */
GPUSHM_API gpushm_errc gpushm_subscription_dispatch(gpushm_subscription* subscription,
                                                    gpushm_event_handler handler,
                                                    void* user,
                                                    size_t* count);

/* ---- Sharing without a node broker (docs/sharing.md) ---- */

/* Bytes that another process on the same machine imports; transfer them by a file, a message or a
 * rank exchange. docs/ticket.md specifies the format. Functions that write one fail with
 * message_too_large if the caller's structure has not room for it. */
typedef struct gpushm_ticket {
  size_t struct_size;
  size_t size;
  uint8_t bytes[GPUSHM_MAX_TICKET_BYTES];
} gpushm_ticket;

/* Describes memory of this process that bytes alone can carry: cudaMalloc memory, as a legacy
 * handle that works in every PID namespace. `pointer` may be anywhere in the allocation. The caller
 * keeps ownership; importers can open the memory until it is freed or this process dies. Freeing
 * and reallocating it is not detected: notify the importers first. Importers get the whole
 * allocation, not only this range. To have each import checked, and for other memory, share it
 * through a broker and use gpushm_export_segment. Does not block. Fails with invalid_argument,
 * not_exportable (also for memory that is shared as file descriptors), driver_error, forked. */
GPUSHM_API gpushm_errc gpushm_export_memory(void* pointer,
                                            uint64_t size_bytes,
                                            gpushm_ticket* ticket);

/* Describes a published segment: importers connect to its broker, which has the file descriptors.
 * `socket_path` is the path by which importers reach the broker's socket; empty: its absolute path
 * here; a name without a slash: in the directory of the ticket's file. The segment must exist until
 * they have imported it. Fails with invalid_argument (a segment without a broker). */
GPUSHM_API gpushm_errc gpushm_export_segment(const gpushm_segment* segment,
                                             gpushm_string socket_path,
                                             gpushm_ticket* ticket);

typedef struct gpushm_import_options {
  size_t struct_size;
  gpushm_access access;
  /* Cancels the wait of gpushm_import_file, within about ten milliseconds. */
  gpushm_stop* stop;
  /* The GPU that will use the memory, as in gpushm_open_options. */
  gpushm_string device;
  /* Directory of a socket that the ticket names without a slash; empty: the working directory.
   * gpushm_import_file uses the file's directory. */
  gpushm_string directory;
} gpushm_import_options;

/* Maps the memory that a ticket describes: only through its broker if it names one, else by the
 * handle in it. In the process that exported a handle, the segment's data is the original pointer.
 * A segment that was imported by handle has no name, its state is GPUSHM_SEGMENT_UNKNOWN, and
 * access is always read-write in the driver. Fails with invalid_ticket, unsupported_version,
 * peer_unreachable, peer_died, gone_or_replaced, pid_collision, device_not_visible, and as
 * gpushm_client_open. */
GPUSHM_API gpushm_errc gpushm_import_memory(const void* ticket,
                                            size_t ticket_size,
                                            const gpushm_import_options* options,
                                            gpushm_segment** segment);

/* Imports the ticket in the file at `path`; waits for the file of a live exporter, at most
 * `timeout_ms` (GPUSHM_DEFAULT_TIMEOUT: 0).
 * Fails with no_such_segment (the file does not exist), peer_died (the exporter that wrote it has
 * died), cancelled, and as gpushm_import_memory. */
GPUSHM_API gpushm_errc gpushm_import_file(gpushm_string path,
                                          const gpushm_import_options* options,
                                          int64_t timeout_ms,
                                          gpushm_segment** segment);

/* The contents of a ticket. */
typedef struct gpushm_ticket_info {
  size_t struct_size;
  uint64_t size_bytes;
  uint64_t allocated_bytes;
  uint64_t generation;  /* 0 without a broker */
  int32_t exporter_pid; /* as the exporter's PID namespace numbers it */
  gpushm_backend backend;
  bool has_handle; /* importable without a broker, if the ticket names none */
  uint32_t name_size;
  char name[GPUSHM_MAX_NAME_BYTES + 1]; /* of the broker's segment */
  uint32_t socket_path_size;            /* 0: no broker */
  char socket_path[GPUSHM_MAX_TICKET_BYTES];
  gpushm_device device;
} gpushm_ticket_info;

/* Fails with invalid_ticket, unsupported_version. */
GPUSHM_API gpushm_errc gpushm_describe_ticket(const void* ticket,
                                              size_t ticket_size,
                                              gpushm_ticket_info* info);

/* A ticket in a file. Readers see the whole file or none: it is written under another name and
 * renamed. The file is locked as long as the handle exists (an open file description lock), by
 * which readers in any container distinguish a live exporter from a dead one. Release, and remove
 * the file, with gpushm_ticket_file_close; in a forked child that does nothing, and the child does
 * not keep the lock. */
typedef struct gpushm_ticket_file gpushm_ticket_file;

/* Replaces a dead exporter's file; if several processes try concurrently, one succeeds. `mode` is
 * the file's mode, regardless of the umask. Blocks for at most two seconds, while another process
 * replaces the file. Fails with address_in_use (a live exporter's file), permission_denied,
 * system_error. */
GPUSHM_API gpushm_errc gpushm_ticket_file_create(gpushm_string path,
                                                 const void* ticket,
                                                 size_t ticket_size,
                                                 uint32_t mode,
                                                 gpushm_ticket_file** file);
/* Puts another ticket in the place of the file's: readers see either, at each moment. Fails with
 * permission_denied, system_error; the former ticket remains then. */
GPUSHM_API gpushm_errc gpushm_ticket_file_replace(gpushm_ticket_file* file,
                                                  const void* ticket,
                                                  size_t ticket_size);
GPUSHM_API void gpushm_ticket_file_close(gpushm_ticket_file* file);

/* Reads the ticket in the file of a live exporter; waits and fails as gpushm_import_file. `stop`
 * may be NULL. */
GPUSHM_API gpushm_errc gpushm_read_ticket_file(gpushm_string path,
                                               int64_t timeout_ms,
                                               gpushm_stop* stop,
                                               gpushm_ticket* ticket);

/* NOLINTEND */

#ifdef __cplusplus
}
#endif

#endif
