/* SPDX-License-Identifier: Apache-2.0
 * A participant in sharing between versions of gpushm, with the libraries of its own version.
 *
 *   peer serve SOCKET         runs a broker until its input ends
 *   peer produce SOCKET FILE  creates, shares and exports; exits after the events of the other two
 *   peer consume SOCKET FILE  opens everything, waiting for it
 *   peer die SOCKET           opens, and is killed
 *   peer version              prints the version of the libraries
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <gpushm/broker.h>
#include <gpushm/channel.h>
#include <gpushm/descriptor.h>
#include <gpushm/gpushm.h>
#include <gpushm/tensors.h>
#include <gpushm/timeline.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { chunk = 65536, chunks = 300, wait_ms = 20000, items = 7, number = 4711, tag = 99 };
static const uint64_t size_bytes = (uint64_t)chunk * chunks;

static void check(int is_so, const char* text) {
  if (!is_so) {
    fprintf(stderr, "peer: check failed: %s\n", text);
    exit(1);
  }
}

static void works(gpushm_errc code, const char* text) {
  if (code != GPUSHM_OK) {
    fprintf(stderr, "peer: %s: %s\n", text, gpushm_error_message(gpushm_last_error()).data);
    exit(1);
  }
}
#define WORKS(call) works((call), #call)
#define CHECK(condition) check((condition), #condition)

static gpushm_client* connected(const char* socket) {
  gpushm_connect_options options = GPUSHM_INIT(options);
  gpushm_client* client = NULL;
  options.socket_path = gpushm_text(socket);
  WORKS(gpushm_client_connect(&options, wait_ms, &client));
  return client;
}

static int serve(const char* socket) {
  gpushm_broker_options options = GPUSHM_INIT(options);
  gpushm_broker* broker = NULL;
  char byte;
  options.socket_path = gpushm_text(socket);
  WORKS(gpushm_broker_start(&options, &broker));
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  gpushm_broker_stop(broker);
  return 0;
}

/* Reads events until the given one arrives. */
static void wait_for_event(gpushm_subscription* events, gpushm_event_kind kind, const char* name) {
  for (;;) {
    gpushm_event event = GPUSHM_INIT(event);
    bool arrived = false;
    WORKS(gpushm_subscription_next(events, wait_ms, NULL, &event, &arrived));
    if (!arrived) {
      fprintf(stderr, "peer: no event \"%s\" of %s\n", gpushm_event_kind_name(kind).data, name);
      exit(1);
    }
    if (event.kind == kind && strcmp(event.name, name) == 0) {
      return;
    }
  }
}

/* The ticket of a timeline is written beside that of the segment. */
static gpushm_string timeline_file(const char* file) {
  static char path[4096];
  CHECK(snprintf(path, sizeof path, "%s.timeline", file) < (int)sizeof path);
  return gpushm_text(path);
}

static void waits_for(const gpushm_timeline* timeline, uint64_t value) {
  bool reached = false;
  WORKS(gpushm_timeline_wait(timeline, value, wait_ms, NULL, &reached));
  check(reached, "a value of a timeline in time");
}

/* What the producer's process has of timelines, channels, tensors and registered descriptors. */
typedef struct shared_things {
  gpushm_timeline* timeline;
  gpushm_timeline* segment_timelines[2];
  gpushm_ticket_file* ticket_file;
  gpushm_descriptor* registered;
  gpushm_segment* tensors;
} shared_things;

static const char table[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"a\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[256,272]}}";

static shared_things begin_sharing(gpushm_client* client, int fd, const char* file) {
  shared_things result = {0};
  gpushm_ticket ticket = GPUSHM_INIT(ticket);
  gpushm_create_options options = GPUSHM_INIT(options);
  WORKS(gpushm_timeline_create(client, gpushm_text("g/timeline"), &result.timeline));
  WORKS(gpushm_timeline_signal(result.timeline, 5));
  WORKS(gpushm_export_timeline(result.timeline, gpushm_text(""), &ticket));
  WORKS(gpushm_ticket_file_create(
      timeline_file(file), ticket.bytes, ticket.size, 0600, &result.ticket_file));
  WORKS(gpushm_client_register_descriptor(client, fd, number, tag, &result.registered));
  options.device = gpushm_text("host");
  WORKS(gpushm_tensors_size(gpushm_text(table), &options.size_bytes));
  WORKS(gpushm_client_create(client, gpushm_text("g/tensors"), &options, &result.tensors));
  WORKS(gpushm_segment_fill(result.tensors, 4));
  WORKS(gpushm_tensors_publish(result.tensors, gpushm_text(table)));
  WORKS(gpushm_segment_timelines_create(client, result.tensors, 2, result.segment_timelines));
  WORKS(gpushm_timeline_signal(result.segment_timelines[1], 6));
  return result;
}

/* Publishes items to the consumer of the other process, when that has joined. */
static void produce_items(gpushm_client* client) {
  gpushm_channel_options options = GPUSHM_INIT(options);
  gpushm_producer_stats stats = GPUSHM_INIT(stats);
  gpushm_producer* producer = NULL;
  gpushm_timeline* joined = NULL;
  uint64_t i;
  options.slot_bytes = chunk;
  options.slots = 3;
  options.device = gpushm_text("host");
  WORKS(gpushm_producer_create(client, gpushm_text("g/channel"), &options, &producer));
  WORKS(gpushm_timeline_open(client, gpushm_text("g/joined"), wait_ms, NULL, &joined));
  waits_for(joined, 1);
  for (i = 1; i <= items; ++i) {
    gpushm_slot* slot = NULL;
    gpushm_slot_info info = GPUSHM_INIT(info);
    uint64_t published = 0;
    bool acquired = false;
    WORKS(gpushm_producer_acquire(producer, wait_ms, NULL, &slot, &acquired));
    check(acquired, "a slot in time");
    WORKS(gpushm_slot_get(slot, &info));
    memset(info.data, (int)i, info.bytes);
    WORKS(gpushm_slot_publish(slot, &i, sizeof i, &published));
    CHECK(published == i);
  }
  WORKS(gpushm_producer_stats_get(producer, &stats));
  CHECK(stats.announced == items && stats.dropped == 0);
  waits_for(joined, 2); /* it has read all of them */
  gpushm_producer_close(producer);
  waits_for(joined, 3); /* it has seen the end */
  gpushm_timeline_close(joined);
}

/* A process that has signaled a timeline is killed. */
static void sees_death(gpushm_client* client) {
  gpushm_timeline* dying = NULL;
  gpushm_timeline* seen = NULL;
  bool reached = false;
  WORKS(gpushm_timeline_create(client, gpushm_text("g/seen"), &seen));
  WORKS(gpushm_timeline_open(client, gpushm_text("g/dying"), wait_ms, NULL, &dying));
  waits_for(dying, 1);
  WORKS(gpushm_timeline_signal(seen, 1));
  CHECK(gpushm_timeline_wait(dying, 2, wait_ms, NULL, &reached) == GPUSHM_ERRC_PEER_DIED);
  gpushm_timeline_close(dying);
  gpushm_timeline_close(seen);
}

static void end_sharing(shared_things* shared) {
  gpushm_segment_close(shared->tensors);
  gpushm_descriptor_close(shared->registered);
  gpushm_timeline_close(shared->segment_timelines[0]);
  gpushm_timeline_close(shared->segment_timelines[1]);
  gpushm_ticket_file_close(shared->ticket_file);
}

static int produce(const char* socket, const char* file) {
  gpushm_client* client = connected(socket);
  gpushm_create_options options = GPUSHM_INIT(options);
  gpushm_share_options sharing = GPUSHM_INIT(sharing);
  gpushm_subscription* events = NULL;
  gpushm_segment* leased = NULL;
  gpushm_segment* persistent = NULL;
  gpushm_segment* shared = NULL;
  gpushm_ticket ticket = GPUSHM_INIT(ticket);
  gpushm_ticket_file* ticket_file = NULL;
  shared_things others;
  unsigned char* memory;
  const int descriptor = memfd_create("shared", MFD_CLOEXEC | MFD_ALLOW_SEALING);

  WORKS(gpushm_client_subscribe(client, gpushm_text("f/"), NULL, &events));
  options.device = gpushm_text("host");
  options.size_bytes = size_bytes;
  options.chunk_bytes = chunk; /* more than fit into one packet */
  WORKS(gpushm_client_create(client, gpushm_text("f/leased"), &options, &leased));
  WORKS(gpushm_segment_fill(leased, 1));
  WORKS(gpushm_segment_publish(leased, "of the leased", 13));
  options.chunk_bytes = 0;
  options.lifetime = GPUSHM_LIFETIME_PERSISTENT;
  WORKS(gpushm_client_create(client, gpushm_text("f/persistent"), &options, &persistent));
  WORKS(gpushm_segment_fill(persistent, 2));
  WORKS(gpushm_export_segment(persistent, gpushm_text(""), &ticket));
  WORKS(gpushm_segment_publish(persistent, NULL, 0));
  WORKS(
      gpushm_ticket_file_create(gpushm_text(file), ticket.bytes, ticket.size, 0600, &ticket_file));

  CHECK(descriptor >= 0 && ftruncate(descriptor, chunk) == 0);
  memory = mmap(NULL, chunk, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  CHECK(memory != MAP_FAILED);
  CHECK(fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  memset(memory, 3, chunk);
  sharing.metadata = "of the shared";
  sharing.metadata_size = 13;
  WORKS(gpushm_client_share(client, gpushm_text("f/shared"), memory, chunk, &sharing, &shared));

  others = begin_sharing(client, descriptor, file);
  produce_items(client);
  WORKS(gpushm_timeline_hand_over(others.timeline));

  wait_for_event(events, GPUSHM_EVENT_RELEASED, "f/leased");
  sees_death(client);
  end_sharing(&others);
  wait_for_event(events, GPUSHM_EVENT_PEER_DIED, "f/persistent");
  WORKS(gpushm_segment_unshare(shared));
  WORKS(gpushm_client_remove(client, gpushm_text("f/persistent")));
  wait_for_event(events, GPUSHM_EVENT_REMOVED, "f/persistent");
  CHECK(gpushm_segment_current_state(persistent) == GPUSHM_SEGMENT_REMOVED);
  gpushm_ticket_file_close(ticket_file);
  gpushm_segment_close(shared);
  gpushm_segment_close(persistent);
  gpushm_segment_close(leased);
  gpushm_subscription_close(events);
  gpushm_client_close(client);
  munmap(memory, chunk);
  close(descriptor);
  return 0;
}

static void has(const gpushm_segment* segment, unsigned char value, const char* metadata) {
  const unsigned char* data = gpushm_segment_data(segment);
  const void* text = NULL;
  size_t text_size = 0;
  CHECK(data[0] == value && data[gpushm_segment_size_bytes(segment) - 1] == value);
  WORKS(gpushm_segment_metadata(segment, &text, &text_size));
  CHECK(text_size == strlen(metadata) && memcmp(text, metadata, text_size) == 0);
}

static void consume_items(gpushm_client* client) {
  gpushm_consumer_options options = GPUSHM_INIT(options);
  gpushm_channel_status* status = NULL;
  gpushm_channel_info channel = GPUSHM_INIT(channel);
  gpushm_consumer* consumer = NULL;
  gpushm_timeline* joined = NULL;
  gpushm_item* item = NULL;
  bool got = false;
  uint64_t i;
  WORKS(gpushm_consumer_open(client, gpushm_text("g/channel"), &options, wait_ms, &consumer));
  WORKS(gpushm_channel_status_read(client, gpushm_text("g/channel"), &status));
  WORKS(gpushm_channel_status_get(status, &channel));
  CHECK(channel.slots == 3 && channel.consumers == 1 && channel.slot_bytes == chunk);
  gpushm_channel_status_free(status);
  WORKS(gpushm_timeline_create(client, gpushm_text("g/joined"), &joined));
  WORKS(gpushm_timeline_signal(joined, 1));
  for (i = 1; i <= items; ++i) {
    gpushm_item_info info = GPUSHM_INIT(info);
    const unsigned char* data;
    WORKS(gpushm_consumer_next(consumer, wait_ms, NULL, &item, &got));
    check(got, "an item in time");
    WORKS(gpushm_item_get(item, &info));
    data = info.data;
    CHECK(info.number == i && info.bytes == chunk && data[0] == i && data[chunk - 1] == i);
    CHECK(info.metadata_size == sizeof i && memcmp(info.metadata, &i, sizeof i) == 0);
    WORKS(gpushm_item_release(item));
  }
  WORKS(gpushm_timeline_signal(joined, 2));
  WORKS(gpushm_consumer_next(consumer, wait_ms, NULL, &item, &got));
  CHECK(!got && gpushm_consumer_has_ended(consumer));
  WORKS(gpushm_timeline_signal(joined, 3));
  gpushm_consumer_close(consumer);
  gpushm_timeline_close(joined);
}

static void consume_others(gpushm_client* client, const char* file) {
  gpushm_timeline* timeline = NULL;
  gpushm_timeline* imported = NULL;
  gpushm_timeline* taken_over = NULL;
  gpushm_tensors_table* tensors = NULL;
  gpushm_segment* opened = NULL;
  unsigned char ticket[4096];
  FILE* stream;
  size_t size;
  uint64_t value = 0;
  int fd = -1;
  unsigned char byte = 0;

  WORKS(gpushm_timeline_open(client, gpushm_text("g/timeline"), wait_ms, NULL, &timeline));
  waits_for(timeline, 5);
  stream = fopen(timeline_file(file).data, "rb");
  CHECK(stream != NULL);
  size = fread(ticket, 1, sizeof ticket, stream);
  fclose(stream);
  WORKS(gpushm_import_timeline(ticket, size, gpushm_text(""), &imported));
  waits_for(imported, 5);
  gpushm_timeline_close(imported);

  WORKS(gpushm_tensors_open(client, gpushm_text("g/tensors"), NULL, wait_ms, &opened));
  WORKS(gpushm_tensors_table_read(opened, &tensors));
  CHECK(gpushm_tensors_table_count(tensors) == 2);
  gpushm_tensors_table_free(tensors);
  CHECK(*(const unsigned char*)gpushm_segment_data(opened) == 4);
  WORKS(gpushm_segment_timeline_open(client, opened, 1, wait_ms, NULL, &imported));
  waits_for(imported, 6);
  gpushm_timeline_close(imported);
  gpushm_segment_close(opened);

  WORKS(gpushm_client_resolve_descriptor(client, number, tag, &fd));
  CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 3);
  close(fd);

  consume_items(client);
  WORKS(gpushm_timeline_take_over(timeline, wait_ms, NULL, &taken_over));
  WORKS(gpushm_timeline_value(taken_over, &value));
  CHECK(value == 5 && gpushm_timeline_is_own(taken_over));
  WORKS(gpushm_timeline_signal(taken_over, 7));
  waits_for(timeline, 7);
  gpushm_timeline_close(taken_over);
  gpushm_timeline_close(timeline);
}

static int consume(const char* socket, const char* file) {
  gpushm_client* client = connected(socket);
  gpushm_open_options options = GPUSHM_INIT(options);
  gpushm_import_options importing = GPUSHM_INIT(importing);
  gpushm_segment_info info = GPUSHM_INIT(info);
  gpushm_segment_list* list = NULL;
  gpushm_segment* opened = NULL;
  gpushm_segment* again = NULL;
  gpushm_open_result results[3];
  const gpushm_string names[3] = {
      gpushm_text("f/persistent"), gpushm_text("f/shared"), gpushm_text("f/none")};
  gpushm_error* why;

  /* It starts before the producer. */
  WORKS(gpushm_client_open(client, gpushm_text("f/shared"), &options, wait_ms, &opened));
  has(opened, 3, "of the shared");
  gpushm_segment_close(opened);
  options.expected_size_bytes = size_bytes;
  WORKS(gpushm_client_open(client, gpushm_text("f/leased"), &options, 0, &opened));
  CHECK(gpushm_segment_size_bytes(opened) == size_bytes);
  has(opened, 1, "of the leased");
  WORKS(gpushm_client_open(client, gpushm_text("f/leased"), NULL, 0, &again)); /* from the cache */
  CHECK(gpushm_segment_data(again) == gpushm_segment_data(opened));
  gpushm_segment_close(again);
  WORKS(gpushm_client_open_many(client, names, 3, NULL, 0, results));
  CHECK(results[0].segment != NULL && results[1].segment != NULL && results[2].segment == NULL);
  CHECK(gpushm_error_code(results[2].failure) == GPUSHM_ERRC_NO_SUCH_SEGMENT);
  gpushm_error_free(results[2].failure);
  has(results[0].segment, 2, "");
  WORKS(gpushm_client_stat(client, gpushm_text("f/leased"), &info));
  CHECK(info.chunks == chunks && info.leases == 2 && info.published);
  WORKS(gpushm_client_list(client, gpushm_text("f/"), &list));
  CHECK(gpushm_segment_list_size(list) == 3);
  gpushm_segment_list_free(list);
  {
    gpushm_client* other = connected(socket);
    size_t count = 0;
    WORKS(gpushm_client_prefetch(other, gpushm_text("f/"), &count));
    CHECK(count == 1);
    WORKS(gpushm_client_open(other, names[0], NULL, 0, &again));
    has(again, 2, "");
    gpushm_segment_close(again);
    gpushm_client_close(other);
  }
  WORKS(gpushm_import_file(gpushm_text(file), &importing, wait_ms, &again));
  has(again, 2, "");
  gpushm_segment_close(again);
  options.expected_size_bytes = 1;
  CHECK(gpushm_client_open(client, names[0], &options, 0, &again) == GPUSHM_ERRC_SIZE_MISMATCH);
  why = gpushm_error_dup(gpushm_last_error());
  CHECK(gpushm_error_cause(why).size != 0 && gpushm_error_next_step(why).size != 0);
  gpushm_error_free(why);
  consume_others(client, file);
  gpushm_segment_close(results[0].segment);
  gpushm_segment_close(results[1].segment);
  gpushm_segment_close(opened);
  gpushm_client_close(client);
  return 0;
}

static int die(const char* socket) {
  gpushm_client* client = connected(socket);
  gpushm_segment* opened = NULL;
  gpushm_timeline* dying = NULL;
  gpushm_timeline* seen = NULL;
  WORKS(gpushm_client_open(client, gpushm_text("f/persistent"), NULL, 0, &opened));
  WORKS(gpushm_timeline_create(client, gpushm_text("g/dying"), &dying));
  WORKS(gpushm_timeline_signal(dying, 1));
  WORKS(gpushm_timeline_open(client, gpushm_text("g/seen"), wait_ms, NULL, &seen));
  waits_for(seen, 1);
  raise(SIGKILL);
  return 1;
}

int main(int argc, char** argv) {
  const char* role = argc > 1 ? argv[1] : "";
  if (argc == 2 && strcmp(role, "version") == 0) {
    const uint32_t version = gpushm_version();
    printf("%u.%u.%u\n", version >> 16, version >> 8 & 255U, version & 255U);
    return 0;
  }
  if (argc == 3 && strcmp(role, "serve") == 0) {
    return serve(argv[2]);
  }
  if (argc == 3 && strcmp(role, "die") == 0) {
    return die(argv[2]);
  }
  if (argc == 4 && strcmp(role, "produce") == 0) {
    return produce(argv[2], argv[3]);
  }
  if (argc == 4 && strcmp(role, "consume") == 0) {
    return consume(argv[2], argv[3]);
  }
  fputs("usage: peer serve|die SOCKET | peer produce|consume SOCKET FILE | peer version\n", stderr);
  return 2;
}
