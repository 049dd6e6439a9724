/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests, in C11 through the shared libraries, what holds for every function that takes a timeout: 0
 * does not wait, GPUSHM_DEFAULT_TIMEOUT is what the comments say, and other negative values are
 * refused. Also structures of programs that were compiled with another version, and the details of
 * errors. Prints failures; exits with 1 if there are any. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "expect.h"
#include "gpushm/broker.h"
#include "gpushm/channel.h"
#include "gpushm/gpushm.h"
#include "gpushm/tensors.h"
#include "gpushm/timeline.h"

static char directory[] = "/tmp/gpushm-timeouts-XXXXXX";
static char socket_path[128];
static char model_path[128];
static char no_file[128];

/* What the calls below are made with. */
static gpushm_client* client;
static gpushm_segment* segment;
static gpushm_subscription* subscription;
static gpushm_timeline* own;     /* has the value 1 */
static gpushm_timeline* flags;   /* has the flag 1 */
static gpushm_producer* full;    /* its only slot is acquired */
static gpushm_consumer* waiting; /* there is no item for it */

/* ---- calls: each returns the function's code, and whether its bool was set ---- */

typedef gpushm_errc (*timed_call)(int64_t timeout_ms, bool* done);

static const gpushm_string* nowhere(void) {
  static gpushm_string name;
  name = gpushm_text("t/nowhere");
  return &name;
}

static gpushm_errc connects(int64_t timeout_ms, bool* done) {
  gpushm_connect_options options = GPUSHM_INIT(options);
  gpushm_client* made = NULL;
  gpushm_errc code;
  (void)done;
  options.socket_path = gpushm_text("/nowhere/socket");
  code = gpushm_client_connect(&options, timeout_ms, &made);
  gpushm_client_close(made);
  return code;
}
static gpushm_errc opens(int64_t timeout_ms, bool* done) {
  gpushm_segment* opened = NULL;
  const gpushm_errc code = gpushm_client_open(client, *nowhere(), NULL, timeout_ms, &opened);
  *done = opened != NULL;
  return code;
}
static gpushm_errc tries_to_open(int64_t timeout_ms, bool* done) {
  gpushm_segment* opened = NULL;
  const gpushm_errc code = gpushm_client_try_open(client, *nowhere(), NULL, timeout_ms, &opened);
  *done = opened != NULL;
  return code;
}
static gpushm_errc opens_many(int64_t timeout_ms, bool* done) {
  gpushm_open_result result = {NULL, NULL};
  const gpushm_errc code = gpushm_client_open_many(client, nowhere(), 1, NULL, timeout_ms, &result);
  *done = result.segment != NULL;
  if (code == GPUSHM_OK) {
    EXPECT(gpushm_error_code(result.failure) == GPUSHM_ERRC_NO_SUCH_SEGMENT);
  }
  gpushm_error_free(result.failure);
  return code;
}
static gpushm_errc reads_events(int64_t timeout_ms, bool* done) {
  gpushm_event event = GPUSHM_INIT(event);
  return gpushm_subscription_next(subscription, timeout_ms, NULL, &event, done);
}
static gpushm_errc imports_a_file(int64_t timeout_ms, bool* done) {
  gpushm_segment* imported = NULL;
  const gpushm_errc code = gpushm_import_file(gpushm_text(no_file), NULL, timeout_ms, &imported);
  *done = imported != NULL;
  return code;
}
static gpushm_errc reads_a_ticket(int64_t timeout_ms, bool* done) {
  gpushm_ticket ticket = GPUSHM_INIT(ticket);
  (void)done;
  return gpushm_read_ticket_file(gpushm_text(no_file), timeout_ms, NULL, &ticket);
}
static gpushm_errc opens_a_timeline(int64_t timeout_ms, bool* done) {
  gpushm_timeline* opened = NULL;
  const gpushm_errc code = gpushm_timeline_open(client, *nowhere(), timeout_ms, NULL, &opened);
  *done = opened != NULL;
  return code;
}
static gpushm_errc opens_a_timeline_of_a_segment(int64_t timeout_ms, bool* done) {
  gpushm_timeline* opened = NULL;
  const gpushm_errc code =
      gpushm_segment_timeline_open(client, segment, 0, timeout_ms, NULL, &opened);
  *done = opened != NULL;
  return code;
}
static gpushm_errc takes_over(int64_t timeout_ms, bool* done) {
  gpushm_timeline* taken = NULL;
  const gpushm_errc code = gpushm_timeline_take_over(own, timeout_ms, NULL, &taken);
  *done = taken != NULL;
  return code;
}
static gpushm_errc waits(int64_t timeout_ms, bool* done) {
  return gpushm_timeline_wait(own, 2, timeout_ms, NULL, done);
}
static gpushm_errc waits_for_flags(int64_t timeout_ms, bool* done) {
  return gpushm_timeline_wait_flags(flags, 2, timeout_ms, NULL, done);
}
static gpushm_errc waits_on_a_stream(int64_t timeout_ms, bool* done) {
  (void)done;
  return gpushm_timeline_wait_on(own, NULL, 2, timeout_ms);
}
static gpushm_errc enqueues_a_batch(int64_t timeout_ms, bool* done) {
  const gpushm_stream_operation wait = {own, 2, GPUSHM_STREAM_WAIT};
  (void)done;
  return gpushm_stream_batch(NULL, &wait, sizeof wait, 1, timeout_ms);
}
static gpushm_errc sets_values(int64_t timeout_ms, bool* done) {
  (void)done;
  return gpushm_graph_set_values(NULL, NULL, NULL, NULL, 0, timeout_ms);
}
static gpushm_errc acquires(int64_t timeout_ms, bool* done) {
  gpushm_slot* slot = NULL;
  return gpushm_producer_acquire(full, timeout_ms, NULL, &slot, done);
}
static gpushm_errc acquires_on_a_stream(int64_t timeout_ms, bool* done) {
  gpushm_slot* slot = NULL;
  return gpushm_producer_acquire_on(full, NULL, timeout_ms, NULL, &slot, done);
}
static gpushm_errc opens_a_consumer(int64_t timeout_ms, bool* done) {
  gpushm_consumer* opened = NULL;
  const gpushm_errc code = gpushm_consumer_open(client, *nowhere(), NULL, timeout_ms, &opened);
  *done = opened != NULL;
  return code;
}
static gpushm_errc takes_an_item(int64_t timeout_ms, bool* done) {
  gpushm_item* item = NULL;
  return gpushm_consumer_next(waiting, timeout_ms, NULL, &item, done);
}
static gpushm_errc takes_an_item_on_a_stream(int64_t timeout_ms, bool* done) {
  gpushm_item* item = NULL;
  return gpushm_consumer_next_on(waiting, NULL, timeout_ms, NULL, &item, done);
}
static gpushm_errc loads(int64_t timeout_ms, bool* done) {
  gpushm_load_options options = GPUSHM_INIT(options);
  const gpushm_string path = gpushm_text(model_path);
  gpushm_segment* loaded = NULL;
  gpushm_errc code;
  options.device = gpushm_text("host");
  code = gpushm_tensors_load(client, *nowhere(), &path, 1, &options, timeout_ms, &loaded);
  *done = loaded != NULL;
  return code;
}
static gpushm_errc opens_tensors(int64_t timeout_ms, bool* done) {
  gpushm_segment* opened = NULL;
  const gpushm_errc code = gpushm_tensors_open(client, *nowhere(), NULL, timeout_ms, &opened);
  *done = opened != NULL;
  return code;
}

/* ---- every function with a timeout ---- */

enum { needs_a_gpu = -1 };

static const struct timed {
  const char* name;
  timed_call call;
  int at_once;          /* the code with a timeout of 0 */
  bool default_is_zero; /* GPUSHM_DEFAULT_TIMEOUT, too */
} all[] = {
    {"gpushm_client_connect", connects, GPUSHM_ERRC_BROKER_UNREACHABLE, true},
    {"gpushm_client_open", opens, GPUSHM_ERRC_NO_SUCH_SEGMENT, true},
    {"gpushm_client_try_open", tries_to_open, GPUSHM_OK, true},
    {"gpushm_client_open_many", opens_many, GPUSHM_OK, true},
    {"gpushm_subscription_next", reads_events, GPUSHM_OK, false},
    {"gpushm_import_file", imports_a_file, GPUSHM_ERRC_NO_SUCH_SEGMENT, true},
    {"gpushm_read_ticket_file", reads_a_ticket, GPUSHM_ERRC_NO_SUCH_SEGMENT, true},
    {"gpushm_timeline_open", opens_a_timeline, GPUSHM_ERRC_NO_SUCH_SEGMENT, true},
    {"gpushm_segment_timeline_open",
     opens_a_timeline_of_a_segment,
     GPUSHM_ERRC_NO_SUCH_SEGMENT,
     true},
    {"gpushm_timeline_take_over", takes_over, GPUSHM_ERRC_TIMED_OUT, false},
    {"gpushm_timeline_wait", waits, GPUSHM_OK, false},
    {"gpushm_timeline_wait_flags", waits_for_flags, GPUSHM_OK, false},
    {"gpushm_timeline_wait_on", waits_on_a_stream, needs_a_gpu, false},
    {"gpushm_stream_batch", enqueues_a_batch, needs_a_gpu, false},
    {"gpushm_graph_set_values", sets_values, needs_a_gpu, false},
    {"gpushm_producer_acquire", acquires, GPUSHM_OK, false},
    {"gpushm_producer_acquire_on", acquires_on_a_stream, needs_a_gpu, false},
    {"gpushm_consumer_open", opens_a_consumer, GPUSHM_ERRC_NO_SUCH_SEGMENT, false},
    {"gpushm_consumer_next", takes_an_item, GPUSHM_OK, false},
    {"gpushm_consumer_next_on", takes_an_item_on_a_stream, needs_a_gpu, false},
    {"gpushm_tensors_load", loads, GPUSHM_ERRC_TIMED_OUT, false},
    {"gpushm_tensors_open", opens_tensors, GPUSHM_ERRC_NO_SUCH_SEGMENT, true},
};

static void expect_at_once(const struct timed* function, int64_t timeout_ms) {
  bool done = true;
  const int code = (int)function->call(timeout_ms, &done);
  if (code != function->at_once) {
    fprintf(stderr,
            "%s with %lld: %d, not %d: %s\n",
            function->name,
            (long long)timeout_ms,
            code,
            function->at_once,
            gpushm_error_message(gpushm_last_error()).data);
    ++failures;
  } else if (code == GPUSHM_OK && done) {
    fprintf(stderr, "%s with %lld: has not timed out\n", function->name, (long long)timeout_ms);
    ++failures;
  }
}

static void every_timeout_has_one_rule(void) {
  static const int64_t invalid[] = {-1, -2, -30000, INT64_MIN + 1};
  for (size_t i = 0; i != sizeof all / sizeof *all; ++i) {
    for (size_t j = 0; j != sizeof invalid / sizeof *invalid; ++j) {
      bool done = false;
      const gpushm_errc code = all[i].call(invalid[j], &done);
      if (code != GPUSHM_ERRC_INVALID_ARGUMENT || done ||
          strstr(gpushm_error_cause(gpushm_last_error()).data, "the timeout is -") == NULL) {
        fprintf(stderr,
                "%s with %lld: %d, not refused\n",
                all[i].name,
                (long long)invalid[j],
                (int)code);
        ++failures;
      }
    }
    if (all[i].at_once != needs_a_gpu) {
      expect_at_once(&all[i], 0);
      if (all[i].default_is_zero) {
        expect_at_once(&all[i], GPUSHM_DEFAULT_TIMEOUT);
      }
    }
  }
}

static void waits_that_are_members_have_it_too(void) {
  gpushm_consumer_options joining = GPUSHM_INIT(joining);
  gpushm_connect_options connecting = GPUSHM_INIT(connecting);
  gpushm_consumer* consumer = NULL;
  gpushm_client* made = NULL;
  joining.resume_ms = -1;
  FAILS(gpushm_consumer_open(client, gpushm_text("t/channel"), &joining, 0, &consumer),
        GPUSHM_ERRC_INVALID_ARGUMENT);
  connecting.socket_path = gpushm_text(socket_path);
  connecting.request_limit_ms = -1;
  FAILS(gpushm_client_connect(&connecting, 0, &made), GPUSHM_ERRC_INVALID_ARGUMENT);
  connecting.request_limit_ms = GPUSHM_FOREVER;
  WORKS(gpushm_client_connect(&connecting, 0, &made));
  gpushm_client_close(made);
}

/* ---- loads ---- */

static void notes_progress(const gpushm_load_progress* progress, void* context) {
  EXPECT(progress->struct_size == sizeof *progress);
  EXPECT(progress->bytes <= progress->total_bytes);
  ++*(int*)context;
}

static void a_load_without_waiting_returns_what_is_complete(void) {
  gpushm_load_options options = GPUSHM_INIT(options);
  const gpushm_string path = gpushm_text(model_path);
  gpushm_segment* loaded = NULL;
  int reports = 0;
  options.device = gpushm_text("host");
  options.report = notes_progress;
  options.report_context = &reports;
  WORKS(gpushm_tensors_load(
      client, gpushm_text("t/model"), &path, 1, &options, GPUSHM_DEFAULT_TIMEOUT, &loaded));
  EXPECT(reports > 0);
  gpushm_segment_close(loaded);
  loaded = NULL;
  WORKS(gpushm_tensors_load(client, gpushm_text("t/model"), &path, 1, &options, 0, &loaded));
  gpushm_segment_close(loaded);
  WORKS(gpushm_client_remove(client, gpushm_text("t/model")));
}

/* ---- structures of other versions ---- */

static void tickets_have_the_callers_room(void) {
  gpushm_ticket ticket = GPUSHM_INIT(ticket);
  gpushm_ticket small = GPUSHM_INIT(small);
  small.struct_size = offsetof(gpushm_ticket, bytes) + 8;
  memset(small.bytes, 0x55, sizeof small.bytes);
  FAILS(gpushm_export_segment(segment, gpushm_text(""), &small), GPUSHM_ERRC_MESSAGE_TOO_LARGE);
  EXPECT(small.size == 0 && small.bytes[0] == 0x55 && small.bytes[8] == 0x55);
  small.struct_size = 0;
  FAILS(gpushm_export_segment(segment, gpushm_text(""), &small), GPUSHM_ERRC_INVALID_ARGUMENT);
  WORKS(gpushm_export_segment(segment, gpushm_text(""), &ticket));
  EXPECT(ticket.struct_size == sizeof ticket && ticket.size != 0);
  small.struct_size = offsetof(gpushm_ticket, bytes) + ticket.size; /* just enough */
  WORKS(gpushm_export_segment(segment, gpushm_text(""), &small));
  EXPECT(small.size == ticket.size && memcmp(small.bytes, ticket.bytes, ticket.size) == 0);
  EXPECT(small.bytes[ticket.size] == 0x55);
}

static void operations_have_the_callers_size(void) {
  struct newer {
    gpushm_stream_operation known;
    uint64_t added;
  } newer[2];
  const gpushm_errc invalid = GPUSHM_ERRC_INVALID_ARGUMENT;
  memset(newer, 0, sizeof newer);
  newer[0].known.timeline = newer[1].known.timeline = own;
  newer[0].known.kind = newer[1].known.kind = GPUSHM_STREAM_WAIT;
  newer[1].added = 1;
  FAILS(gpushm_stream_batch(NULL, &newer[0].known, sizeof *newer, 2, 0), invalid);
  EXPECT(strstr(gpushm_error_next_step(gpushm_last_error()).data, "version") != NULL);
  newer[1].added = 0;
  newer[1].known.kind = (gpushm_stream_operation_kind)99; /* the second one is found */
  FAILS(gpushm_stream_batch(NULL, &newer[0].known, sizeof *newer, 2, 0), invalid);
  EXPECT(strstr(gpushm_error_cause(gpushm_last_error()).data, "99") != NULL);
  FAILS(gpushm_stream_batch(NULL, &newer[0].known, 0, 1, 0), invalid);
  FAILS(gpushm_stream_batch(NULL, &newer[0].known, sizeof(void*), 1, 0), invalid);
  FAILS(gpushm_stream_batch(NULL, &newer[0].known, sizeof *newer + 1, 1, 0), invalid);
  EXPECT(strstr(gpushm_error_next_step(gpushm_last_error()).data, "sizeof") != NULL);
}

/* ---- what errors are about ---- */

static void errors_have_details(void) {
  struct newer {
    gpushm_error_details known;
    uint64_t added;
  } newer;
  const gpushm_string text = gpushm_text("a");
  gpushm_create_options options = GPUSHM_INIT(options);
  gpushm_segment* made = NULL;
  gpushm_segment* second = NULL;
  gpushm_client* other = NULL;
  gpushm_connect_options connecting = GPUSHM_INIT(connecting);
  gpushm_error* error;
  uint64_t value = 7;

  memset(&newer, 0, sizeof newer);
  newer.known.struct_size = sizeof newer;
  newer.known.pid = 42;
  newer.known.has_value = true;
  newer.known.value = UINT64_MAX;
  newer.added = 1; /* an error is never refused */
  error = gpushm_error_create(GPUSHM_ERRC_PEER_DIED, text, text, text, text, &newer.known);
  EXPECT(gpushm_error_pid(error) == 42);
  EXPECT(gpushm_error_value(error, &value) && value == UINT64_MAX);
  EXPECT(gpushm_error_value(error, NULL));
  gpushm_error_free(error);
  newer.known.struct_size = offsetof(gpushm_error_details, pid); /* of an older version */
  error = gpushm_error_create(GPUSHM_ERRC_PEER_DIED, text, text, text, text, &newer.known);
  EXPECT(gpushm_error_pid(error) == 0 && !gpushm_error_value(error, NULL));
  gpushm_error_free(error);
  error = gpushm_error_create(GPUSHM_ERRC_PEER_DIED, text, text, text, text, NULL);
  value = 7;
  EXPECT(gpushm_error_pid(error) == 0 && !gpushm_error_value(error, &value) && value == 7);
  gpushm_error_free(error);
  EXPECT(gpushm_error_pid(NULL) == 0 && !gpushm_error_value(NULL, &value));

  FAILS(gpushm_timeline_signal(own, GPUSHM_MAX_TIMELINE_VALUE + 1), GPUSHM_ERRC_VALUE_OUT_OF_RANGE);
  EXPECT(gpushm_error_value(gpushm_last_error(), &value) && value == GPUSHM_MAX_TIMELINE_VALUE + 1);
  FAILS(gpushm_timeline_signal(own, 1), GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT(gpushm_error_value(gpushm_last_error(), &value) && value == 1);

  /* From the broker: who has the name. */
  connecting.socket_path = gpushm_text(socket_path);
  WORKS(gpushm_client_connect(&connecting, 0, &other));
  options.size_bytes = 1;
  options.device = gpushm_text("host");
  WORKS(gpushm_client_create(client, gpushm_text("t/taken"), &options, &made));
  FAILS(gpushm_client_create(other, gpushm_text("t/taken"), &options, &second),
        GPUSHM_ERRC_ALREADY_EXISTS);
  EXPECT(gpushm_error_pid(gpushm_last_error()) == getpid());
  FAILS(gpushm_client_open(other, gpushm_text("t/taken"), NULL, 0, &second),
        GPUSHM_ERRC_NO_SUCH_SEGMENT);
  EXPECT(gpushm_error_pid(gpushm_last_error()) == getpid());
  gpushm_segment_close(made);
  gpushm_client_close(other);
}

/* ---- the world of these tests ---- */

static void write_model(void) {
  static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
  const uint64_t size = sizeof header - 1;
  FILE* const file = fopen(model_path, "wb");
  EXPECT(file != NULL);
  if (file != NULL) {
    EXPECT(fwrite(&size, sizeof size, 1, file) == 1); /* little-endian, as the machines are */
    EXPECT(fwrite(header, 1, sizeof header - 1, file) == sizeof header - 1);
    EXPECT(fwrite("data", 1, 4, file) == 4);
    EXPECT(fclose(file) == 0);
  }
}

static void begin(gpushm_broker** broker) {
  gpushm_broker_options options = GPUSHM_INIT(options);
  gpushm_connect_options connecting = GPUSHM_INIT(connecting);
  gpushm_create_options creating = GPUSHM_INIT(creating);
  gpushm_channel_options channel = GPUSHM_INIT(channel);
  gpushm_slot* slot = NULL;
  bool acquired = false;
  options.socket_path = gpushm_text(socket_path);
  WORKS(gpushm_broker_start(&options, broker));
  connecting.socket_path = gpushm_text(socket_path);
  WORKS(gpushm_client_connect(&connecting, GPUSHM_DEFAULT_TIMEOUT, &client));
  creating.size_bytes = 4096;
  creating.device = gpushm_text("host");
  WORKS(gpushm_client_create(client, gpushm_text("t/segment"), &creating, &segment));
  WORKS(gpushm_segment_publish(segment, NULL, 0));
  WORKS(gpushm_client_subscribe(client, *nowhere(), NULL, &subscription));
  WORKS(gpushm_timeline_create(client, gpushm_text("t/own"), &own));
  WORKS(gpushm_timeline_signal(own, 1));
  WORKS(gpushm_timeline_create(client, gpushm_text("t/flags"), &flags));
  WORKS(gpushm_timeline_set_flags(flags, 1));
  channel.slot_bytes = 64;
  channel.slots = 1;
  channel.device = gpushm_text("host");
  WORKS(gpushm_producer_create(client, gpushm_text("t/channel"), &channel, &full));
  WORKS(gpushm_consumer_open(
      client, gpushm_text("t/channel"), NULL, GPUSHM_DEFAULT_TIMEOUT, &waiting));
  WORKS(gpushm_producer_acquire(full, GPUSHM_DEFAULT_TIMEOUT, NULL, &slot, &acquired));
  EXPECT(acquired);
}

static void end(gpushm_broker* broker) {
  gpushm_consumer_close(waiting);
  gpushm_producer_close(full);
  gpushm_timeline_close(flags);
  gpushm_timeline_close(own);
  gpushm_subscription_close(subscription);
  gpushm_segment_close(segment);
  gpushm_client_close(client);
  gpushm_broker_stop(broker);
}

int main(void) {
  gpushm_broker* broker = NULL;
  if (mkdtemp(directory) == NULL) {
    return 1;
  }
  snprintf(socket_path, sizeof socket_path, "%s/socket", directory);
  snprintf(model_path, sizeof model_path, "%s/model.safetensors", directory);
  snprintf(no_file, sizeof no_file, "%s/ticket", directory);
  write_model();
  begin(&broker);
  if (failures == 0) {
    every_timeout_has_one_rule();
    waits_that_are_members_have_it_too();
    a_load_without_waiting_returns_what_is_complete();
    tickets_have_the_callers_room();
    operations_have_the_callers_size();
    errors_have_details();
  }
  end(broker);
  {
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    EXPECT(system(command) == 0);
  }
  if (failures == 0) {
    printf("timeouts: passed\n");
  }
  return failures == 0 ? 0 : 1;
}
