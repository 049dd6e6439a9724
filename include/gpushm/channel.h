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
  /* 1 to GPUSHM_MAX_CHANNEL_SLOTS. 2 more than consumers of the newest item can hold together; with
   * 1 there can be none of them. */
  uint32_t slots;
  bool huge_pages;      /* as in gpushm_create_options */
  gpushm_string device; /* as in gpushm_create_options; empty: "auto" */
  gpushm_stop* stop;    /* cancels the waits for a dead producer; may be NULL */
} gpushm_channel_options;

/* A slot that the producer fills, until it is published or abandoned, or its producer is closed.
 * Not a pointer that is ever read: a slot that has been used, or is of a closed producer or of
 * another process (fork), is refused with GPUSHM_ERRC_INVALID_ARGUMENT or GPUSHM_ERRC_FORKED. */
typedef struct gpushm_slot gpushm_slot;
/* An item that a consumer reads, until it is released, or its consumer is closed. As gpushm_slot.
 */
typedef struct gpushm_item gpushm_item;

typedef struct gpushm_slot_info {
  size_t struct_size;
  void* data; /* a device pointer, or host memory */
  uint64_t bytes;
  void* stream;   /* that it was acquired for, if `on_stream` */
  uint32_t index; /* of the slot, from 0 */
  bool on_stream;
  /* Whether a CPU may write it. Of a slot that was acquired for a stream: as of this call. */
  bool is_free;
} gpushm_slot_info;

typedef struct gpushm_item_info {
  size_t struct_size;
  const void* data;
  uint64_t bytes;  /* of the slot */
  uint64_t number; /* of the item, from 1; numbers grow, but for items of a dead consumer */
  /* Numbers since the previous item, or since it has joined, that this consumer did not get: items
   * that were replaced by newer ones, and those that a dead producer has announced and not
   * completed. GPUSHM_CONSUMER_SHARE: 0 */
  uint64_t skipped;
  void* stream;         /* that it was taken for, if `on_stream` */
  const void* metadata; /* as long as the item */
  size_t metadata_size;
  uint32_t index; /* of the slot, from 0 */
  bool on_stream;
  /* Whether a CPU may read it. Of an item that was taken for a stream: as of this call, and never
   * if the producer has died before. */
  bool is_complete;
} gpushm_item_info;

/* Creates a channel, or continues one whose producer has died: then its slots must have this size
 * and number, and its members continue with the first item of this producer. After a producer that
 * has closed the channel, this one has other slots, and its consumers are not members. Waits, at
 * most as long as for a request, until the words of a dead producer have ended. Starts a thread,
 * which admits consumers. GPUSHM_ERRC_ALREADY_EXISTS: it has a producer. GPUSHM_ERRC_SIZE_MISMATCH.
 * GPUSHM_ERRC_CANCELLED. As gpushm_client_create. */
GPUSHM_API gpushm_errc gpushm_producer_create(gpushm_client* client,
                                              gpushm_string name,
                                              const gpushm_channel_options* options,
                                              gpushm_producer** producer);
/* Ends the channel: consumers get the items that are published (those of the newest item the newest
 * one), and then the end. Abandons slots. Calls of other threads that wait return as if their
 * `stop` was requested. Waits, at most a second, until streams have published what they were given.
 * If this producer has continued a channel, waits, at most a second, until each member has asked
 * for its items; for one that has not, they stay as long as the client. */
GPUSHM_API void gpushm_producer_close(gpushm_producer* producer);

/* Waits for a slot that nobody uses any more, at most `timeout_ms`, for the CPU. Several slots may
 * be acquired at once: each of them is one that neither consumers nor other slots can have.
 * `*acquired` is false after the timeout, or when `stop` was requested. */
GPUSHM_API gpushm_errc gpushm_producer_acquire(gpushm_producer* producer,
                                               int64_t timeout_ms,
                                               const gpushm_stop* stop,
                                               gpushm_slot** slot,
                                               bool* acquired);
/* As above, for a slot that `stream` fills: the stream waits until nobody uses it, this call only
 * until each consumer's CPU has seen the item that was in it. The stream must not be captured. */
GPUSHM_API gpushm_errc gpushm_producer_acquire_on(gpushm_producer* producer,
                                                  void* stream,
                                                  int64_t timeout_ms,
                                                  const gpushm_stop* stop,
                                                  gpushm_slot** slot,
                                                  bool* acquired);
/* As these two, but does not wait (gpushm_poller): `*slot` if it is done. */
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
/* The segment that the slot is in, as a handle of its own (gpushm_segment_close). */
GPUSHM_API gpushm_errc gpushm_slot_memory(const gpushm_slot* slot, gpushm_segment** memory);
/* `stream`, which must not be captured, does what it is given next when nobody uses the slot any
 * more: for another stream than the one that it was acquired for. GPUSHM_ERRC_TOO_MANY_WAITS after
 * a second. */
GPUSHM_API gpushm_errc gpushm_slot_wait_on(const gpushm_slot* slot, void* stream);
/* Publishes the slot, with up to GPUSHM_MAX_ITEM_METADATA_BYTES of metadata: when the stream that
 * it was acquired for has done what it was given before, or now if it was acquired for the CPU. In
 * both cases not before the items that were published before. Does not wait. `*number`, unless it
 * is NULL: the number of the item, from 1: the order of the calls that publish. If it fails, the
 * slot is still acquired, and consumers see nothing of it. */
GPUSHM_API gpushm_errc gpushm_slot_publish(gpushm_slot* slot,
                                           const void* metadata,
                                           size_t metadata_size,
                                           uint64_t* number);
/* As above, when `stream`, which must not be captured, has done what it was given before. */
GPUSHM_API gpushm_errc gpushm_slot_publish_on(
    gpushm_slot* slot, void* stream, const void* metadata, size_t metadata_size, uint64_t* number);
/* As above, now: what a stream has to write into the slot must be done (synchronize it first). */
GPUSHM_API gpushm_errc gpushm_slot_publish_now(gpushm_slot* slot,
                                               const void* metadata,
                                               size_t metadata_size,
                                               uint64_t* number);
/* The slot will not be published. What a stream still writes into it must be ordered before what
 * fills the slot next: abandon it when the stream is done with it. */
GPUSHM_API gpushm_errc gpushm_slot_abandon(gpushm_slot* slot);

typedef struct gpushm_producer_stats {
  size_t struct_size;
  uint64_t announced; /* number of the last item that was handed to a stream or published */
  uint64_t published; /* number of the last item that is complete */
  uint32_t consumers;
  uint32_t dropped;     /* consumers whose words were not valid */
  bool is_continuation; /* it has continued the channel of another producer */
} gpushm_producer_stats;
GPUSHM_API gpushm_errc gpushm_producer_stats_get(const gpushm_producer* producer,
                                                 gpushm_producer_stats* stats);

typedef enum gpushm_consumer_mode GPUSHM_INT {
  GPUSHM_CONSUMER_BLOCK = 0,  /* gets each item; the producer waits for it */
  GPUSHM_CONSUMER_LATEST = 1, /* gets the newest item; the producer does not wait */
  /* Shares the work: each item is for one of the consumers of this mode, the one with most room.
   * The producer waits if each of them has as many as it may hold. */
  GPUSHM_CONSUMER_SHARE = 2
} gpushm_consumer_mode;

typedef struct gpushm_consumer_options {
  size_t struct_size;
  gpushm_consumer_mode mode;
  /* Items that it may hold, 1 to GPUSHM_MAX_HELD_ITEMS: for GPUSHM_CONSUMER_LATEST, 0: 1. For
   * GPUSHM_CONSUMER_SHARE, those that it is given before it has released one, 0: 2. */
  uint32_t held;
  gpushm_string device; /* the GPU that reads, as in gpushm_open_options */
  gpushm_stop* stop;
  /* How long gpushm_consumer_next waits for the next producer when this one has died, from when the
   * death is seen, and within its own timeout. 0: it reports the death at once. GPUSHM_FOREVER:
   * within its own timeout only. Less than 0: GPUSHM_ERRC_INVALID_ARGUMENT. */
  int64_t resume_ms;
} gpushm_consumer_options;

/* Joins a channel: starts at the newest item, or at the next one if there is none. Waits for the
 * channel's name and for the producer's reply, at most `timeout_ms` (GPUSHM_DEFAULT_TIMEOUT:
 * 10,000); no producer replies within 0.
 * GPUSHM_ERRC_NO_SUCH_SEGMENT, GPUSHM_ERRC_QUOTA_EXCEEDED (too many consumers, or too few slots),
 * GPUSHM_ERRC_TIMED_OUT (the producer does not reply). As gpushm_client_open. */
GPUSHM_API gpushm_errc gpushm_consumer_open(gpushm_client* client,
                                            gpushm_string name,
                                            const gpushm_consumer_options* options,
                                            int64_t timeout_ms,
                                            gpushm_consumer** consumer);
/* Leaves. Its items are not valid any more. Calls of other threads that wait return as if their
 * `stop` was requested. Waits, at most a second, until streams have released what they were given.
 */
GPUSHM_API void gpushm_consumer_close(gpushm_consumer* consumer);

/* Waits for the next item, or for the newest one, at most `timeout_ms`. `*got` is false after the
 * timeout, when `stop` was requested, or at the end (gpushm_consumer_has_ended). One thread at a
 * time takes an item; others wait for their turn, each with its own timeout and `stop`.
 * GPUSHM_ERRC_PEER_DIED: the producer has died, all its good items were read (or, by a consumer of
 * the newest item, are not taken any more), and there was no new producer within `resume_ms` of
 * the options. A later call continues when there is one.
 * GPUSHM_ERRC_TOO_MANY_REQUESTS: it holds as many items as it may. */
GPUSHM_API gpushm_errc gpushm_consumer_next(gpushm_consumer* consumer,
                                            int64_t timeout_ms,
                                            const gpushm_stop* stop,
                                            gpushm_item** item,
                                            bool* got);
/* As above, but does not wait (gpushm_poller): `*item` if it is done. It blocks at the end, too. */
GPUSHM_API gpushm_errc gpushm_consumer_watch(gpushm_consumer* consumer,
                                             gpushm_poller* poller,
                                             uint64_t key,
                                             const gpushm_stop* stop,
                                             gpushm_item** item,
                                             gpushm_progress* progress);
/* As gpushm_consumer_next, for an item that `stream` reads: the stream waits until it is complete,
 * this call only until it is announced. The stream must not be captured. After the stream was
 * synchronised, gpushm_consumer_check tells whether all items were complete. */
GPUSHM_API gpushm_errc gpushm_consumer_next_on(gpushm_consumer* consumer,
                                               void* stream,
                                               int64_t timeout_ms,
                                               const gpushm_stop* stop,
                                               gpushm_item** item,
                                               bool* got);
GPUSHM_API gpushm_errc gpushm_item_get(const gpushm_item* item, gpushm_item_info* info);
/* The segment that the item is in, as a handle of its own (gpushm_segment_close): it stays mapped
 * when the item is released, or the consumer has gone on to other slots. */
GPUSHM_API gpushm_errc gpushm_item_memory(const gpushm_item* item, gpushm_segment** memory);
/* `stream`, which must not be captured, does what it is given next when the item is complete: for
 * another stream than the one that it was taken for. GPUSHM_ERRC_TOO_MANY_WAITS after a second. */
GPUSHM_API gpushm_errc gpushm_item_wait_on(const gpushm_item* item, void* stream);
/* The item will not be read any more: when the stream that it was taken for has done what it was
 * given before, or now if it was taken for the CPU. Consumers that get each item, or share the
 * work, may release in another order and on several streams: the producer sees an item released
 * when all items before are. Does not wait. If it fails, the consumer still holds the item. */
GPUSHM_API gpushm_errc gpushm_item_release(gpushm_item* item);
/* As above, when `stream`, which must not be captured, has done what it was given before. */
GPUSHM_API gpushm_errc gpushm_item_release_on(gpushm_item* item, void* stream);
/* As above, now: what a stream has to read of the item must be done (synchronize it first). */
GPUSHM_API gpushm_errc gpushm_item_release_now(gpushm_item* item);
/* GPUSHM_ERRC_PEER_DIED: the producer died before an item was complete that a stream of this
 * consumer was given: what the stream has done since the last check must not be trusted. Reported
 * once. */
GPUSHM_API gpushm_errc gpushm_consumer_check(gpushm_consumer* consumer);
/* The producer has closed the channel, and all items were read. */
GPUSHM_API bool gpushm_consumer_has_ended(const gpushm_consumer* consumer);

/* ---- for tools: a channel as a process sees it that is not a member ---- */

/* What was read of a channel and its consumers. Release with gpushm_channel_status_free. */
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
  bool is_closed;    /* the producer has said that there are no more items */
  bool is_writable;  /* as gpushm_timeline_is_writable, of the producer's words */
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
  uint64_t generation; /* of its words */
} gpushm_channel_consumer_info;

/* Reads the state of a channel; several round trips to the broker. Changes nothing. The words of
 * other processes are not checked. GPUSHM_ERRC_NO_SUCH_SEGMENT: no channel of this name has, or
 * had, a producer whose words anybody still has. As gpushm_client_list. */
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
