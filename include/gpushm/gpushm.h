/* SPDX-License-Identifier: Apache-2.0
 *
 * gpushm: shared memory for GPUs. This is what libgpushm.so.1 exports; the C++ headers of this
 * folder are a layer over it. gpushm/broker.h has a broker inside a process. gpushm(3) is
 * an overview, examples/c has programs.
 *
 * What holds for every function, unless it says otherwise:
 *
 * Errors. A function that can fail returns a code: GPUSHM_OK, or why not. gpushm_last_error() then
 * tells cause and next step. What goes out through pointers is written only with GPUSHM_OK.
 *
 * Handles. Types without members here are handles. Who gets one ends it with the function that the
 * type names; ending NULL does nothing. Elsewhere NULL is GPUSHM_ERRC_INVALID_ARGUMENT; functions
 * that return no code answer NULL, 0, or an empty string for it. In a child made by fork, handles
 * of the parent say GPUSHM_ERRC_FORKED, and ending them does nothing.
 *
 * Threads. Functions may be called from any thread, with the same handle too, except those that end
 * it. No function calls back but those that take a function.
 *
 * Structures. Those that begin with `struct_size` may grow: set it to the structure's size, and all
 * else to 0, which is the default of each option; GPUSHM_INIT does both. Options may be NULL: all
 * are the default then. Options that this version of the library does not know must be 0. Of
 * results that it does not know nothing is written. All other structures stay as they are.
 *
 * Texts. They go in as a gpushm_string, with their length, UTF-8, without an end mark. Those that
 * come out have one too. A gpushm_string that comes out is the library's; the function says for how
 * long.
 *
 * Times. Milliseconds; GPUSHM_FOREVER has no end, and a negative one is 0. */
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

/* ---- Types that the others are made of ---- */

#define GPUSHM_VERSION_MAJOR 0
#define GPUSHM_VERSION_MINOR 2
#define GPUSHM_VERSION_PATCH 0

/* A timeout without an end. */
#define GPUSHM_FOREVER INT64_MAX

#define GPUSHM_MAX_NAME_BYTES 255        /* of a segment's name, UTF-8 */
#define GPUSHM_MAX_METADATA_BYTES 65536  /* given to gpushm_segment_publish */
#define GPUSHM_MAX_TICKET_BYTES 4096     /* docs/ticket.md */
#define GPUSHM_MAX_DEVICE_TEXT_BYTES 128 /* of a device's UUID, and of its PCI address */
#define GPUSHM_MAX_SOCKET_PATH_BYTES 107 /* what an address of a socket holds */

typedef struct gpushm_string {
  const char* data; /* may be NULL when size is 0 */
  size_t size;      /* bytes, without an end mark */
} gpushm_string;

/* The text with an end mark at `text`; an empty one for NULL. */
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

/* In C an enumeration is as wide as an int; in C++ it is told so. */
#ifdef __cplusplus
#define GPUSHM_INT : int
#else
#define GPUSHM_INT
#endif

/* Why an operation failed; docs/errors.md lists each with its causes and remedies. Values of this
 * and of all enumerations stay; new ones may come. */
typedef enum gpushm_errc GPUSHM_INT {
  GPUSHM_OK = 0,
  GPUSHM_ERRC_INVALID_ARGUMENT = 1,
  GPUSHM_ERRC_NO_SUCH_SEGMENT = 2,
  GPUSHM_ERRC_ALREADY_EXISTS = 3,
  GPUSHM_ERRC_PERMISSION_DENIED = 4,
  GPUSHM_ERRC_TIMED_OUT = 5,
  GPUSHM_ERRC_BROKER_UNREACHABLE = 6,
  GPUSHM_ERRC_BROKER_GONE = 7,
  GPUSHM_ERRC_PROTOCOL_ERROR = 8,
  GPUSHM_ERRC_UNSUPPORTED_VERSION = 9,
  GPUSHM_ERRC_QUOTA_EXCEEDED = 10,
  GPUSHM_ERRC_OUT_OF_MEMORY = 11,
  GPUSHM_ERRC_TOO_MANY_SEGMENTS = 12,
  GPUSHM_ERRC_TOO_MANY_DESCRIPTORS = 13,
  GPUSHM_ERRC_TOO_MANY_CONNECTIONS = 14,
  GPUSHM_ERRC_TOO_MANY_REQUESTS = 15,
  GPUSHM_ERRC_DEVICE_NOT_FOUND = 16,
  GPUSHM_ERRC_DEVICE_NOT_VISIBLE = 17,
  GPUSHM_ERRC_DRIVER_UNAVAILABLE = 18,
  GPUSHM_ERRC_DRIVER_ERROR = 19,
  GPUSHM_ERRC_WRONG_DESCRIPTOR_KIND = 20,
  GPUSHM_ERRC_WRONG_DESCRIPTOR_COUNT = 21,
  GPUSHM_ERRC_SIZE_MISMATCH = 22,
  GPUSHM_ERRC_FORKED = 23,
  GPUSHM_ERRC_PEER_DIED = 24,
  GPUSHM_ERRC_STALE_GENERATION = 25,
  GPUSHM_ERRC_MESSAGE_TOO_LARGE = 26,
  GPUSHM_ERRC_ADDRESS_IN_USE = 27,
  GPUSHM_ERRC_AMBIGUOUS_DOMAIN = 28,
  GPUSHM_ERRC_ALREADY_PUBLISHED = 30,
  GPUSHM_ERRC_SEGMENT_REMOVED = 31,
  GPUSHM_ERRC_SYSTEM_ERROR = 32,
  GPUSHM_ERRC_NOT_EXPORTABLE = 33,
  GPUSHM_ERRC_PID_COLLISION = 34,
  GPUSHM_ERRC_GONE_OR_REPLACED = 35,
  GPUSHM_ERRC_INVALID_TICKET = 36,
  GPUSHM_ERRC_PEER_UNREACHABLE = 37,
  GPUSHM_ERRC_SHARE_EXCEEDED = 38,
  GPUSHM_ERRC_WRITER_ENDING = 39,
  GPUSHM_ERRC_CANCELLED = 40
} gpushm_errc;

/* How a mapping may be used. A promise of the importer that guards against mistakes, not against
 * attackers: whoever holds the descriptor can map it read-write (docs/threat-model.md). */
typedef enum gpushm_access GPUSHM_INT {
  GPUSHM_ACCESS_READ = 0,
  GPUSHM_ACCESS_READ_WRITE = 1
} gpushm_access;

/* When the broker frees a segment. */
typedef enum gpushm_lifetime GPUSHM_INT {
  GPUSHM_LIFETIME_LEASED = 0,    /* when its last lease ends, its creator's included */
  GPUSHM_LIFETIME_PERSISTENT = 1 /* when it is removed */
} gpushm_lifetime;

/* What a mapped segment's owner can learn without a system call. */
typedef enum gpushm_segment_state GPUSHM_INT {
  GPUSHM_SEGMENT_LIVE = 0,
  GPUSHM_SEGMENT_REMOVED = 1,       /* the name is gone; this mapping stays valid */
  GPUSHM_SEGMENT_EXPORTER_GONE = 2, /* the exporting process died; this mapping stays valid */
  /* the broker died; the mapping stays valid, the lease is gone */
  GPUSHM_SEGMENT_BROKER_GONE = 3,
  GPUSHM_SEGMENT_UNKNOWN = 4 /* imported without a broker: nobody watches the exporter */
} gpushm_segment_state;

/* How a segment's memory is made and travels. */
typedef enum gpushm_backend GPUSHM_INT {
  GPUSHM_BACKEND_HOST = 0,     /* sealed memfds */
  GPUSHM_BACKEND_CUDA_VMM = 1, /* cuMemCreate chunks, as descriptors */
  GPUSHM_BACKEND_CUDA_IPC = 2, /* cudaMalloc memory, as a legacy handle; bound to its exporter */
  GPUSHM_BACKEND_CUDA_POOL = 3 /* memory of an exportable pool; bound to its exporter */
} gpushm_backend;

typedef enum gpushm_device_kind GPUSHM_INT {
  GPUSHM_DEVICE_HOST = 0,
  GPUSHM_DEVICE_GPU = 1,
  GPUSHM_DEVICE_MIG = 2
} gpushm_device_kind;

/* How a broker knows that a process can write nothing any more, its GPU work included
 * (docs/sharing.md, "The fence"). */
typedef enum gpushm_fence GPUSHM_INT {
  GPUSHM_FENCE_NONE = 0,    /* it cannot: it waits for a documented time instead */
  GPUSHM_FENCE_PROVEN = 1,  /* the process has ended, and no child can have its driver files */
  GPUSHM_FENCE_UNPROVEN = 2 /* the process has ended; a child of it may have them */
} gpushm_fence;

/* What the leases of a connection that ended without a goodbye wait for. */
typedef enum gpushm_fence_wait GPUSHM_INT {
  GPUSHM_FENCE_WAIT_PROCESS = 0,    /* for the end of the process */
  GPUSHM_FENCE_WAIT_DESCENDANT = 1, /* it has ended; a descendant may have its driver files */
  GPUSHM_FENCE_WAIT_DELAY = 2       /* for the documented time to pass */
} gpushm_fence_wait;

/* What a subscription reports. */
typedef enum gpushm_event_kind GPUSHM_INT {
  GPUSHM_EVENT_PUBLISHED = 1,
  GPUSHM_EVENT_OPENED = 2, /* another connection was granted a lease; its import may still fail */
  /* the last lease other than the creator's ended; not if no such lease was used: an import
   * that failed is followed by none */
  GPUSHM_EVENT_RELEASED = 3,
  GPUSHM_EVENT_REMOVED = 4,
  /* a process that created or held the segment ended without a goodbye; it can write nothing
   * any more (docs/sharing.md, "The fence") */
  GPUSHM_EVENT_PEER_DIED = 5,
  GPUSHM_EVENT_RESYNC = 6,  /* events were lost (slow subscriber, or a new broker): list again */
  GPUSHM_EVENT_UNFENCED = 7 /* an operator gave up what such a process left: it may be written */
} gpushm_event_kind;

typedef enum gpushm_log_level GPUSHM_INT {
  GPUSHM_LOG_DEBUG = 0,
  GPUSHM_LOG_INFO = 1,
  GPUSHM_LOG_WARNING = 2,
  GPUSHM_LOG_ERROR = 3
} gpushm_log_level;

/* Their stable names ("no_such_segment", "read-write"); "unknown" for a value that this version
 * does not know. Constants. */
GPUSHM_API gpushm_string gpushm_errc_name(gpushm_errc value);
GPUSHM_API gpushm_string gpushm_access_name(gpushm_access value);
GPUSHM_API gpushm_string gpushm_lifetime_name(gpushm_lifetime value);
GPUSHM_API gpushm_string gpushm_segment_state_name(gpushm_segment_state value);
GPUSHM_API gpushm_string gpushm_backend_name(gpushm_backend value);
GPUSHM_API gpushm_string gpushm_device_kind_name(gpushm_device_kind value);
GPUSHM_API gpushm_string gpushm_fence_name(gpushm_fence value);
GPUSHM_API gpushm_string gpushm_fence_wait_name(gpushm_fence_wait value);
GPUSHM_API gpushm_string gpushm_event_kind_name(gpushm_event_kind value);

/* Of the library that is loaded: MAJOR << 16 | MINOR << 8 | PATCH. */
GPUSHM_API uint32_t gpushm_version(void);

/* Where a segment's memory lives. Same meaning in every process: ordinals, which
 * CUDA_VISIBLE_DEVICES changes, are not part of it. */
typedef struct gpushm_device {
  gpushm_device_kind kind;
  int32_t minor;                               /* N of /dev/nvidiaN; -1 when unknown or the host */
  uint32_t uuid_size;                          /* 0 for the host */
  uint32_t pci_address_size;                   /* 0 for the host */
  char uuid[GPUSHM_MAX_DEVICE_TEXT_BYTES + 4]; /* "GPU-..." or "MIG-..." */
  char pci_address[GPUSHM_MAX_DEVICE_TEXT_BYTES + 4]; /* "0000:18:00.0" */
} gpushm_device;

/* A broker's random number, made when it starts. With a generation it identifies memory for ever.
 */
typedef struct gpushm_epoch {
  uint8_t bytes[16];
} gpushm_epoch;

/* ---- Errors ---- */

/* Ended with gpushm_error_free. */
typedef struct gpushm_error gpushm_error;

/* What this thread's latest failure was; NULL before any. The library's; until the thread's next
 * failure. Success leaves it as it is. */
GPUSHM_API const gpushm_error* gpushm_last_error(void);

GPUSHM_API gpushm_errc gpushm_error_code(const gpushm_error* error);
/* What the error is made of, as long as it lives. Parts may be empty. */
GPUSHM_API gpushm_string gpushm_error_operation(const gpushm_error* error);
GPUSHM_API gpushm_string gpushm_error_object(const gpushm_error* error);
GPUSHM_API gpushm_string gpushm_error_cause(const gpushm_error* error);
GPUSHM_API gpushm_string gpushm_error_next_step(const gpushm_error* error);
/* OPERATION "OBJECT": CAUSE (NEXT STEP): one line, fit for any terminal. */
GPUSHM_API gpushm_string gpushm_error_message(const gpushm_error* error);

/* Another handle of the same, immutable error. Never fails. */
GPUSHM_API gpushm_error* gpushm_error_dup(const gpushm_error* error);
GPUSHM_API void gpushm_error_free(gpushm_error* error);
/* For layers over this one that have failures of their own. NULL: no memory. */
GPUSHM_API gpushm_error* gpushm_error_create(gpushm_errc code,
                                             gpushm_string operation,
                                             gpushm_string object,
                                             gpushm_string cause,
                                             gpushm_string next_step);

/* ---- Cancellation ---- */

/* Ends waits. Ended with gpushm_stop_free, at any time: who waits has a share of it. */
typedef struct gpushm_stop gpushm_stop;

GPUSHM_API gpushm_errc gpushm_stop_create(gpushm_stop** stop);
/* Every wait that was given `stop`, now or later, ends with GPUSHM_ERRC_CANCELLED. Does not block.
 * Not for signal handlers: those tell a thread, which calls this. */
GPUSHM_API void gpushm_stop_request(gpushm_stop* stop);
GPUSHM_API void gpushm_stop_free(gpushm_stop* stop);

/* ---- Log ---- */

/* From any thread, without a lock of the library; may call gpushm, but not end a client, nor ask a
 * broker of this process. Must return; a C++ exception must not leave it. `text` is for this call.
 */
typedef void (*gpushm_log_sink)(void* user, gpushm_log_level level, gpushm_string text);
/* Ends what `user` points to; called once, from the thread that called the library last with it. */
typedef void (*gpushm_destroy)(void* user);

/* Sends the library's log lines (warnings, mostly) to `sink` instead of nowhere; NULL: nowhere
 * again. `destroy` may be NULL; else it is called when the sink was replaced and no call of it runs
 * any more, also when this fails. */
GPUSHM_API gpushm_errc gpushm_set_log_sink(gpushm_log_sink sink,
                                           void* user,
                                           gpushm_destroy destroy);

/* ---- Clients ---- */

/* A connection to a broker; segments and subscriptions made with it stay usable after it was closed
 * (they share the connection). When the broker dies, requests under way fail with
 * GPUSHM_ERRC_BROKER_GONE and the next request connects to its successor. Ended with
 * gpushm_client_close. */
typedef struct gpushm_client gpushm_client;
/* A segment mapped into this process, with its lease. Ended with gpushm_segment_close. */
typedef struct gpushm_segment gpushm_segment;
/* Segments and what a broker says of them. Ended with gpushm_segment_list_free. */
typedef struct gpushm_segment_list gpushm_segment_list;
/* A stream of events. Ended with gpushm_subscription_close. */
typedef struct gpushm_subscription gpushm_subscription;

/* Mappings of persistent segments stay for the next open after their last user is gone, within
 * these limits; those in use do not count. */
typedef struct gpushm_connect_options {
  size_t struct_size;
  /* The broker's socket. Empty: $GPUSHM_SOCKET; else the one domain mounted under /run/gpushm/d
   * (several: GPUSHM_ERRC_AMBIGUOUS_DOMAIN); else /run/gpushm/d/default/socket. */
  gpushm_string socket_path;
  /* How long to wait for a broker that is not there yet, its welcome included. 0: do not wait for
   * it to appear, and `request_timeout_ms` for its welcome. */
  int64_t timeout_ms;
  /* How long any one request may take, waiting for names excluded. 0: 30,000. */
  int64_t request_timeout_ms;
  /* Ends the wait for a broker, also one that a later call of the client connects to again. */
  gpushm_stop* stop;
  /* Most bytes and mappings that the client keeps though nobody uses them: 0 keeps nothing,
   * UINT64_MAX is unlimited. They count where the `has_` beside them is true; else
   * GPUSHM_CACHE_MAX_BYTES and GPUSHM_CACHE_MAX_ENTRIES of the environment do (also like "16GiB",
   * or "unlimited"), else 64 GiB and 256. */
  uint64_t cache_max_bytes;
  uint64_t cache_max_entries;
  bool has_cache_max_bytes;
  bool has_cache_max_entries;
} gpushm_connect_options;

/* Blocks until connected, at most `timeout_ms`, or one request timeout if that is 0. Fails with
 * broker_unreachable, ambiguous_domain, permission_denied, unsupported_version,
 * too_many_connections, timed_out, cancelled. */
GPUSHM_API gpushm_errc gpushm_client_connect(const gpushm_connect_options* options,
                                             gpushm_client** client);
/* Another handle of the same connection. */
GPUSHM_API gpushm_errc gpushm_client_dup(const gpushm_client* client, gpushm_client** dup);
/* Blocks until this client's thread has ended where this was the last use of the connection. */
GPUSHM_API void gpushm_client_close(gpushm_client* client);

typedef struct gpushm_create_options {
  size_t struct_size;
  uint64_t size_bytes; /* must not be 0 */
  /* An ordinal as CUDA numbers it, "GPU-<uuid>", "MIG-<uuid>", "host", or "auto" (as empty): the
   * first visible GPU, else the host. */
  gpushm_string device;
  /* Size of one physical allocation, rounded up to the device's granularity; 0: one for all. Keep 0
   * for memory that other libraries get: many ask the driver for the range of an address
   * (cuMemGetAddressRange) and see the first chunk only. */
  uint64_t chunk_bytes;
  gpushm_lifetime lifetime;
  /* Host segments only: use 2 MiB huge pages (out_of_memory when the node has none free). */
  bool huge_pages;
} gpushm_create_options;

/* Reserves the name, allocates and maps the memory for reading and writing, and hands its
 * descriptors to the broker. Nobody else sees it before gpushm_segment_publish; contents are zero
 * on the host and undefined on GPUs. Where a dead process had the name, waits until that can write
 * nothing any more, ten seconds at most. Fails with invalid_argument, already_exists,
 * writer_ending, quota_exceeded, out_of_memory, too_many_segments, too_many_descriptors,
 * device_not_found, driver_unavailable, driver_error, broker_gone, timed_out, forked. */
GPUSHM_API gpushm_errc gpushm_client_create(gpushm_client* client,
                                            gpushm_string name,
                                            const gpushm_create_options* options,
                                            gpushm_segment** segment);

typedef struct gpushm_share_options {
  size_t struct_size;
  /* Persistent only for memory that travels as descriptors (chunks of virtual memory, memfds). */
  gpushm_lifetime lifetime;
  /* True: only this client sees it until gpushm_segment_publish. */
  bool unpublished;
  /* For those who open it. */
  const void* metadata;
  size_t metadata_size;
} gpushm_share_options;

/* Makes memory that somebody else allocated a segment, published at once: the range may lie
 * anywhere in cudaMalloc memory, in an exportable pool, in virtual memory (also over many chunks),
 * or in a sealed memfd. The segment's data is `pointer`; the memory stays its allocator's. Finish
 * the writes that readers rely on first.
 *
 * Virtual memory and memfds live on in the broker. cudaMalloc and pool memory stays this process's:
 * call gpushm_segment_unshare before it is freed. The segment ends with its last handle here, with
 * this process (peer_died for who comes later), or when an importer comes and the memory is found
 * to be freed (gone_or_replaced). Legacy handles give importers the whole allocation, not only this
 * range.
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
  /* How long to wait for the name to be published. 0: do not wait. */
  int64_t timeout_ms;
  /* The GPU that will use the memory, written as in gpushm_create_options; empty: the GPU that the
   * memory is on, or the first visible GPU when CUDA does not show that one. */
  gpushm_string device;
  /* When not 0: size_mismatch unless the segment has exactly this size. */
  uint64_t expected_size_bytes;
  /* Ends the wait for the name at once. A name that is there is opened all the same. */
  gpushm_stop* stop;
} gpushm_open_options;

/* Opens a published segment. Blocks while the name is not there, at most `timeout_ms`. Fails with
 * no_such_segment (not there in time), size_mismatch, device_not_visible, device_not_found,
 * driver_unavailable, driver_error, too_many_descriptors, broker_gone, cancelled, forked; for
 * memory that stays its exporter's also peer_died, gone_or_replaced, pid_collision,
 * peer_unreachable. */
GPUSHM_API gpushm_errc gpushm_client_open(gpushm_client* client,
                                          gpushm_string name,
                                          const gpushm_open_options* options,
                                          gpushm_segment** segment);
/* The same, but a name that is not there (in time), whose exporter has died, or that only dead
 * processes had that may still write it, is NULL and no error. */
GPUSHM_API gpushm_errc gpushm_client_try_open(gpushm_client* client,
                                              gpushm_string name,
                                              const gpushm_open_options* options,
                                              gpushm_segment** segment);

/* One of the two is not NULL. */
typedef struct gpushm_open_result {
  gpushm_segment* segment; /* the caller's */
  gpushm_error* failure;   /* the caller's */
} gpushm_open_result;

/* Opens any number of names with few round trips; `results` has room for `count`, in order.
 * `timeout_ms` is for all of them together. Fails, and gives none, where one of the names cannot be
 * one (invalid_argument) or nothing could be asked (broker_unreachable, broker_gone, forked). */
GPUSHM_API gpushm_errc gpushm_client_open_many(gpushm_client* client,
                                               const gpushm_string* names,
                                               size_t count,
                                               const gpushm_open_options* options,
                                               gpushm_open_result* results);

/* Asks for what opens of persistent segments under `prefix` will need of the broker: the next open
 * of each then asks nobody, and only maps. Each is a lease of this client from now on, which goes
 * back with gpushm_client_trim, with the end of the segment, of the client, or of the broker, and
 * holds its descriptors. Leaves out what this client has already, memory that stays its exporter's,
 * and what has more than 253 chunks; keeps at most 4,096 segments and a quarter of the descriptors
 * that the process may open, and nothing where the cache keeps nothing. Blocks for some round
 * trips, at most one request timeout. `count`, unless it is NULL, gets how many there are more.
 * Fails with broker_gone, timed_out, forked; what has come by then stays. */
GPUSHM_API gpushm_errc gpushm_client_prefetch(gpushm_client* client,
                                              gpushm_string prefix,
                                              size_t* count);

/* What a broker says of a segment. */
typedef struct gpushm_segment_info {
  size_t struct_size;
  uint64_t generation;
  uint64_t size_bytes;      /* what was asked for */
  uint64_t allocated_bytes; /* what it takes, rounded up to the device's granularity */
  uint64_t metadata_bytes;
  int64_t ending_for_ms;
  uint32_t chunks;    /* physical allocations, one descriptor each */
  uint32_t leases;    /* connections that hold it, the creator's included */
  uint32_t ending;    /* of `leases`, those whose connection has ended without a goodbye; they end
                         with their fence (docs/sharing.md) */
  int32_t ending_pid; /* process of the oldest, as the broker sees it; 0 when it cannot */
  gpushm_fence_wait ending_waits;
  uint32_t creator_uid; /* as the broker sees it */
  int32_t creator_pid;  /* as the broker sees it; 0 when it cannot */
  gpushm_backend backend;
  gpushm_lifetime lifetime;
  gpushm_segment_state state;
  bool published;
  bool creator_alive; /* the creator's connection is still there */
  uint32_t name_size;
  char name[GPUSHM_MAX_NAME_BYTES + 1];
  gpushm_device device;
} gpushm_segment_info;

/* Published segments, and own unpublished ones, whose names start with `prefix`, sorted by name. */
GPUSHM_API gpushm_errc gpushm_client_list(gpushm_client* client,
                                          gpushm_string prefix,
                                          gpushm_segment_list** list);
GPUSHM_API size_t gpushm_segment_list_size(const gpushm_segment_list* list);
/* Fails with invalid_argument when `index` is not below the list's size. */
GPUSHM_API gpushm_errc gpushm_segment_list_get(const gpushm_segment_list* list,
                                               size_t index,
                                               gpushm_segment_info* info);
GPUSHM_API void gpushm_segment_list_free(gpushm_segment_list* list);

/* Fails with no_such_segment. */
GPUSHM_API gpushm_errc gpushm_client_stat(gpushm_client* client,
                                          gpushm_string name,
                                          gpushm_segment_info* info);

/* Takes the name away; memory goes with the last lease. Allowed to the creator's connection, the
 * creator's uid and the broker's uid. Fails with no_such_segment, permission_denied. */
GPUSHM_API gpushm_errc gpushm_client_remove(gpushm_client* client, gpushm_string name);

/* Ends the leases on the segment whose connections have ended without a goodbye and whose fence has
 * not come, though their processes may still write it: for operators. Subscribers hear
 * GPUSHM_EVENT_UNFENCED. Allowed as removing. Fails with no_such_segment, permission_denied,
 * invalid_argument (nothing of it waits for a fence). */
GPUSHM_API gpushm_errc gpushm_client_unfence(gpushm_client* client, gpushm_string name);

/* What a broker says of itself. */
typedef struct gpushm_broker_info {
  size_t struct_size;
  uint64_t max_segments;
  uint64_t quota_bytes;   /* of the domain; 0: no limit */
  int64_t fence_delay_ms; /* what it waits for where there is no fence */
  uint32_t protocol_version;
  int32_t pid;        /* as this process sees it; 0 when it cannot */
  gpushm_fence fence; /* how it knows that this process can write nothing any more, once it ended */
  gpushm_epoch epoch;
  uint32_t socket_path_size;
  char socket_path[GPUSHM_MAX_SOCKET_PATH_BYTES + 1];
  uint32_t domain_size;
  char domain[GPUSHM_MAX_NAME_BYTES + 1];
} gpushm_broker_info;

/* Connects again where the broker has died. */
GPUSHM_API gpushm_errc gpushm_client_broker(gpushm_client* client, gpushm_broker_info* info);

/* What a client's import cache did and has. */
typedef struct gpushm_cache_stats {
  size_t struct_size;
  uint64_t hits;         /* opens without broker and driver */
  uint64_t misses;       /* opens that asked the broker */
  uint64_t evictions;    /* mappings that went because of the limits */
  uint64_t kept_entries; /* mappings that nobody uses */
  uint64_t kept_bytes;
  uint64_t used_entries; /* mappings in use */
  uint64_t used_bytes;
} gpushm_cache_stats;

/* Reads memory only. */
GPUSHM_API gpushm_errc gpushm_client_cache_stats(const gpushm_client* client,
                                                 gpushm_cache_stats* stats);
/* Ends the mappings that nobody uses. Blocks for the driver. */
GPUSHM_API gpushm_errc gpushm_client_trim(gpushm_client* client);

/* ---- Segments ---- */

/* Another handle of the same use of the mapping, for libraries that keep memory for as long as they
 * use it (a DLPack capsule, a tensor's deleter). Never fails. */
GPUSHM_API gpushm_segment* gpushm_segment_dup(const gpushm_segment* segment);
/* The mapping and its lease go with the last handle of that generation in the process; until the
 * next open they may stay (gpushm_connect_options). Does not wait for GPU work that still uses the
 * memory: synchronize first. On any thread. */
GPUSHM_API void gpushm_segment_close(gpushm_segment* segment);

/* The first byte: a device pointer (also a CUdeviceptr) for GPU segments, a CPU pointer for host
 * ones. As long as the segment. */
GPUSHM_API const void* gpushm_segment_data(const gpushm_segment* segment);
/* The same, for writing; NULL where it was opened with GPUSHM_ACCESS_READ (the hardware refuses
 * writes there, too). */
GPUSHM_API void* gpushm_segment_mutable_data(const gpushm_segment* segment);
/* Bytes asked for at creation; the mapping may be longer. */
GPUSHM_API uint64_t gpushm_segment_size_bytes(const gpushm_segment* segment);
/* As long as the segment; empty for one that was imported without a broker. */
GPUSHM_API gpushm_string gpushm_segment_name(const gpushm_segment* segment);
/* Where the memory is. */
GPUSHM_API gpushm_errc gpushm_segment_device(const gpushm_segment* segment, gpushm_device* device);
/* The device that uses the mapping, as CUDA numbers it in this process (CUDA_VISIBLE_DEVICES
 * decides); -1 for the host. Another one than the memory's where a peer has opened the segment. */
GPUSHM_API int32_t gpushm_segment_ordinal(const gpushm_segment* segment);
GPUSHM_API gpushm_backend gpushm_segment_backend(const gpushm_segment* segment);
GPUSHM_API gpushm_access gpushm_segment_access(const gpushm_segment* segment);
GPUSHM_API gpushm_lifetime gpushm_segment_lifetime(const gpushm_segment* segment);
GPUSHM_API uint64_t gpushm_segment_generation(const gpushm_segment* segment);
/* Zeros without a broker. */
GPUSHM_API gpushm_errc gpushm_segment_epoch(const gpushm_segment* segment, gpushm_epoch* epoch);
/* What the creator gave to gpushm_segment_publish, as long as the segment; empty before it. */
GPUSHM_API gpushm_errc gpushm_segment_metadata(const gpushm_segment* segment,
                                               const void** data,
                                               size_t* size);
/* Reads shared memory only: no system call, never blocks. */
GPUSHM_API gpushm_segment_state gpushm_segment_current_state(const gpushm_segment* segment);

/* Makes a created segment visible to others, with metadata. Does not synchronize any stream: finish
 * the writes that readers rely on first. Blocks for one round trip to the broker (at most the
 * client's request timeout). Fails with already_published, message_too_large, permission_denied,
 * broker_gone, timed_out, forked. */
GPUSHM_API gpushm_errc gpushm_segment_publish(gpushm_segment* segment,
                                              const void* metadata,
                                              size_t metadata_size);
/* Ends what gpushm_client_share began: when it returns, nobody new gets the memory, and it may be
 * freed. Who has it mapped keeps it. Handles of it stay valid until the memory is freed. Blocks for
 * one round trip to the broker. Fails with invalid_argument (this process does not share it, or not
 * any more), timed_out, forked. */
GPUSHM_API gpushm_errc gpushm_segment_unshare(gpushm_segment* segment);

/* Copy between the segment and host memory; work for every device and return when done. The range
 * must lie within the segment. Fail with invalid_argument (out of range, or writing what is mapped
 * for reading), driver_error, forked (memory of a GPU, in a forked child). */
GPUSHM_API gpushm_errc gpushm_segment_read(const gpushm_segment* segment,
                                           uint64_t offset_bytes,
                                           void* destination,
                                           size_t size);
GPUSHM_API gpushm_errc gpushm_segment_write(gpushm_segment* segment,
                                            uint64_t offset_bytes,
                                            const void* source,
                                            size_t size);
/* Sets every byte; returns when done. Fails as writing. */
GPUSHM_API gpushm_errc gpushm_segment_fill(gpushm_segment* segment, uint8_t value);

/* ---- Subscriptions ---- */

typedef struct gpushm_event {
  size_t struct_size;
  uint64_t generation;
  gpushm_event_kind kind;
  uint32_t leases;  /* after the event */
  int32_t peer_pid; /* of the process that caused it, as the broker sees it; 0: unknown */
  uint32_t name_size;
  char name[GPUSHM_MAX_NAME_BYTES + 1];
} gpushm_event;

/* Events of segments whose names start with `prefix`, from now on. `present`, unless it is NULL,
 * gets the segments that are there already, as gpushm_client_list gives them: none is missed
 * between the two, but the first events may be of segments that are in the list. */
GPUSHM_API gpushm_errc gpushm_client_subscribe(gpushm_client* client,
                                               gpushm_string prefix,
                                               gpushm_segment_list** present,
                                               gpushm_subscription** subscription);
/* Not while another call with the subscription runs. */
GPUSHM_API void gpushm_subscription_close(gpushm_subscription* subscription);

/* The functions below: one thread at a time for a subscription. */

/* The next event; `arrived` is false when `timeout_ms` passed, or `stop` (may be NULL) was
 * requested, first. At most 1,024 unread events are kept; then the oldest are dropped and a resync
 * says so. Fails with broker_gone once, when the broker is gone and everything before has been
 * read; later calls resume on the new broker after a resync. */
GPUSHM_API gpushm_errc gpushm_subscription_next(gpushm_subscription* subscription,
                                                int64_t timeout_ms,
                                                gpushm_stop* stop,
                                                gpushm_event* event,
                                                bool* arrived);

/* A descriptor for poll(2) and its kin: readable when gpushm_subscription_dispatch has something to
 * do. The subscription's, and as long as it: neither read nor close it. An open that waits for its
 * name is an event loop's in this way: subscribe to the name, and open it when it is published. */
GPUSHM_API gpushm_errc gpushm_subscription_descriptor(gpushm_subscription* subscription,
                                                      int* descriptor);

/* On the thread that calls gpushm_subscription_dispatch, without a lock of the library; may call
 * gpushm, but neither this subscription's functions nor close it. `event` is for this call. False:
 * no more events now. A C++ exception must not leave it. */
typedef bool (*gpushm_event_handler)(void* user, const gpushm_event* event);

/* Gives every unread event to `handler`, and waits for none. `count`, unless it is NULL, gets how
 * many they were, with an error too. Fails as gpushm_subscription_next. */
GPUSHM_API gpushm_errc gpushm_subscription_dispatch(gpushm_subscription* subscription,
                                                    gpushm_event_handler handler,
                                                    void* user,
                                                    size_t* count);

/* ---- Sharing without a broker of the node (docs/sharing.md) ---- */

/* Bytes that another process on the machine imports, brought there by a file, a message or a rank
 * exchange. docs/ticket.md is their format. */
typedef struct gpushm_ticket {
  size_t size;
  uint8_t bytes[GPUSHM_MAX_TICKET_BYTES];
} gpushm_ticket;

/* Describes memory of this process that bytes alone can carry: cudaMalloc memory, as a legacy
 * handle that works in every PID namespace. `pointer` may lie anywhere in the allocation. The
 * memory stays the caller's; importers can open it until it is freed or this process dies, and
 * nobody notices when it is freed and allocated anew: say so to the importers first. Importers get
 * the whole allocation, not only this range. For a check on each import, and for other memory,
 * share it through a broker and use gpushm_export_segment. Does not block. Fails with
 * invalid_argument, not_exportable (also for memory that travels as file descriptors),
 * driver_error, forked. */
GPUSHM_API gpushm_errc gpushm_export_memory(void* pointer,
                                            uint64_t size_bytes,
                                            gpushm_ticket* ticket);

/* Describes a published segment: importers connect to its broker, which has what travels as file
 * descriptors. `socket_path` is how importers reach the broker's socket; empty: its absolute path
 * here; a name without a slash: beside the ticket's file. The segment must live until they have
 * imported it. Fails with invalid_argument (one without a broker). */
GPUSHM_API gpushm_errc gpushm_export_segment(const gpushm_segment* segment,
                                             gpushm_string socket_path,
                                             gpushm_ticket* ticket);

typedef struct gpushm_import_options {
  size_t struct_size;
  gpushm_access access;
  /* gpushm_import_file: how long to wait for the file of a living exporter. 0: do not wait. */
  int64_t timeout_ms;
  /* Ends that wait, within some ten milliseconds. */
  gpushm_stop* stop;
  /* The GPU that will use the memory, as in gpushm_open_options. */
  gpushm_string device;
  /* Where a socket lies that the ticket names without a slash; empty: the working directory.
   * gpushm_import_file uses the file's. */
  gpushm_string directory;
} gpushm_import_options;

/* Maps what a ticket describes: through its broker when it names one, else by the handle that it
 * carries. In the process that exported a handle, the segment's data is the pointer itself. A
 * segment that was imported by its handle has no name, its state is GPUSHM_SEGMENT_UNKNOWN, and
 * access is always read-write in the driver. Fails with invalid_ticket, unsupported_version,
 * peer_unreachable, peer_died, gone_or_replaced, pid_collision, device_not_visible, and as
 * gpushm_client_open. */
GPUSHM_API gpushm_errc gpushm_import_memory(const void* ticket,
                                            size_t ticket_size,
                                            const gpushm_import_options* options,
                                            gpushm_segment** segment);

/* Imports what the file at `path` describes, waiting up to `timeout_ms` for a living exporter's
 * file. Fails with no_such_segment (there is no file), peer_died (the exporter that wrote it has
 * died), cancelled, and as gpushm_import_memory. */
GPUSHM_API gpushm_errc gpushm_import_file(gpushm_string path,
                                          const gpushm_import_options* options,
                                          gpushm_segment** segment);

/* What a ticket says. */
typedef struct gpushm_ticket_info {
  size_t struct_size;
  uint64_t size_bytes;
  uint64_t allocated_bytes;
  uint64_t generation;  /* 0 without a broker */
  int32_t exporter_pid; /* as the exporter's PID namespace numbers it */
  gpushm_backend backend;
  bool has_handle; /* importable without a broker */
  uint32_t name_size;
  char name[GPUSHM_MAX_NAME_BYTES + 1]; /* of the broker's segment */
  uint32_t socket_path_size;            /* 0: it names no broker */
  char socket_path[GPUSHM_MAX_TICKET_BYTES];
  gpushm_device device;
} gpushm_ticket_info;

/* Fails with invalid_ticket, unsupported_version. */
GPUSHM_API gpushm_errc gpushm_describe_ticket(const void* ticket,
                                              size_t ticket_size,
                                              gpushm_ticket_info* info);

/* A ticket in a file. Readers see the whole file or none: it is written under another name and
 * renamed. As long as the handle lives the file is locked (an open file description lock), which is
 * how readers in any container tell a living exporter from a dead one. Ended, and the file removed,
 * with gpushm_ticket_file_close; in a forked child that does nothing, and neither keeps the lock.
 */
typedef struct gpushm_ticket_file gpushm_ticket_file;

/* A dead exporter's file is replaced; of several processes that try at once, one wins. `mode` is
 * the file's, whatever the umask. Blocks for at most two seconds, while another process replaces
 * the file. Fails with address_in_use (a living exporter's file), permission_denied, system_error.
 */
GPUSHM_API gpushm_errc gpushm_ticket_file_create(gpushm_string path,
                                                 const void* ticket,
                                                 size_t ticket_size,
                                                 uint32_t mode,
                                                 gpushm_ticket_file** file);
GPUSHM_API void gpushm_ticket_file_close(gpushm_ticket_file* file);

/* Reads the ticket in the file of a living exporter; waits and fails as gpushm_import_file. `stop`
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
