/* SPDX-License-Identifier: Apache-2.0
 *
 * Channels: a ring of slots of one size that one process fills and others read, ordered by
 * timelines, on CPUs and on CUDA streams (docs/channels.md). The rules at the top of
 * gpushm/gpushm.h apply. */
#ifndef GPUSHM_CHANNEL_H
#define GPUSHM_CHANNEL_H

#include "gpushm/timeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN: this is C */

#define GPUSHM_MAX_CHANNEL_SLOTS 1024
#define GPUSHM_MAX_CHANNEL_CONSUMERS 64
#define GPUSHM_MAX_ITEM_METADATA_BYTES 256
#define GPUSHM_MAX_HELD_ITEMS 16
#define GPUSHM_MAX_CHANNEL_NAME_BYTES 200

/* The process that fills a channel. Release with gpushm_producer_close. */
typedef struct gpushm_producer gpushm_producer;
/* A process that reads a channel. Release with gpushm_consumer_close. */
typedef struct gpushm_consumer gpushm_consumer;

typedef struct gpushm_channel_options {
  size_t struct_size;
  uint64_t slot_bytes; /* of each slot; not 0 */
  /* 1 to GPUSHM_MAX_CHANNEL_SLOTS; 2 more than GPUSHM_CONSUMER_LATEST consumers can hold together.
   * With 1 there can be no such consumer. */
  uint32_t slots;
  bool huge_pages;      /* as in gpushm_create_options */
  gpushm_string device; /* as in gpushm_create_options; empty: "auto" */
  gpushm_stop* stop;    /* cancels the waits for a dead producer; may be NULL */
} gpushm_channel_options;

/* A slot that the producer fills, until it is published or abandoned, or its producer is closed.
 * The library never reads it as a pointer: a slot that was used before, or belongs to a closed
 * producer or to another process (fork), is refused with GPUSHM_ERRC_INVALID_ARGUMENT or
 * GPUSHM_ERRC_FORKED. */
typedef struct gpushm_slot gpushm_slot;
/* An item that a consumer reads, until it is released, or its consumer is closed. As gpushm_slot.
 */
typedef struct gpushm_item gpushm_item;

typedef struct gpushm_slot_info {
  size_t struct_size;
  void* data; /* a device pointer, or host memory */
  uint64_t bytes;
  void* stream;   /* the stream that it was acquired for, if `on_stream` */
  uint32_t index; /* of the slot, from 0 */
  bool on_stream;
  /* Whether a CPU may write it. For a slot that was acquired for a stream: at the time of this
   * call. */
  bool is_free;
} gpushm_slot_info;

typedef struct gpushm_item_info {
  size_t struct_size;
  const void* data;
  uint64_t bytes;  /* of the slot */
  uint64_t number; /* of the item, from 1; grows, except for items of a dead consumer */
  /* How many numbers this consumer did not get since its previous item, or since it joined: items
   * that newer ones replaced, and items that a dead producer announced and did not complete.
   * GPUSHM_CONSUMER_SHARE: 0 */
  uint64_t skipped;
  void* stream;         /* the stream that it was taken for, if `on_stream` */
  const void* metadata; /* valid as long as the item */
  size_t metadata_size;
  uint32_t index; /* of the slot, from 0 */
  bool on_stream;
  /* Whether a CPU may read it. For an item that was taken for a stream: at the time of this call;
   * never if the producer died before it was complete. */
  bool is_complete;
} gpushm_item_info;

/* Creates a channel, or continues one whose producer has died: the slots must have this size and
 * number, and the consumers continue with the first item of this producer. If the previous producer
 * closed the channel, this one gets new slots and starts without consumers. Blocks until the
 * timelines of a dead producer have ended, at most as long as for a request. Starts a thread, which
 * admits consumers. GPUSHM_ERRC_ALREADY_EXISTS: the channel has a producer.
 * GPUSHM_ERRC_SIZE_MISMATCH. GPUSHM_ERRC_CANCELLED. As gpushm_client_create. */
GPUSHM_API gpushm_errc gpushm_producer_create(gpushm_client* client,
                                              gpushm_string name,
                                              const gpushm_channel_options* options,
                                              gpushm_producer** producer);
/* Ends the channel: consumers get the published items (GPUSHM_CONSUMER_LATEST the newest one), and
 * then the end. Abandons acquired slots. Waiting calls of other threads return as if their `stop`
 * was requested. Blocks, at most a second, until streams have published their items. If this
 * producer has continued a channel, blocks, at most a second, until each consumer has opened it;
 * the items for the others stay as long as the client. */
GPUSHM_API void gpushm_producer_close(gpushm_producer* producer);

/* Blocks until a slot is free, for the CPU, at most `timeout_ms`. Several slots may be acquired at
 * once. `*acquired` is false after the timeout, or when `stop` was requested. */
GPUSHM_API gpushm_errc gpushm_producer_acquire(gpushm_producer* producer,
                                               int64_t timeout_ms,
                                               const gpushm_stop* stop,
                                               gpushm_slot** slot,
                                               bool* acquired);
/* As above, for a slot that `stream` fills: the stream waits until the slot is free, and this call
 * blocks only until each consumer's CPU has taken the previous item in it. The stream must not be
 * captured. GPUSHM_ERRC_TOO_MANY_WAITS, GPUSHM_ERRC_DRIVER_ERROR. */
GPUSHM_API gpushm_errc gpushm_producer_acquire_on(gpushm_producer* producer,
                                                  void* stream,
                                                  int64_t timeout_ms,
                                                  const gpushm_stop* stop,
                                                  gpushm_slot** slot,
                                                  bool* acquired);
/* As both calls above, without waiting (gpushm_poller). Sets `*slot` if `*progress` is done. */
GPUSHM_API gpushm_errc gpushm_producer_watch(gpushm_producer* producer,
                                             gpushm_poller* poller,
                                             uint64_t key,
                                             const gpushm_stop* stop,
                                             gpushm_slot** slot,
                                             gpushm_progress* progress);
GPUSHM_API gpushm_errc gpushm_producer_watch_on(gpushm_producer* producer,
                                                void* stream,
                                                gpushm_poller* poller,
                                                uint64_t key,
                                                const gpushm_stop* stop,
                                                gpushm_slot** slot,
                                                gpushm_progress* progress);
GPUSHM_API gpushm_errc gpushm_slot_get(const gpushm_slot* slot, gpushm_slot_info* info);
/* Returns the segment that has the slot, as a new handle (gpushm_segment_close). */
GPUSHM_API gpushm_errc gpushm_slot_memory(const gpushm_slot* slot, gpushm_segment** memory);
/* Makes `stream`, which must not be captured, wait until the slot is free. For other streams than
 * the one that the slot was acquired for. GPUSHM_ERRC_TOO_MANY_WAITS after a second. */
GPUSHM_API gpushm_errc gpushm_slot_wait_on(const gpushm_slot* slot, void* stream);
/* Publishes the slot, with up to GPUSHM_MAX_ITEM_METADATA_BYTES of metadata: after the work that is
 * already enqueued on the stream that it was acquired for, or now if it was acquired for the CPU,
 * and after all previously published items. Does not wait. Sets `*number`, unless it is NULL, to
 * the number of the item, from 1, in the order of the calls that publish. If it fails, the slot is
 * still acquired, and consumers do not see the item: GPUSHM_ERRC_MESSAGE_TOO_LARGE,
 * GPUSHM_ERRC_DRIVER_ERROR. */
GPUSHM_API gpushm_errc gpushm_slot_publish(gpushm_slot* slot,
                                           const void* metadata,
                                           size_t metadata_size,
                                           uint64_t* number);
/* As above, after the work that is already enqueued on `stream`, which must not be captured. */
GPUSHM_API gpushm_errc gpushm_slot_publish_on(
    gpushm_slot* slot, void* stream, const void* metadata, size_t metadata_size, uint64_t* number);
/* As above, now. Precondition: no stream still writes into the slot (synchronize it first). */
GPUSHM_API gpushm_errc gpushm_slot_publish_now(gpushm_slot* slot,
                                               const void* metadata,
                                               size_t metadata_size,
                                               uint64_t* number);
/* Frees the slot without publishing it. Precondition: no stream still writes into it. */
GPUSHM_API gpushm_errc gpushm_slot_abandon(gpushm_slot* slot);

typedef struct gpushm_producer_stats {
  size_t struct_size;
  uint64_t announced; /* the last item that was published, or enqueued on a stream for that */
  uint64_t published; /* number of the last item that is complete */
  uint32_t consumers;
  uint32_t dropped;     /* consumers whose timelines were not valid */
  bool is_continuation; /* it has continued the channel of a previous producer */
} gpushm_producer_stats;
GPUSHM_API gpushm_errc gpushm_producer_stats_get(const gpushm_producer* producer,
                                                 gpushm_producer_stats* stats);

typedef enum gpushm_consumer_mode GPUSHM_INT {
  GPUSHM_CONSUMER_BLOCK = 0,  /* gets each item; the producer waits for it */
  GPUSHM_CONSUMER_LATEST = 1, /* gets the newest item; the producer does not wait */
  /* Shares the work: each item goes to one of the consumers of this mode, the one with most room.
   * What one of them has not released when it ends is given to another one, if one exists.
   * The producer waits if each of them has as many items as it may hold. */
  GPUSHM_CONSUMER_SHARE = 2
} gpushm_consumer_mode;

typedef struct gpushm_consumer_options {
  size_t struct_size;
  gpushm_consumer_mode mode;
  /* How many items it may hold, 1 to GPUSHM_MAX_HELD_ITEMS. 0: 1 for GPUSHM_CONSUMER_LATEST; 2 for
   * GPUSHM_CONSUMER_SHARE, where items that it was given count before it takes them. */
  uint32_t held;
  gpushm_string device; /* the GPU that reads, as in gpushm_open_options */
  gpushm_stop* stop;
  /* How long gpushm_consumer_next waits for the next producer after it has seen the death of this
   * one, within its own timeout. 0: it reports the death at once. GPUSHM_FOREVER: limited only by
   * its timeout. Less than 0: GPUSHM_ERRC_INVALID_ARGUMENT. */
  int64_t resume_ms;
} gpushm_consumer_options;

/* Joins a channel: starts at the newest item, or at the next one if there is none. Waits for the
 * channel's name and for the producer's reply, at most `timeout_ms` (GPUSHM_DEFAULT_TIMEOUT:
 * 10,000). No reply comes within 0. GPUSHM_ERRC_NO_SUCH_SEGMENT, GPUSHM_ERRC_QUOTA_EXCEEDED (too
 * many consumers, or too few slots), GPUSHM_ERRC_TIMED_OUT (the producer does not reply). As
 * gpushm_client_open. */
GPUSHM_API gpushm_errc gpushm_consumer_open(gpushm_client* client,
                                            gpushm_string name,
                                            const gpushm_consumer_options* options,
                                            int64_t timeout_ms,
                                            gpushm_consumer** consumer);
/* Leaves the channel. Its items are no longer valid. Waiting calls of other threads return as if
 * their `stop` was requested. Blocks, at most a second, until streams have released their items. */
GPUSHM_API void gpushm_consumer_close(gpushm_consumer* consumer);

/* Blocks until there is a next item, or a newer one for GPUSHM_CONSUMER_LATEST, at most
 * `timeout_ms`. `*has_item` is false after the timeout, when `stop` was requested, and at the end
 * (gpushm_consumer_has_ended). One thread at a time takes an item; others wait for their turn, each
 * with its own timeout and `stop`. GPUSHM_ERRC_PEER_DIED: the producer has died, no complete item
 * of it is left for this consumer, and there was no new producer within `resume_ms` of the options.
 * A later call continues when there is one. GPUSHM_ERRC_TOO_MANY_REQUESTS: this consumer holds as
 * many items as it may. */
GPUSHM_API gpushm_errc gpushm_consumer_next(gpushm_consumer* consumer,
                                            int64_t timeout_ms,
                                            const gpushm_stop* stop,
                                            gpushm_item** item,
                                            bool* has_item);
/* As above, but without waiting (gpushm_poller). Sets `*item` if `*progress` is done. At the end it
 * can block as gpushm_consumer_next. */
GPUSHM_API gpushm_errc gpushm_consumer_watch(gpushm_consumer* consumer,
                                             gpushm_poller* poller,
                                             uint64_t key,
                                             const gpushm_stop* stop,
                                             gpushm_item** item,
                                             gpushm_progress* progress);
/* As gpushm_consumer_next, for an item that `stream` reads: the stream waits until the item is
 * complete, and this call blocks only until it is announced. The stream must not be captured.
 * Synchronize the stream and call gpushm_consumer_check to find out whether all items were
 * complete. GPUSHM_ERRC_TOO_MANY_WAITS, GPUSHM_ERRC_DRIVER_ERROR. */
GPUSHM_API gpushm_errc gpushm_consumer_next_on(gpushm_consumer* consumer,
                                               void* stream,
                                               int64_t timeout_ms,
                                               const gpushm_stop* stop,
                                               gpushm_item** item,
                                               bool* has_item);
GPUSHM_API gpushm_errc gpushm_item_get(const gpushm_item* item, gpushm_item_info* info);
/* Returns the segment that has the slot, as a new handle (gpushm_segment_close). It stays mapped
 * after the item is released, and after the consumer has continued with other slots. */
GPUSHM_API gpushm_errc gpushm_item_memory(const gpushm_item* item, gpushm_segment** memory);
/* Makes `stream`, which must not be captured, wait until the item is complete. For other streams
 * than the one that the item was taken for. GPUSHM_ERRC_TOO_MANY_WAITS after a second. */
GPUSHM_API gpushm_errc gpushm_item_wait_on(const gpushm_item* item, void* stream);
/* Releases the item: after the work that is already enqueued on the stream that it was taken for,
 * or now if it was taken for the CPU. Items may be released in any order, and on several streams;
 * the producer sees an item of GPUSHM_CONSUMER_BLOCK or GPUSHM_CONSUMER_SHARE released when all
 * previous items are. Does not wait. If it fails (GPUSHM_ERRC_DRIVER_ERROR), the
 * consumer still holds the item. */
GPUSHM_API gpushm_errc gpushm_item_release(gpushm_item* item);
/* As above, after the work that is already enqueued on `stream`, which must not be captured. */
GPUSHM_API gpushm_errc gpushm_item_release_on(gpushm_item* item, void* stream);
/* As above, now. Precondition: no stream still reads the item (synchronize it first). */
GPUSHM_API gpushm_errc gpushm_item_release_now(gpushm_item* item);
/* Fails once with GPUSHM_ERRC_PEER_DIED if the producer died before it completed an item that a
 * stream of this consumer was given: do not use results of that stream since the last check. */
GPUSHM_API gpushm_errc gpushm_consumer_check(gpushm_consumer* consumer);
/* The producer has closed the channel, and all items were read. */
GPUSHM_API bool gpushm_consumer_has_ended(const gpushm_consumer* consumer);

/* ---- for tools: a channel, as a process sees it that has not joined it ---- */

/* The state of a channel and its consumers, as it was read. Release with
 * gpushm_channel_status_free. */
typedef struct gpushm_channel_status gpushm_channel_status;

typedef struct gpushm_channel_info {
  size_t struct_size;
  uint32_t slots;
  uint32_t consumers; /* also those that the producer has not admitted or refused yet */
  uint64_t slot_bytes;
  uint64_t first_item; /* of this producer */
  uint64_t announced;  /* as in gpushm_producer_stats */
  uint64_t published;
  bool has_producer; /* false: it has closed the channel, or has died */
  bool is_closed;    /* the producer has ended the channel */
  bool is_writable;  /* as gpushm_timeline_is_writable, for the producer's timelines */
  uint32_t producer_uid;
  int32_t producer_pid; /* as the broker sees it; 0: not visible to it */
} gpushm_channel_info;

typedef struct gpushm_channel_consumer_info {
  size_t struct_size;
  gpushm_consumer_mode mode;
  uint32_t may_hold; /* items; GPUSHM_CONSUMER_BLOCK: 0 */
  uint32_t holds;    /* items that it has taken and not released */
  bool is_admitted;  /* the producer has admitted it */
  uint32_t uid;      /* as the broker sees it */
  int32_t pid;       /* as the broker sees it; 0: not visible to it */
  uint64_t start;    /* its first item; 0: not admitted */
  uint64_t taken;    /* the newest item that it has taken, or holds if it gets the newest; 0: none.
                      * GPUSHM_CONSUMER_SHARE: how many it was given */
  uint64_t released; /* as `taken`; GPUSHM_CONSUMER_LATEST: 0 */
  uint64_t lag;      /* complete items after the last one that it has released, or after the newest
                      * one that it holds. GPUSHM_CONSUMER_SHARE: given, and not released */
  uint64_t generation; /* of its timelines */
} gpushm_channel_consumer_info;

/* Reads the state of a channel, in several round trips to the broker. Changes nothing, and does not
 * check timelines of other processes. GPUSHM_ERRC_NO_SUCH_SEGMENT: no channel of this name has a
 * producer, or a previous one whose timelines a process still has. As gpushm_client_list. */
GPUSHM_API gpushm_errc gpushm_channel_status_read(gpushm_client* client,
                                                  gpushm_string name,
                                                  gpushm_channel_status** status);
GPUSHM_API gpushm_errc gpushm_channel_status_get(const gpushm_channel_status* status,
                                                 gpushm_channel_info* info);
/* GPUSHM_ERRC_INVALID_ARGUMENT: `index` is not below the number of consumers. */
GPUSHM_API gpushm_errc gpushm_channel_status_consumer(const gpushm_channel_status* status,
                                                      size_t index,
                                                      gpushm_channel_consumer_info* info);
GPUSHM_API void gpushm_channel_status_free(gpushm_channel_status* status);

/* NOLINTEND */

#ifdef __cplusplus
}
#endif

#endif
