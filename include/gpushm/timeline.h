/* SPDX-License-Identifier: Apache-2.0
 *
 * Timelines: 64-bit counters in shared memory that order the work of several processes, on CPUs and
 * on CUDA streams, without stopping a GPU (docs/timelines.md). The rules at the top of
 * gpushm/gpushm.h apply. */
#ifndef GPUSHM_TIMELINE_H
#define GPUSHM_TIMELINE_H

#include "gpushm/gpushm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN: this is C */

/* The largest value of a timeline: 2^62 - 1. */
#define GPUSHM_MAX_TIMELINE_VALUE 4611686018427387903ULL
#define GPUSHM_MAX_SEGMENT_TIMELINES 64
/* Operations in one call of gpushm_stream_batch. */
#define GPUSHM_MAX_STREAM_OPERATIONS 64

/* A counter that the process that created it signals, and that any process of the domain waits for.
 * Its value only grows. The kernel refuses writes by other processes (docs/threat-model.md has the
 * exceptions). Release with gpushm_timeline_close. */
typedef struct gpushm_timeline gpushm_timeline;

/* Creates and publishes a timeline with the value 0. Two round trips to the broker; the first
 * timeline of a client takes two more. GPUSHM_ERRC_ALREADY_EXISTS, and as gpushm_client_create. */
GPUSHM_API gpushm_errc gpushm_timeline_create(gpushm_client* client,
                                              gpushm_string name,
                                              gpushm_timeline** timeline);
/* Opens a timeline, and waits until its name is published, at most `timeout_ms`
 * (GPUSHM_DEFAULT_TIMEOUT: 0). The next step of an error tells when the name belongs to a segment.
 * GPUSHM_ERRC_NO_SUCH_SEGMENT, GPUSHM_ERRC_PEER_DIED, GPUSHM_ERRC_INVALID_ARGUMENT (it is a
 * segment), and as gpushm_client_open. */
GPUSHM_API gpushm_errc gpushm_timeline_open(gpushm_client* client,
                                            gpushm_string name,
                                            int64_t timeout_ms,
                                            gpushm_stop* stop,
                                            gpushm_timeline** timeline);
/* Creates timelines that belong to a segment of this process, and need no names. `timelines`: an
 * array of `count`, 1 to GPUSHM_MAX_SEGMENT_TIMELINES, each to be closed. Once for each segment:
 * GPUSHM_ERRC_ALREADY_EXISTS as long as one of them is open. As gpushm_timeline_create;
 * GPUSHM_ERRC_INVALID_ARGUMENT: another process has created the segment. */
GPUSHM_API gpushm_errc gpushm_segment_timelines_create(gpushm_client* client,
                                                       const gpushm_segment* segment,
                                                       size_t count,
                                                       gpushm_timeline** timelines);
/* Opens the timeline `index` of a segment; waits until the segment's creator has created them, at
 * most `timeout_ms` (GPUSHM_DEFAULT_TIMEOUT: 0). As gpushm_timeline_open;
 * GPUSHM_ERRC_INVALID_ARGUMENT: it has fewer. */
GPUSHM_API gpushm_errc gpushm_segment_timeline_open(gpushm_client* client,
                                                    const gpushm_segment* segment,
                                                    uint32_t index,
                                                    int64_t timeout_ms,
                                                    gpushm_stop* stop,
                                                    gpushm_timeline** timeline);
/* ---- tickets, of at most 4,096 bytes, as those of memory: docs/ticket.md ---- */

/* Creates a timeline that needs no broker, with the value 0: other processes import its ticket. It
 * is for processes of one PID namespace (one container) and one user, and advisory: each of them
 * could write it, because each that has imported it ends it when this process has died. It has no
 * name, and cannot be handed over. 512 timelines use one descriptor, as long as one of them exists.
 * GPUSHM_ERRC_NOT_EXPORTABLE (nothing tells others when this process can no longer write: MPS, or
 * Linux before 5.3), GPUSHM_ERRC_TOO_MANY_DESCRIPTORS, GPUSHM_ERRC_OUT_OF_MEMORY. */
GPUSHM_API gpushm_errc gpushm_timeline_create_local(gpushm_timeline** timeline);
/* Describes a timeline: one without a broker also from a process that has imported it, one of a
 * broker by its name and generation, with `socket_path` as in gpushm_export_segment. Does not
 * block. GPUSHM_ERRC_INVALID_ARGUMENT: it belongs to a segment (export that). */
GPUSHM_API gpushm_errc gpushm_export_timeline(const gpushm_timeline* timeline,
                                              gpushm_string socket_path,
                                              gpushm_ticket* ticket);
/* Opens the timeline that a ticket describes, to wait for it: through its broker if it names one,
 * otherwise through /proc. `directory`: of a socket that the ticket names without a slash; empty:
 * the working directory. Also works in the process that created the timeline.
 * GPUSHM_ERRC_INVALID_TICKET, GPUSHM_ERRC_UNSUPPORTED_VERSION, GPUSHM_ERRC_PEER_DIED,
 * GPUSHM_ERRC_GONE_OR_REPLACED (it was closed), GPUSHM_ERRC_PEER_UNREACHABLE (without a broker: its
 * process is in another PID namespace), GPUSHM_ERRC_PERMISSION_DENIED (it has another user, or is
 * not dumpable), and as gpushm_timeline_open. */
GPUSHM_API gpushm_errc gpushm_import_timeline(const void* ticket,
                                              size_t ticket_size,
                                              gpushm_string directory,
                                              gpushm_timeline** timeline);

/* In the process that created it: ends the timeline, which releases all waits; before that, blocks
 * until streams have stored their pending values, at most a second. The name is free when this
 * process has closed the timeline as often as it has opened and created it. In other processes, no
 * stream may still wait for it. */
GPUSHM_API void gpushm_timeline_close(gpushm_timeline* timeline);

/* Gives the timeline to a process that calls gpushm_timeline_take_over: waits on CPUs continue
 * there; waits of streams are released, and gpushm_timeline_check reports that. Blocks, at most a
 * second, until streams have stored their pending values. Releases `timeline`, unless it fails:
 * GPUSHM_ERRC_TIMED_OUT (a stream has not stored its value), GPUSHM_ERRC_INVALID_ARGUMENT (another
 * process signals the timeline, or it belongs to a segment). */
GPUSHM_API gpushm_errc gpushm_timeline_hand_over(gpushm_timeline* timeline);
/* Waits until the signaler of a timeline that this process has opened hands it over or has died, at
 * most `timeout_ms`, and creates it again, with its last value: this process then signals it.
 * GPUSHM_ERRC_TIMED_OUT (its signaler is alive), GPUSHM_ERRC_CANCELLED, GPUSHM_ERRC_ALREADY_EXISTS
 * (another process has taken it over), and as gpushm_timeline_create. */
GPUSHM_API gpushm_errc gpushm_timeline_take_over(const gpushm_timeline* opened,
                                                 int64_t timeout_ms,
                                                 const gpushm_stop* stop,
                                                 gpushm_timeline** timeline);

/* Valid as long as the timeline is; empty for NULL, and without a broker. */
GPUSHM_API gpushm_string gpushm_timeline_name(const gpushm_timeline* timeline);
/* Whether this process has created the timeline, and so signals it. */
GPUSHM_API bool gpushm_timeline_is_own(const gpushm_timeline* timeline);
/* Whether the kernel lets this process write the timeline's word: its own; another process's only
 * if it has no broker, or if this process is root with CAP_DAC_OVERRIDE, or has the broker's uid.
 */
GPUSHM_API bool gpushm_timeline_is_writable(const gpushm_timeline* timeline);

/* ---- CPU ---- */

/* The last value that was signaled, even after the timeline has ended. No system call. */
GPUSHM_API gpushm_errc gpushm_timeline_value(const gpushm_timeline* timeline, uint64_t* value);
/* Signals a larger value and wakes waiters: one system call. Previous writes of this thread are
 * visible to every CPU and GPU that sees the value. GPUSHM_ERRC_VALUE_OUT_OF_RANGE (more than
 * GPUSHM_MAX_TIMELINE_VALUE), GPUSHM_ERRC_INVALID_ARGUMENT (not larger than the previous value, or
 * another process signals the timeline). If a stream of this process still has to signal, the value
 * follows it, and this call does not wait; but after a graph with values it waits at most a second
 * (GPUSHM_ERRC_TIMED_OUT), because no event shows when a graph is done. */
GPUSHM_API gpushm_errc gpushm_timeline_signal(gpushm_timeline* timeline, uint64_t value);
/* Blocks until `value` is reached, at most `timeout_ms` (0: does not block, and makes no system
 * call), or until `stop` is requested (noticed within 100 ms). `*reached` tells which.
 * GPUSHM_ERRC_PEER_DIED: the timeline has ended before. GPUSHM_ERRC_GONE_OR_REPLACED: its signaler
 * has handed it over, and there is no new one in time. GPUSHM_ERRC_VALUE_OUT_OF_RANGE. */
GPUSHM_API gpushm_errc gpushm_timeline_wait(const gpushm_timeline* timeline,
                                            uint64_t value,
                                            int64_t timeout_ms,
                                            const gpushm_stop* stop,
                                            bool* reached);

/* ---- event loops: many waits in one thread ---- */

/* The result of a call that does not wait. */
typedef enum gpushm_progress GPUSHM_INT {
  GPUSHM_PROGRESS_DONE = 0,
  GPUSHM_PROGRESS_WATCHED = 1, /* the poller has a watch; when that is due, call again */
  /* Only the waiting call can find out: it needs the broker, or another thread's call to end. */
  GPUSHM_PROGRESS_BLOCKS = 2
} gpushm_progress;

/* Watches of timelines and channels, each with a key of the caller's, which has one at a time. A
 * watch is due once: when its call no longer has to wait, or when its `stop` was requested, which
 * must exist until then. Functions may be called by any thread, but one at a time waits. A forked
 * child can only free it. Release with gpushm_poller_free. */
typedef struct gpushm_poller gpushm_poller;
GPUSHM_API gpushm_errc gpushm_poller_create(gpushm_poller** poller);
GPUSHM_API void gpushm_poller_free(gpushm_poller* poller);
/* Blocks until a watch is due, at most `timeout_ms`, or until gpushm_poller_wake. `*count`: how
 * many keys of at most `capacity` (more than 0) it has written; their watches are removed. One
 * thread sleeps on 127 words, if the kernel has futex_waitv(2); for more, or without it, it looks
 * each millisecond, as it does for words that streams signal. */
GPUSHM_API gpushm_errc gpushm_poller_wait(
    gpushm_poller* poller, int64_t timeout_ms, uint64_t* keys, size_t capacity, size_t* count);
/* The wait of another thread, or else the next one, returns. Does not block. */
GPUSHM_API gpushm_errc gpushm_poller_wake(gpushm_poller* poller);
/* Removes a watch, if there is one of this key. Does not block. */
GPUSHM_API gpushm_errc gpushm_poller_remove(gpushm_poller* poller, uint64_t key);

/* As gpushm_timeline_wait, but does not wait. `stop` may be NULL. */
GPUSHM_API gpushm_errc gpushm_timeline_watch(const gpushm_timeline* timeline,
                                             uint64_t value,
                                             gpushm_poller* poller,
                                             uint64_t key,
                                             const gpushm_stop* stop,
                                             gpushm_progress* progress);

/* Flags, instead of values: bits 0 to 31, which its creator changes at will. For CUDA graphs,
 * whose operations are the same at each launch (docs/timelines.md, "CUDA graphs"). A timeline
 * has values or flags, not both. */

/* Replaces the flags, and wakes waiters. Errors as gpushm_timeline_signal;
 * GPUSHM_ERRC_INVALID_ARGUMENT: none, or the timeline has values; GPUSHM_ERRC_VALUE_OUT_OF_RANGE.
 */
GPUSHM_API gpushm_errc gpushm_timeline_set_flags(gpushm_timeline* timeline, uint64_t flags);
/* Blocks until the timeline has any of these flags, as gpushm_timeline_wait does for a value. Flags
 * that were replaced meanwhile may not be seen. */
GPUSHM_API gpushm_errc gpushm_timeline_wait_flags(const gpushm_timeline* timeline,
                                                  uint64_t flags,
                                                  int64_t timeout_ms,
                                                  const gpushm_stop* stop,
                                                  bool* met);

/* ---- CUDA streams: `stream` is a CUstream or a cudaStream_t; NULL is the default stream ---- */

/* Registers the timeline's memory with CUDA, as its first use by a stream would do: 100 us. Call it
 * before a stream is captured: memory cannot be registered during a capture.
 * GPUSHM_ERRC_DRIVER_UNAVAILABLE, GPUSHM_ERRC_DRIVER_ERROR. */
GPUSHM_API gpushm_errc gpushm_timeline_prepare(gpushm_timeline* timeline, void* stream);
/* Enqueues a signal: previous work of the stream is visible to every stream and CPU that sees the
 * value, also on other GPUs. Does not wait for the stream. Errors as gpushm_timeline_signal and
 * gpushm_timeline_prepare. Streams that signal one timeline do so in the order of the calls. */
GPUSHM_API gpushm_errc gpushm_timeline_signal_on(gpushm_timeline* timeline,
                                                 void* stream,
                                                 uint64_t value);
/* Enqueues a wait: later work of the stream begins when `value` is reached, or when the timeline
 * has ended. After the stream was synchronised, gpushm_timeline_check tells which. Streams that
 * wait are scarce (gpushm_waiting_streams_get): if this one would be one too many, the call waits
 * for the value on the CPU first, at most `timeout_ms`; then it fails with
 * GPUSHM_ERRC_TOO_MANY_WAITS, and has enqueued nothing. */
GPUSHM_API gpushm_errc gpushm_timeline_wait_on(gpushm_timeline* timeline,
                                               void* stream,
                                               uint64_t value,
                                               int64_t timeout_ms);
/* Whether all values for which streams of this process were to wait have been reached. After waits
 * for flags: whether the timeline has not ended. GPUSHM_ERRC_PEER_DIED: the timeline had ended
 * before; GPUSHM_ERRC_GONE_OR_REPLACED: it was handed over before. Then do not use the results of
 * the streams' work after that wait. GPUSHM_ERRC_INVALID_ARGUMENT: not reached yet: synchronise the
 * stream first. */
GPUSHM_API gpushm_errc gpushm_timeline_check(const gpushm_timeline* timeline);

typedef enum gpushm_stream_operation_kind GPUSHM_INT {
  GPUSHM_STREAM_WAIT = 0,
  GPUSHM_STREAM_SIGNAL = 1,
  GPUSHM_STREAM_WAIT_FLAGS = 2, /* until the timeline has any of the flags `value` */
  GPUSHM_STREAM_SET_FLAGS = 3   /* replaces the flags by `value` */
} gpushm_stream_operation_kind;

/* May grow: calls take `operation_size`, sizeof(gpushm_stream_operation). */
typedef struct gpushm_stream_operation {
  gpushm_timeline* timeline;
  uint64_t value;
  gpushm_stream_operation_kind kind;
} gpushm_stream_operation;

/* Enqueues several signals and waits, in this order, by one call of the driver. As the functions
 * above; after an error nothing is enqueued. At most GPUSHM_MAX_STREAM_OPERATIONS; 0 has no effect.
 */
GPUSHM_API gpushm_errc gpushm_stream_batch(void* stream,
                                           const gpushm_stream_operation* operations,
                                           size_t operation_size,
                                           size_t count,
                                           int64_t timeout_ms);

/* ---- CUDA graphs ----
 *
 * While `stream` is captured (cudaStreamBeginCapture, torch.cuda.graph), the calls above that
 * enqueue something record it instead: each launch repeats the same values, which is right for
 * flags only. For values, record the operations with the function below, and set the values before
 * each launch. Prepare timelines before the capture. Waits of a graph's launches for flags are not
 * counted (gpushm_waiting_streams_get). Close no timeline while a graph that uses it is executed.
 */

/* Operations that a graph contains. Release with gpushm_graph_operations_free. When a timeline of
 * them was closed, gpushm_graph_set_values refuses: GPUSHM_ERRC_INVALID_ARGUMENT. */
typedef struct gpushm_graph_operations gpushm_graph_operations;

/* Records operations, in this order, in the graph into which `stream` is captured, as one node;
 * their values are those of launches before the first gpushm_graph_set_values.
 * GPUSHM_ERRC_INVALID_ARGUMENT: the stream is not captured, or a timeline is not prepared. Needs
 * driver 545 or later (GPUSHM_ERRC_DRIVER_ERROR). */
GPUSHM_API gpushm_errc gpushm_graph_record(void* stream,
                                           const gpushm_stream_operation* operations,
                                           size_t operation_size,
                                           size_t count,
                                           gpushm_graph_operations** recorded);
/* Sets the values of the next launch of `executable`, a CUgraphExec or cudaGraphExec_t that was
 * made of that graph, which must still exist; launches that are enqueued already keep theirs.
 * Launch it on `stream` after this. `values`: one for each operation, in their order. Otherwise as
 * gpushm_stream_batch; no system call, no wait for the GPU. */
GPUSHM_API gpushm_errc gpushm_graph_set_values(gpushm_graph_operations* recorded,
                                               void* executable,
                                               void* stream,
                                               const uint64_t* values,
                                               size_t count,
                                               int64_t timeout_ms);
GPUSHM_API void gpushm_graph_operations_free(gpushm_graph_operations* recorded);

/* Streams of this process that wait for a timeline. As many waiting streams as CUDA has connections
 * stop all other streams of the process, even a stream that would signal the awaited value. */
typedef struct gpushm_waiting_streams {
  size_t struct_size;
  uint32_t waiting;     /* streams with a wait that has not been seen met */
  uint32_t limit;       /* half of `connections`, and not the last one */
  uint32_t connections; /* $CUDA_DEVICE_MAX_CONNECTIONS, 8 unless set, at most 32 */
} gpushm_waiting_streams;
GPUSHM_API gpushm_errc gpushm_waiting_streams_get(gpushm_waiting_streams* counts);

/* NOLINTEND */

#ifdef __cplusplus
}
#endif

#endif
