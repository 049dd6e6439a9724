/* SPDX-License-Identifier: Apache-2.0
 *
 * An in-process broker, and sharing through a file: the interface that libgpushm-broker.so.1
 * exports. The rules at the top of gpushm/gpushm.h apply. */
#ifndef GPUSHM_BROKER_H
#define GPUSHM_BROKER_H

#include "gpushm/gpushm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN: this is C */

/* Limits of one broker (docs/protocol.md, "Limits"). gpushm_broker_limits_default sets the
 * documented defaults; in this structure 0 is not a default. */
typedef struct gpushm_broker_limits {
  size_t struct_size;
  uint32_t max_segments; /* slots of the state table */
  uint32_t max_connections;
  uint64_t quota_bytes; /* of the host's memory, and of each GPU's; 0: no limit */
  /* The same of one principal (docs/threat-model.md): a pod, a container, or a uid. */
  uint64_t quota_bytes_per_principal;
  /* Memory of this process that clients can make the broker use: records of segments, metadata,
   * connections, unread responses. 0: half of what the process may use (its control group, the
   * machine), 16 MiB to 1 GiB. */
  uint64_t memory_bytes;
  uint64_t max_descriptors;          /* 0: what the process may open, less the reserved ones */
  uint32_t max_pending_opens;        /* opens of one connection that wait for their names */
  uint32_t reserved_descriptors;     /* kept free for the broker itself */
  uint32_t hello_timeout_ms;         /* a connection without a hello by then is closed */
  uint32_t send_timeout_ms;          /* a peer that does not read is dropped */
  uint32_t max_inflight_descriptors; /* sent to one peer and not yet read by it */
  /* How long leases of a dead process are kept if there is no fence or it is not proven, and those
   * of a process that executed another program: GPU work of a dead process was observed to write
   * for up to 2.5 s (docs/sharing.md, "The fence"). */
  uint32_t fence_delay_ms;
} gpushm_broker_limits;

/* `limits->struct_size` must be set. */
GPUSHM_API gpushm_errc gpushm_broker_limits_default(gpushm_broker_limits* limits);

/* Memory and descriptors that several brokers of one process share, so that a full domain leaves
 * room for the others. Release with gpushm_broker_budget_free, at any time: brokers keep a
 * reference. */
typedef struct gpushm_broker_budget gpushm_broker_budget;

/* 0: no limit. */
GPUSHM_API gpushm_errc gpushm_broker_budget_create(uint64_t memory_bytes,
                                                   uint64_t descriptors,
                                                   gpushm_broker_budget** budget);
GPUSHM_API uint64_t gpushm_broker_budget_used_memory_bytes(const gpushm_broker_budget* budget);
GPUSHM_API uint64_t gpushm_broker_budget_used_descriptors(const gpushm_broker_budget* budget);
GPUSHM_API void gpushm_broker_budget_free(gpushm_broker_budget* budget);

typedef struct gpushm_broker_options {
  size_t struct_size;
  gpushm_string socket_path; /* empty: as `gpushm serve` (docs/cli.md) */
  /* The file whose lock keeps other brokers off the socket; empty: `<socket_path>.lock`. A process
   * that can open it, even for reading only, can hold the lock: if clients have the socket's
   * directory mounted, use a file that they cannot see. */
  gpushm_string lock_path;
  gpushm_string domain;               /* empty: "default" */
  const gpushm_broker_limits* limits; /* NULL: the defaults */
  /* NULL: not shared with other brokers of this process. */
  const gpushm_broker_budget* shared;
  uint32_t mode;  /* of the socket; 0: 0660 */
  uint32_t group; /* of the socket, if has_group is true */
  bool has_group;
  /* Raise this process's soft limit of open files to its hard limit, to fit more segments. */
  bool raise_descriptor_limit;
  /* Also accept unnamed tmpfs files as GPU chunks, as the fake driver of the tests creates. */
  bool accept_fake_chunks;
} gpushm_broker_options;

/* A broker on a background thread. Never calls CUDA. Persistent segments are freed with it. A child
 * created by fork immediately closes its copies of socket, lock, connections and memory; the broker
 * belongs to the parent. Release with gpushm_broker_stop. */
typedef struct gpushm_broker gpushm_broker;

/* Blocks until clients can connect. Fails with address_in_use, permission_denied, invalid_argument,
 * system_error. */
GPUSHM_API gpushm_errc gpushm_broker_start(const gpushm_broker_options* options,
                                           gpushm_broker** broker);
/* Blocks until the broker's thread has ended. */
GPUSHM_API void gpushm_broker_stop(gpushm_broker* broker);

/* Valid as long as the broker exists. */
GPUSHM_API gpushm_errc gpushm_broker_socket_path(const gpushm_broker* broker, gpushm_string* path);
GPUSHM_API gpushm_errc gpushm_broker_epoch(const gpushm_broker* broker, gpushm_epoch* epoch);

#define GPUSHM_ERRC_LIMIT 64 /* greater than every code */
#define GPUSHM_OPEN_LATENCY_BOUNDS 19

/* Metrics: current contents of a broker, and counters since its start. */
typedef struct gpushm_broker_statistics {
  size_t struct_size;
  uint64_t segments;
  uint64_t allocated_bytes;
  uint64_t leases;
  uint64_t connections;
  uint64_t ending_connections; /* ended without a goodbye; their leases wait for the fence */
  uint64_t unfenced;           /* segments for which an operator dropped such leases */
  uint64_t waiting_opens;
  uint64_t opens;        /* that returned a segment */
  uint64_t cached_opens; /* served by a client's import cache, as reported by clients */
  /* By code: refused by the broker, or failed afterwards in a client, as reported by it. */
  uint64_t open_failures[GPUSHM_ERRC_LIMIT];
  /* Histogram of opens: each bucket counts those above the previous bound, up to and including its
   * own, as measured by clients from the call to the mapping, including the wait for the name; the
   * last bucket has no upper bound. The bounds: 10, 20, 50 us and so on to 10 s. */
  uint64_t open_latency[GPUSHM_OPEN_LATENCY_BOUNDS + 1];
  uint64_t open_latency_sum_ns;
} gpushm_broker_statistics;

/* Does not block. The values are not a consistent snapshot. */
GPUSHM_API gpushm_errc gpushm_broker_get_statistics(const gpushm_broker* broker,
                                                    gpushm_broker_statistics* statistics);

/* ---- Sharing through a directory that two containers both have mounted, and nothing else ---- */

typedef struct gpushm_file_export_options {
  size_t struct_size;
  /* Permissions of the file and of the socket next to it. 0: 0644 and 0666. */
  uint32_t file_mode;
  uint32_t socket_mode;
  bool accept_fake_chunks; /* as in gpushm_broker_options */
} gpushm_file_export_options;

/* An in-process broker on the socket PATH.sock, and a file at PATH that refers to it. All memory
 * that can be shared or created can be exported. gpushm_file_export_end ends and releases it. In a
 * forked child the export belongs to the parent. Calls on one handle must not run concurrently. */
typedef struct gpushm_file_export gpushm_file_export;

/* Starts the broker; gpushm_file_export_write writes the file. Fails with address_in_use (a live
 * exporter's), permission_denied, invalid_argument (a path too long for a socket address),
 * system_error. */
GPUSHM_API gpushm_errc gpushm_file_export_begin(gpushm_string path,
                                                const gpushm_file_export_options* options,
                                                gpushm_file_export** file_export);
GPUSHM_API void gpushm_file_export_end(gpushm_file_export* file_export);
/* A client of this export's broker, owned by the export and valid as long as the export exists. */
GPUSHM_API gpushm_client* gpushm_file_export_client(const gpushm_file_export* file_export);
/* Writes or replaces the file, which describes `segment`, a published segment of that client. Fails
 * as gpushm_export_segment and gpushm_ticket_file_create. */
GPUSHM_API gpushm_errc gpushm_file_export_write(gpushm_file_export* file_export,
                                                const gpushm_segment* segment);

/* NOLINTEND */

#ifdef __cplusplus
}
#endif

#endif
