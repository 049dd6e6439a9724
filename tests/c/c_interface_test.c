/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the contracts of gpushm.h and broker.h in C11 through the shared libraries: every function
 * with valid arguments, with NULL, with invalid structures, and in a forked child. Prints failures;
 * exits with 1 if there are any. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"
#include "gpushm/broker.h"
#include "gpushm/gpushm.h"
#include "gpushm/window.h"

static int is_text(gpushm_string text, const char* wanted) {
  return text.size == strlen(wanted) && memcmp(text.data, wanted, text.size) == 0;
}

static char directory[] = "/tmp/gpushm-c-XXXXXX";
static char socket_path[128];

static gpushm_client* connected(void) {
  gpushm_connect_options options = GPUSHM_INIT(options);
  gpushm_client* client = NULL;
  options.socket_path = gpushm_text(socket_path);
  WORKS(gpushm_client_connect(&options, GPUSHM_DEFAULT_TIMEOUT, &client));
  return client;
}

static gpushm_segment* created(gpushm_client* client, const char* name, uint64_t size_bytes) {
  gpushm_create_options options = GPUSHM_INIT(options);
  gpushm_segment* segment = NULL;
  options.size_bytes = size_bytes;
  options.device = gpushm_text("host");
  WORKS(gpushm_client_create(client, gpushm_text(name), &options, &segment));
  return segment;
}

/* ---- basic types ---- */

static void names_of_enumerators(void) {
  EXPECT(is_text(gpushm_errc_name(GPUSHM_ERRC_NO_SUCH_SEGMENT), "no_such_segment"));
  EXPECT(is_text(gpushm_access_name(GPUSHM_ACCESS_READ_WRITE), "read-write"));
  EXPECT(is_text(gpushm_lifetime_name(GPUSHM_LIFETIME_LEASED), "leased"));
  EXPECT(is_text(gpushm_segment_state_name(GPUSHM_SEGMENT_REMOVED), "removed"));
  EXPECT(is_text(gpushm_segment_state_name(GPUSHM_SEGMENT_SUSPENDED), "suspended"));
  EXPECT(is_text(gpushm_suspend_mode_name(GPUSHM_SUSPEND_KEEP), "keep"));
  EXPECT(is_text(gpushm_suspend_mode_name(GPUSHM_SUSPEND_HOST), "host"));
  EXPECT(is_text(gpushm_suspend_mode_name(GPUSHM_SUSPEND_DISCARD), "discard"));
  EXPECT(is_text(gpushm_suspend_mode_name((gpushm_suspend_mode)258), "unknown"));
  EXPECT(is_text(gpushm_backend_name(GPUSHM_BACKEND_CUDA_VMM), "cuda-vmm"));
  EXPECT(is_text(gpushm_device_kind_name(GPUSHM_DEVICE_MIG), "mig"));
  EXPECT(is_text(gpushm_fence_name(GPUSHM_FENCE_PROVEN), "proven"));
  EXPECT(is_text(gpushm_fence_wait_name(GPUSHM_FENCE_WAIT_DELAY), "delay"));
  EXPECT(is_text(gpushm_event_kind_name(GPUSHM_EVENT_RESYNC), "resync"));
  EXPECT(is_text(gpushm_loss_cause_name(GPUSHM_LOSS_UNREACHABLE), "unreachable"));
  EXPECT(is_text(gpushm_loss_cause_name((gpushm_loss_cause)5), "unknown"));
  /* Unknown values; the low bits of some are those of a known value. */
  EXPECT(is_text(gpushm_errc_name((gpushm_errc)65537), "unknown"));
  EXPECT(is_text(gpushm_access_name((gpushm_access)256), "unknown"));
  EXPECT(is_text(gpushm_backend_name((gpushm_backend)-1), "unknown"));
  EXPECT(gpushm_version() ==
         (GPUSHM_VERSION_MAJOR << 16 | GPUSHM_VERSION_MINOR << 8 | GPUSHM_VERSION_PATCH));
}

static void* fails_in_another_thread(void* nothing) {
  (void)nothing;
  EXPECT(gpushm_last_error() == NULL);
  FAILS(gpushm_client_trim(NULL), GPUSHM_ERRC_INVALID_ARGUMENT);
  return NULL;
}

static void errors(void) {
  pthread_t thread;
  gpushm_error* kept;
  gpushm_error* made;
  gpushm_connect_options options = GPUSHM_INIT(options);
  gpushm_client* client = (gpushm_client*)&options;
  options.socket_path = gpushm_text("/nowhere/socket");
  FAILS(gpushm_client_connect(&options, GPUSHM_DEFAULT_TIMEOUT, &client),
        GPUSHM_ERRC_BROKER_UNREACHABLE);
  EXPECT(client == (gpushm_client*)&options); /* a failure writes no result */
  kept = gpushm_error_dup(gpushm_last_error());
  EXPECT(gpushm_error_next_step(kept).size != 0);
  /* Errors are per thread. */
  EXPECT(pthread_create(&thread, NULL, fails_in_another_thread, NULL) == 0);
  pthread_join(thread, NULL);
  EXPECT(gpushm_error_code(gpushm_last_error()) == GPUSHM_ERRC_BROKER_UNREACHABLE);
  /* The next failure replaces it; duplicates stay. */
  FAILS(gpushm_client_trim(NULL), GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT(gpushm_error_code(kept) == GPUSHM_ERRC_BROKER_UNREACHABLE);
  EXPECT(strstr(gpushm_error_message(kept).data, "/nowhere/socket") != NULL);
  gpushm_error_free(kept);

  made = gpushm_error_create(GPUSHM_ERRC_PEER_DIED,
                             gpushm_text("open"),
                             gpushm_text("a\nb"),
                             gpushm_text("it is gone"),
                             gpushm_text("start it"),
                             NULL);
  EXPECT(is_text(gpushm_error_object(made), "a\nb"));
  EXPECT(is_text(gpushm_error_message(made), "open \"a\\x0ab\": it is gone (start it)"));
  gpushm_error_free(made);
  gpushm_error_free(NULL);
  EXPECT(gpushm_error_dup(NULL) == NULL);
  EXPECT(gpushm_error_code(NULL) == GPUSHM_OK);
  EXPECT(gpushm_error_message(NULL).size == 0);
}

/* Every function without a handle, and without a place for its result. */
static void null_arguments(gpushm_client* client, gpushm_segment* segment) {
  const gpushm_string name = gpushm_text("a");
  const gpushm_errc invalid = GPUSHM_ERRC_INVALID_ARGUMENT;
  gpushm_segment* opened = NULL;
  gpushm_segment_list* list = NULL;
  gpushm_subscription* subscription = NULL;
  gpushm_segment_info info = GPUSHM_INIT(info);
  gpushm_broker_info about = GPUSHM_INIT(about);
  gpushm_cache_stats stats = GPUSHM_INIT(stats);
  gpushm_event event = GPUSHM_INIT(event);
  gpushm_ticket ticket = GPUSHM_INIT(ticket);
  gpushm_ticket_info described = GPUSHM_INIT(described);
  gpushm_device device;
  gpushm_epoch epoch;
  gpushm_client* dup = NULL;
  const void* data = NULL;
  size_t size = 0;
  bool arrived = false;
  int descriptor = -1;
  char byte = 0;

  FAILS(gpushm_client_create(NULL, name, NULL, &opened), invalid);
  FAILS(gpushm_client_share(NULL, name, &byte, 1, NULL, &opened), invalid);
  FAILS(gpushm_client_open(NULL, name, NULL, 0, &opened), invalid);
  FAILS(gpushm_client_try_open(NULL, name, NULL, 0, &opened), invalid);
  FAILS(gpushm_client_open_many(NULL, &name, 1, NULL, 0, NULL), invalid);
  FAILS(gpushm_client_list(NULL, name, &list), invalid);
  FAILS(gpushm_client_stat(NULL, name, &info), invalid);
  FAILS(gpushm_client_remove(NULL, name), invalid);
  FAILS(gpushm_client_stat_generation(NULL, name, 1, &info), invalid);
  FAILS(gpushm_client_remove_generation(NULL, name, 1), invalid);
  FAILS(gpushm_client_unfence(NULL, name), invalid);
  FAILS(gpushm_client_subscribe(NULL, name, NULL, &subscription), invalid);
  FAILS(gpushm_client_broker(NULL, &about), invalid);
  FAILS(gpushm_client_cache_stats(NULL, &stats), invalid);
  FAILS(gpushm_client_trim(NULL), invalid);
  FAILS(gpushm_client_dup(NULL, &dup), invalid);
  FAILS(gpushm_segment_list_get(NULL, 0, &info), invalid);
  FAILS(gpushm_segment_device(NULL, &device), invalid);
  FAILS(gpushm_segment_epoch(NULL, &epoch), invalid);
  FAILS(gpushm_segment_metadata(NULL, &data, &size), invalid);
  FAILS(gpushm_segment_publish(NULL, NULL, 0), invalid);
  FAILS(gpushm_segment_unshare(NULL), invalid);
  FAILS(gpushm_segment_suspend(NULL, GPUSHM_SUSPEND_KEEP), invalid);
  FAILS(gpushm_window_create(NULL, NULL), invalid);
  FAILS(gpushm_window_show(NULL, NULL), invalid);
  FAILS(gpushm_window_segment(NULL, &opened), invalid);
  EXPECT(gpushm_window_data(NULL) == NULL && gpushm_window_mutable_data(NULL) == NULL);
  EXPECT(gpushm_window_size_bytes(NULL) == 0 && gpushm_window_ordinal(NULL) == 0);
  EXPECT(gpushm_window_state(NULL) == GPUSHM_SEGMENT_LIVE && gpushm_window_dup(NULL) == NULL);
  gpushm_window_close(NULL);
  FAILS(gpushm_segment_resume(NULL), invalid);
  FAILS(gpushm_segment_read(NULL, 0, &byte, 1), invalid);
  FAILS(gpushm_segment_write(NULL, 0, &byte, 1), invalid);
  FAILS(gpushm_segment_write_from_gpu(NULL, 0, &byte, 1), invalid);
  FAILS(gpushm_segment_fill(NULL, 0), invalid);
  FAILS(gpushm_segment_read_on(NULL, 0, &byte, 1, NULL), invalid);
  FAILS(gpushm_segment_write_on(NULL, 0, &byte, 1, NULL), invalid);
  FAILS(gpushm_segment_write_from_gpu_on(NULL, 0, &byte, 1, NULL), invalid);
  FAILS(gpushm_segment_fill_on(NULL, 0, NULL), invalid);
  FAILS(gpushm_subscription_next(NULL, 0, NULL, &event, &arrived), invalid);
  FAILS(gpushm_subscription_descriptor(NULL, &descriptor), invalid);
  FAILS(gpushm_subscription_dispatch(NULL, NULL, NULL, NULL), invalid);
  FAILS(gpushm_export_segment(NULL, name, &ticket), invalid);
  FAILS(gpushm_broker_socket_path(NULL, NULL), invalid);
  FAILS(gpushm_broker_epoch(NULL, &epoch), invalid);
  FAILS(gpushm_broker_get_statistics(NULL, NULL), invalid);
  FAILS(gpushm_broker_limits_default(NULL), invalid);
  FAILS(gpushm_file_export_write(NULL, segment), invalid);
  EXPECT(gpushm_file_export_client(NULL) == NULL);
  EXPECT(gpushm_segment_data(NULL) == NULL && gpushm_segment_mutable_data(NULL) == NULL);
  EXPECT(gpushm_segment_size_bytes(NULL) == 0 && gpushm_segment_name(NULL).size == 0);
  EXPECT(gpushm_segment_dup(NULL) == NULL && gpushm_segment_list_size(NULL) == 0);
  gpushm_client_close(NULL);
  gpushm_segment_close(NULL);
  gpushm_segment_list_free(NULL);
  gpushm_subscription_close(NULL);
  gpushm_stop_request(NULL);
  gpushm_stop_free(NULL);
  gpushm_ticket_file_close(NULL);
  gpushm_broker_stop(NULL);
  gpushm_broker_budget_free(NULL);
  gpushm_file_export_end(NULL);

  FAILS(gpushm_client_connect(NULL, 0, NULL), invalid);
  FAILS(gpushm_client_dup(client, NULL), invalid);
  FAILS(gpushm_client_create(client, name, NULL, NULL), invalid);
  FAILS(gpushm_client_share(client, name, &byte, 1, NULL, NULL), invalid);
  FAILS(gpushm_client_try_open(client, name, NULL, 0, NULL), invalid);
  FAILS(gpushm_broker_budget_create(0, 0, NULL), invalid);
  FAILS(gpushm_import_memory(&byte, 1, NULL, NULL), invalid);
  FAILS(gpushm_import_file(name, NULL, 0, NULL), invalid);
  FAILS(gpushm_ticket_file_create(name, &byte, 1, 0600, NULL), invalid);
  FAILS(gpushm_file_export_begin(name, NULL, NULL), invalid);
  FAILS(gpushm_client_open(client, name, NULL, 0, NULL), invalid);
  FAILS(gpushm_client_list(client, name, NULL), invalid);
  FAILS(gpushm_client_stat(client, gpushm_text("c/one"), NULL), invalid);
  FAILS(gpushm_client_subscribe(client, name, NULL, NULL), invalid);
  FAILS(gpushm_client_open_many(client, NULL, 1, NULL, 0, NULL), invalid);
  FAILS(gpushm_segment_read(segment, 0, NULL, 1), invalid);
  FAILS(gpushm_segment_write(segment, 0, NULL, 1), invalid);
  FAILS(gpushm_segment_write_from_gpu(segment, 0, NULL, 1), invalid);
  FAILS(gpushm_segment_publish(segment, NULL, 1), invalid);
  FAILS(gpushm_segment_device(segment, NULL), invalid);
  FAILS(gpushm_export_segment(segment, name, NULL), invalid);
  FAILS(gpushm_import_memory(NULL, 1, NULL, &opened), invalid);
  FAILS(gpushm_describe_ticket("", 0, &described), GPUSHM_ERRC_INVALID_TICKET);
  FAILS(gpushm_stop_create(NULL), invalid);
  FAILS(gpushm_broker_start(NULL, NULL), invalid);
  WORKS(gpushm_client_open_many(client, NULL, 0, NULL, 0, NULL));

  {
    gpushm_string no_data = {NULL, 3};
    FAILS(gpushm_client_open(client, no_data, NULL, 0, &opened), invalid);
    FAILS(gpushm_client_list(client, no_data, &list), invalid);
  }
  EXPECT(opened == NULL && list == NULL && subscription == NULL && dup == NULL);
}

/* Callers of other versions: shorter structures, longer ones, ones without a size. */
static void other_struct_sizes(gpushm_client* client) {
  struct newer {
    gpushm_open_options known;
    uint64_t added;
  } newer;
  struct newer_info {
    gpushm_segment_info known;
    uint64_t added;
  } newer_info;
  gpushm_segment_info info;
  gpushm_open_options options;
  gpushm_segment* opened = NULL;
  const gpushm_string name = gpushm_text("c/one");

  memset(&newer, 0, sizeof newer);
  newer.known.struct_size = sizeof newer;
  WORKS(gpushm_client_open(
      client, name, &newer.known, 0, &opened)); /* options unknown to the library are 0 */
  gpushm_segment_close(opened);
  newer.added = 1;
  opened = NULL;
  FAILS(gpushm_client_open(client, name, &newer.known, 0, &opened), GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT(strstr(gpushm_error_next_step(gpushm_last_error()).data, "version") != NULL);

  /* An older structure ended before `device`: later members are not read. */
  memset(&options, 0xFF, sizeof options);
  options.access = GPUSHM_ACCESS_READ;
  options.struct_size = offsetof(gpushm_open_options, device);
  WORKS(gpushm_client_open(client, name, &options, 0, &opened));
  gpushm_segment_close(opened);
  memset(&options, 0, sizeof options);
  FAILS(gpushm_client_open(client, name, &options, 0, &opened), GPUSHM_ERRC_INVALID_ARGUMENT);
  options.struct_size = sizeof options;
  options.access = (gpushm_access)2;
  FAILS(gpushm_client_open(client, name, &options, 0, &opened), GPUSHM_ERRC_INVALID_ARGUMENT);

  memset(&info, 0x55, sizeof info);
  info.struct_size = offsetof(gpushm_segment_info, chunks);
  WORKS(gpushm_client_stat(client, name, &info));
  EXPECT(info.size_bytes == 4096 && info.chunks == 0x55555555);
  memset(&newer_info, 0x55, sizeof newer_info);
  newer_info.known.struct_size = sizeof newer_info;
  WORKS(gpushm_client_stat(client, name, &newer_info.known));
  EXPECT(newer_info.known.size_bytes == 4096 && newer_info.added == 0x5555555555555555);
  EXPECT(newer_info.known.struct_size == sizeof newer_info);
  info.struct_size = 0;
  FAILS(gpushm_client_stat(client, name, &info), GPUSHM_ERRC_INVALID_ARGUMENT);
}

static void segments(gpushm_client* client, gpushm_segment* made) {
  gpushm_open_options options = GPUSHM_INIT(options);
  gpushm_segment* opened = NULL;
  gpushm_segment* again;
  gpushm_device device;
  gpushm_epoch epoch;
  gpushm_broker_info about = GPUSHM_INIT(about);
  gpushm_cache_stats stats = GPUSHM_INIT(stats);
  const void* metadata = NULL;
  size_t metadata_size = 0;
  unsigned char bytes[4] = {0};

  EXPECT(gpushm_segment_data(made) == gpushm_segment_mutable_data(made));
  WORKS(gpushm_segment_fill(made, 0x5A));
  WORKS(gpushm_segment_write(made, 4092, "abcd", 4));
  FAILS(gpushm_segment_write(made, 4093, "abcd", 4), GPUSHM_ERRC_INVALID_ARGUMENT);
  FAILS(gpushm_segment_write(made, UINT64_MAX, "abcd", 4), GPUSHM_ERRC_INVALID_ARGUMENT);
  FAILS(gpushm_client_open(client, gpushm_text("c/one"), NULL, 0, &opened),
        GPUSHM_ERRC_NO_SUCH_SEGMENT);
  WORKS(gpushm_client_try_open(client, gpushm_text("c/one"), NULL, 0, &opened));
  EXPECT(opened == NULL);
  WORKS(gpushm_segment_publish(made, "facts", 5));
  FAILS(gpushm_segment_publish(made, "facts", 5), GPUSHM_ERRC_ALREADY_PUBLISHED);

  WORKS(gpushm_client_open(client, gpushm_text("c/one"), NULL, 0, &opened));
  EXPECT(is_text(gpushm_segment_name(opened), "c/one"));
  EXPECT(gpushm_segment_size_bytes(opened) == 4096);
  EXPECT(gpushm_segment_backend(opened) == GPUSHM_BACKEND_HOST);
  EXPECT(gpushm_segment_access(opened) == GPUSHM_ACCESS_READ);
  EXPECT(gpushm_segment_lifetime(opened) == GPUSHM_LIFETIME_LEASED);
  EXPECT(gpushm_segment_ordinal(opened) == -1);
  EXPECT(gpushm_segment_generation(opened) == gpushm_segment_generation(made));
  EXPECT(gpushm_segment_current_state(opened) == GPUSHM_SEGMENT_LIVE);
  WORKS(gpushm_segment_device(opened, &device));
  EXPECT(device.kind == GPUSHM_DEVICE_HOST && device.uuid_size == 0 && device.minor == -1);
  WORKS(gpushm_client_broker(client, &about));
  EXPECT(strcmp(about.socket_path, socket_path) == 0 && strcmp(about.domain, "default") == 0);
  WORKS(gpushm_segment_epoch(opened, &epoch));
  EXPECT(memcmp(&epoch, &about.epoch, sizeof epoch) == 0);
  WORKS(gpushm_segment_metadata(opened, &metadata, &metadata_size));
  EXPECT(metadata_size == 5 && memcmp(metadata, "facts", 5) == 0);
  WORKS(gpushm_segment_read(opened, 4092, bytes, 4));
  EXPECT(memcmp(bytes, "abcd", 4) == 0);
  EXPECT(gpushm_segment_mutable_data(opened) == NULL);
  FAILS(gpushm_segment_write(opened, 0, "x", 1), GPUSHM_ERRC_INVALID_ARGUMENT);
  FAILS(gpushm_segment_unshare(opened), GPUSHM_ERRC_INVALID_ARGUMENT);

  /* Another handle keeps the mapping. */
  again = gpushm_segment_dup(opened);
  EXPECT(again != NULL && gpushm_segment_data(again) == gpushm_segment_data(opened));
  FAILS(gpushm_segment_suspend(again, (gpushm_suspend_mode)17), GPUSHM_ERRC_INVALID_ARGUMENT);
  WORKS(gpushm_segment_suspend(again, GPUSHM_SUSPEND_KEEP));
  EXPECT(gpushm_segment_current_state(opened) == GPUSHM_SEGMENT_SUSPENDED);
  FAILS(gpushm_segment_read(opened, 0, bytes, 4), GPUSHM_ERRC_INVALID_ARGUMENT);
  WORKS(gpushm_segment_resume(opened));
  FAILS(gpushm_segment_resume(again), GPUSHM_ERRC_INVALID_ARGUMENT);
  WORKS(gpushm_segment_read(again, 4092, bytes, 4));
  EXPECT(memcmp(bytes, "abcd", 4) == 0);
  gpushm_segment_close(opened);
  EXPECT(((const unsigned char*)gpushm_segment_data(again))[4095] == 'd');
  WORKS(gpushm_client_cache_stats(client, &stats));
  EXPECT(stats.used_entries >= 1);
  gpushm_segment_close(again);

  options.expected_size_bytes = 1;
  FAILS(gpushm_client_open(client, gpushm_text("c/one"), &options, 0, &opened),
        GPUSHM_ERRC_SIZE_MISMATCH);
  WORKS(gpushm_client_trim(client));
}

static void prefetched(gpushm_client* client) {
  gpushm_create_options options = GPUSHM_INIT(options);
  gpushm_segment* made = NULL;
  gpushm_segment* opened = NULL;
  gpushm_client* other = connected();
  size_t count = 9;
  FAILS(gpushm_client_prefetch(NULL, gpushm_text(""), &count), GPUSHM_ERRC_INVALID_ARGUMENT);
  options.size_bytes = 1;
  options.device = gpushm_text("host");
  options.lifetime = GPUSHM_LIFETIME_PERSISTENT;
  WORKS(gpushm_client_create(client, gpushm_text("p/one"), &options, &made));
  WORKS(gpushm_segment_publish(made, NULL, 0));
  WORKS(gpushm_client_prefetch(other, gpushm_text("p/"), &count));
  EXPECT(count == 1);
  WORKS(gpushm_client_prefetch(other, gpushm_text("p/"), NULL));
  WORKS(gpushm_client_open(other, gpushm_text("p/one"), NULL, 0, &opened));
  gpushm_segment_close(opened);
  gpushm_client_close(other);

  const gpushm_string names[] = {gpushm_text("p/one"), gpushm_text("p/none")};
  gpushm_connect_options connect = GPUSHM_INIT(connect);
  gpushm_segment_info info = GPUSHM_INIT(info);
  connect.socket_path = gpushm_text(socket_path);
  connect.prefetch_count = 2;
  FAILS(gpushm_client_connect(&connect, 0, &other), GPUSHM_ERRC_INVALID_ARGUMENT);
  connect.prefetch = names;
  WORKS(gpushm_client_connect(&connect, 0, &other));
  WORKS(gpushm_client_stat(client, names[0], &info));
  EXPECT(info.leases == 2);
  WORKS(gpushm_client_open(other, names[0], NULL, 0, &opened));
  gpushm_segment_close(opened);
  WORKS(gpushm_client_remove(client, gpushm_text("p/one")));
  gpushm_segment_close(made);
  gpushm_client_close(other);
}

/* A generation that has lost its name is neither described nor removed by what has replaced it. */
static void generations(gpushm_client* client) {
  const gpushm_string name = gpushm_text("g/one");
  gpushm_segment* segment = NULL;
  gpushm_segment_info info = {.struct_size = sizeof info};
  gpushm_create_options options = {.struct_size = sizeof options};
  uint64_t old_generation = 0;
  options.size_bytes = 1;
  options.device = gpushm_text("host");
  WORKS(gpushm_client_create(client, name, &options, &segment));
  old_generation = gpushm_segment_generation(segment);
  WORKS(gpushm_client_stat_generation(client, name, old_generation, &info));
  EXPECT(info.generation == old_generation);
  FAILS(gpushm_client_stat_generation(client, name, 0, &info), GPUSHM_ERRC_INVALID_ARGUMENT);
  FAILS(gpushm_client_remove_generation(client, name, 0), GPUSHM_ERRC_INVALID_ARGUMENT);
  WORKS(gpushm_client_remove_generation(client, name, old_generation));
  FAILS(gpushm_client_remove_generation(client, name, old_generation), GPUSHM_ERRC_NO_SUCH_SEGMENT);
  FAILS(gpushm_client_stat_generation(client, name, old_generation, &info),
        GPUSHM_ERRC_NO_SUCH_SEGMENT);
  gpushm_segment_close(segment);
  WORKS(gpushm_client_create(client, name, &options, &segment));
  FAILS(gpushm_client_stat_generation(client, name, old_generation, &info),
        GPUSHM_ERRC_GONE_OR_REPLACED);
  FAILS(gpushm_client_remove_generation(client, name, old_generation),
        GPUSHM_ERRC_GONE_OR_REPLACED);
  WORKS(gpushm_client_stat_generation(client, name, gpushm_segment_generation(segment), &info));
  gpushm_segment_close(segment);
}

/* The name is the former segment's until the new one is published. */
static void replaces(gpushm_client* client) {
  const gpushm_string name = gpushm_text("g/replaced");
  gpushm_segment* old = NULL;
  gpushm_segment* made = NULL;
  gpushm_segment* opened = NULL;
  gpushm_segment_info info = {.struct_size = sizeof info};
  gpushm_create_options options = {.struct_size = sizeof options};
  gpushm_client* other = connected();
  options.size_bytes = 1;
  options.device = gpushm_text("host");
  options.lifetime = GPUSHM_LIFETIME_PERSISTENT;
  WORKS(gpushm_client_create(client, name, &options, &old));
  WORKS(gpushm_segment_publish(old, NULL, 0));
  FAILS(gpushm_client_create(client, name, &options, &made), GPUSHM_ERRC_ALREADY_EXISTS);
  options.replaces = gpushm_segment_generation(old) + 100;
  FAILS(gpushm_client_create(client, name, &options, &made), GPUSHM_ERRC_GONE_OR_REPLACED);
  options.replaces = gpushm_segment_generation(old);
  WORKS(gpushm_client_create(client, name, &options, &made));
  WORKS(gpushm_client_stat(client, name, &info));
  EXPECT(info.generation == gpushm_segment_generation(old));
  WORKS(gpushm_client_stat_generation(client, name, gpushm_segment_generation(made), &info));
  EXPECT(info.generation == gpushm_segment_generation(made));
  FAILS(gpushm_client_stat_generation(other, name, gpushm_segment_generation(made), &info),
        GPUSHM_ERRC_GONE_OR_REPLACED);
  WORKS(gpushm_client_open(other, name, NULL, 0, &opened));
  EXPECT(gpushm_segment_generation(opened) == gpushm_segment_generation(old));
  gpushm_segment_close(opened);
  WORKS(gpushm_segment_publish(made, NULL, 0));
  WORKS(gpushm_client_open(other, name, NULL, 0, &opened));
  EXPECT(gpushm_segment_generation(opened) == gpushm_segment_generation(made));
  WORKS(gpushm_client_remove(client, name));
  gpushm_segment_close(opened);
  gpushm_segment_close(made);
  gpushm_segment_close(old);
  gpushm_client_close(other);
}

static void many_and_lists(gpushm_client* client) {
  enum { count = 2 };
  gpushm_string names[count] = {gpushm_text("c/one"), gpushm_text("c/none")};
  gpushm_open_result results[count];
  gpushm_segment_list* list = NULL;
  gpushm_segment_info info = GPUSHM_INIT(info);

  WORKS(gpushm_client_open_many(client, names, count, NULL, 0, results));
  EXPECT(results[0].segment != NULL && results[0].failure == NULL);
  EXPECT(results[1].segment == NULL &&
         gpushm_error_code(results[1].failure) == GPUSHM_ERRC_NO_SUCH_SEGMENT);
  gpushm_segment_close(results[0].segment);
  gpushm_error_free(results[1].failure);
  names[1] = gpushm_text("c/@");
  FAILS(gpushm_client_open_many(client, names, count, NULL, 0, results),
        GPUSHM_ERRC_INVALID_ARGUMENT);

  WORKS(gpushm_client_list(client, gpushm_text("c/"), &list));
  EXPECT(gpushm_segment_list_size(list) == 1);
  WORKS(gpushm_segment_list_get(list, 0, &info));
  EXPECT(info.name_size == 5 && strcmp(info.name, "c/one") == 0 && info.published);
  EXPECT(info.metadata_bytes == 5 && info.creator_pid == getpid());
  FAILS(gpushm_segment_list_get(list, 1, &info), GPUSHM_ERRC_INVALID_ARGUMENT);
  gpushm_segment_list_free(list);
  FAILS(gpushm_client_stat(client, gpushm_text("c/none"), &info), GPUSHM_ERRC_NO_SUCH_SEGMENT);
  FAILS(gpushm_client_remove(client, gpushm_text("c/none")), GPUSHM_ERRC_NO_SUCH_SEGMENT);
  FAILS(gpushm_client_unfence(client, gpushm_text("c/one")), GPUSHM_ERRC_INVALID_ARGUMENT);
}

struct counts {
  int published;
  int removed;
  int stop_after;
};

static bool count_event(void* user, const gpushm_event* event) {
  struct counts* counts = user;
  counts->published += event->kind == GPUSHM_EVENT_PUBLISHED;
  counts->removed += event->kind == GPUSHM_EVENT_REMOVED;
  return counts->stop_after == 0 || counts->published < counts->stop_after;
}

static bool is_readable(int descriptor, int timeout_ms) {
  struct pollfd waits = {descriptor, POLLIN, 0};
  return poll(&waits, 1, timeout_ms) == 1 && (waits.revents & POLLIN) != 0;
}

/* As in an event loop: only poll waits. */
static void subscriptions(gpushm_client* client) {
  gpushm_subscription* subscription = NULL;
  gpushm_segment_list* present = NULL;
  gpushm_event event = GPUSHM_INIT(event);
  struct counts counts = {0, 0, 0};
  gpushm_segment* made;
  bool arrived = true;
  int descriptor = -1;
  size_t count = 9;

  WORKS(gpushm_client_subscribe(client, gpushm_text("c/"), &present, &subscription));
  EXPECT(gpushm_segment_list_size(present) == 1);
  gpushm_segment_list_free(present);
  WORKS(gpushm_subscription_descriptor(subscription, &descriptor));
  EXPECT(!is_readable(descriptor, 0));
  WORKS(gpushm_subscription_dispatch(subscription, count_event, &counts, &count));
  EXPECT(count == 0);
  FAILS(gpushm_subscription_dispatch(subscription, NULL, NULL, NULL), GPUSHM_ERRC_INVALID_ARGUMENT);

  made = created(client, "c/two", 1);
  WORKS(gpushm_segment_publish(made, NULL, 0));
  EXPECT(is_readable(descriptor, 20000));
  while (counts.published == 0 && is_readable(descriptor, 20000)) {
    WORKS(gpushm_subscription_dispatch(subscription, count_event, &counts, &count));
  }
  EXPECT(counts.published == 1);
  EXPECT(!is_readable(descriptor, 0)); /* all were read */
  WORKS(gpushm_client_remove(client, gpushm_text("c/two")));
  WORKS(gpushm_subscription_next(subscription, 20000, NULL, &event, &arrived));
  EXPECT(arrived && event.kind == GPUSHM_EVENT_REMOVED && strcmp(event.name, "c/two") == 0);
  gpushm_segment_close(made);

  /* A handler that stops the dispatch leaves the other events, and the descriptor stays readable.
   */
  counts = (struct counts){0, 0, 1};
  for (int at = 0; at < 3; ++at) {
    char name[16];
    snprintf(name, sizeof name, "c/more%d", at);
    made = created(client, name, 1);
    WORKS(gpushm_segment_publish(made, NULL, 0));
    gpushm_segment_close(made);
  }
  for (int waited = 0; waited < 2000 && counts.published == 0; ++waited) {
    EXPECT(is_readable(descriptor, 20000));
    WORKS(gpushm_subscription_dispatch(subscription, count_event, &counts, NULL));
  }
  EXPECT(counts.published == 1 && is_readable(descriptor, 0));

  {
    gpushm_stop* stop = NULL;
    struct counts rest = {0, 0, 0};
    while (is_readable(descriptor, 200)) {
      WORKS(gpushm_subscription_dispatch(subscription, count_event, &rest, NULL));
    }
    WORKS(gpushm_stop_create(&stop));
    gpushm_stop_request(stop);
    WORKS(gpushm_subscription_next(subscription, GPUSHM_FOREVER, stop, &event, &arrived));
    EXPECT(!arrived);
    gpushm_stop_free(stop);
  }
  gpushm_subscription_close(subscription);
}

static void* requests_soon(void* stop) {
  usleep(20000);
  gpushm_stop_request(stop);
  return NULL;
}

static void waits_are_stopped(gpushm_client* client) {
  pthread_t thread;
  gpushm_stop* stop = NULL;
  gpushm_open_options options = GPUSHM_INIT(options);
  gpushm_connect_options connecting = GPUSHM_INIT(connecting);
  gpushm_import_options importing = GPUSHM_INIT(importing);
  gpushm_segment* opened = NULL;
  gpushm_client* other = NULL;
  gpushm_ticket ticket = GPUSHM_INIT(ticket);

  WORKS(gpushm_stop_create(&stop));
  options.stop = stop;
  EXPECT(pthread_create(&thread, NULL, requests_soon, stop) == 0);
  FAILS(gpushm_client_open(client, gpushm_text("c/never"), &options, GPUSHM_FOREVER, &opened),
        GPUSHM_ERRC_CANCELLED);
  pthread_join(thread, NULL);
  connecting.socket_path = gpushm_text("/nowhere/socket");
  connecting.stop = stop; /* already requested */
  FAILS(gpushm_client_connect(&connecting, GPUSHM_FOREVER, &other), GPUSHM_ERRC_CANCELLED);
  importing.stop = stop;
  FAILS(gpushm_import_file(gpushm_text("/nowhere/file"), &importing, GPUSHM_FOREVER, &opened),
        GPUSHM_ERRC_CANCELLED);
  FAILS(gpushm_read_ticket_file(gpushm_text("/nowhere/file"), GPUSHM_FOREVER, stop, &ticket),
        GPUSHM_ERRC_CANCELLED);
  gpushm_stop_free(stop);
}

static atomic_int lines = 0;
static int destroyed = 0;
static void counts_lines(void* user, gpushm_log_level level, gpushm_string text) {
  EXPECT(user == &lines && level <= GPUSHM_LOG_ERROR && text.size != 0);
  ++lines;
}
static void counts_ends(void* user) {
  EXPECT(user == &lines);
  ++destroyed;
}

static void log_lines(void) {
  gpushm_broker_options options = GPUSHM_INIT(options);
  gpushm_broker* broker = NULL;
  char path[160];
  gpushm_client* client = NULL;
  gpushm_connect_options connecting = GPUSHM_INIT(connecting);
  snprintf(path, sizeof path, "%s/logged", directory);

  WORKS(gpushm_set_log_sink(counts_lines, &lines, counts_ends));
  options.socket_path = gpushm_text(path);
  WORKS(gpushm_broker_start(&options, &broker)); /* it logs through the other library */
  connecting.socket_path = gpushm_text(path);
  WORKS(gpushm_client_connect(&connecting, GPUSHM_DEFAULT_TIMEOUT, &client));
  gpushm_broker_stop(broker);
  for (int waited = 0; waited < 2000 && lines == 0; ++waited) {
    usleep(10000);
  }
  EXPECT(lines > 0 && destroyed == 0);
  gpushm_client_close(client);
  WORKS(gpushm_set_log_sink(NULL, NULL, NULL));
  EXPECT(destroyed == 1);
  WORKS(gpushm_set_log_sink(NULL, &lines, counts_ends));
  EXPECT(destroyed == 2);
}

static void tickets(gpushm_client* client, gpushm_segment* made) {
  gpushm_ticket ticket = GPUSHM_INIT(ticket);
  gpushm_ticket read = GPUSHM_INIT(read);
  gpushm_ticket_info info = GPUSHM_INIT(info);
  gpushm_ticket_file* file = NULL;
  gpushm_ticket_file* second = NULL;
  gpushm_segment* imported = NULL;
  char path[160];
  (void)client;
  snprintf(path, sizeof path, "%s/ticket", directory);

  WORKS(gpushm_export_segment(made, gpushm_text(""), &ticket));
  WORKS(gpushm_describe_ticket(ticket.bytes, ticket.size, &info));
  EXPECT(strcmp(info.name, "c/one") == 0 && strcmp(info.socket_path, socket_path) == 0);
  EXPECT(info.size_bytes == 4096 && info.generation == gpushm_segment_generation(made));
  WORKS(gpushm_import_memory(ticket.bytes, ticket.size, NULL, &imported));
  EXPECT(((const char*)gpushm_segment_data(imported))[4095] == 'd');
  gpushm_segment_close(imported);

  FAILS(gpushm_import_file(gpushm_text(path), NULL, 0, &imported), GPUSHM_ERRC_NO_SUCH_SEGMENT);
  WORKS(gpushm_ticket_file_create(gpushm_text(path), ticket.bytes, ticket.size, 0600, &file));
  FAILS(gpushm_ticket_file_create(gpushm_text(path), ticket.bytes, ticket.size, 0600, &second),
        GPUSHM_ERRC_ADDRESS_IN_USE);
  WORKS(gpushm_read_ticket_file(gpushm_text(path), 0, NULL, &read));
  EXPECT(read.size == ticket.size && memcmp(read.bytes, ticket.bytes, ticket.size) == 0);
  WORKS(gpushm_import_file(gpushm_text(path), NULL, 0, &imported));
  gpushm_segment_close(imported);
  gpushm_ticket_file_close(file);
  EXPECT(access(path, F_OK) != 0 && errno == ENOENT);

  {
    char stack[16];
    FAILS(gpushm_export_memory(stack, sizeof stack, &ticket), GPUSHM_ERRC_NOT_EXPORTABLE);
    FAILS(gpushm_client_share(client, gpushm_text("c/stack"), stack, sizeof stack, NULL, &imported),
          GPUSHM_ERRC_NOT_EXPORTABLE);
  }
}

static void shared_memory(gpushm_client* client) {
  gpushm_share_options options = GPUSHM_INIT(options);
  gpushm_segment* shared = NULL;
  gpushm_segment* opened = NULL;
  char* memory;
  const int file = memfd_create("shared", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT(file >= 0 && ftruncate(file, 4096) == 0);
  memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  EXPECT(memory != MAP_FAILED);
  EXPECT(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  memory[7] = 'm';
  options.metadata = "m";
  options.metadata_size = 1;
  WORKS(gpushm_client_share(client, gpushm_text("c/shared"), memory, 4096, &options, &shared));
  EXPECT(gpushm_segment_data(shared) == memory);
  WORKS(gpushm_client_open(client, gpushm_text("c/shared"), NULL, 0, &opened));
  EXPECT(((const char*)gpushm_segment_data(opened))[7] == 'm');
  gpushm_segment_close(opened);
  WORKS(gpushm_segment_unshare(shared));
  FAILS(gpushm_client_open(client, gpushm_text("c/shared"), NULL, 0, &opened),
        GPUSHM_ERRC_NO_SUCH_SEGMENT);
  gpushm_segment_close(shared);
  munmap(memory, 4096);
  close(file);
}

static void file_exports(void) {
  gpushm_file_export* exported = NULL;
  gpushm_file_export* second = NULL;
  gpushm_segment* made;
  gpushm_segment* imported = NULL;
  char path[160];
  snprintf(path, sizeof path, "%s/exported", directory);
  WORKS(gpushm_file_export_begin(gpushm_text(path), NULL, &exported));
  made = created(gpushm_file_export_client(exported), "x", 8);
  WORKS(gpushm_segment_fill(made, 7));
  WORKS(gpushm_segment_publish(made, NULL, 0));
  WORKS(gpushm_file_export_write(exported, made));
  FAILS(gpushm_file_export_begin(gpushm_text(path), NULL, &second), GPUSHM_ERRC_ADDRESS_IN_USE);
  WORKS(gpushm_import_file(gpushm_text(path), NULL, 0, &imported));
  EXPECT(((const char*)gpushm_segment_data(imported))[7] == 7);
  gpushm_segment_close(imported);
  gpushm_segment_close(made);
  gpushm_file_export_end(exported);
}

static void brokers(gpushm_broker* broker) {
  gpushm_broker_options options = GPUSHM_INIT(options);
  gpushm_broker_limits limits = GPUSHM_INIT(limits);
  gpushm_broker_statistics statistics = GPUSHM_INIT(statistics);
  gpushm_broker_budget* budget = NULL;
  gpushm_broker* second = NULL;
  gpushm_string path = {NULL, 0};
  gpushm_epoch epoch;
  char other[160];

  WORKS(gpushm_broker_socket_path(broker, &path));
  EXPECT(is_text(path, socket_path));
  WORKS(gpushm_broker_epoch(broker, &epoch));
  WORKS(gpushm_broker_get_statistics(broker, &statistics));
  EXPECT(statistics.connections >= 1 && statistics.opens >= 1);
  EXPECT(statistics.open_failures[GPUSHM_ERRC_NO_SUCH_SEGMENT] >= 1);
  options.socket_path = gpushm_text(socket_path);
  FAILS(gpushm_broker_start(&options, &second), GPUSHM_ERRC_ADDRESS_IN_USE);

  FAILS(gpushm_broker_limits_default(&(gpushm_broker_limits){0}), GPUSHM_ERRC_INVALID_ARGUMENT);
  WORKS(gpushm_broker_limits_default(&limits));
  EXPECT(limits.max_segments == 65536 && limits.fence_delay_ms == 5000);
  limits.max_segments = 1;
  WORKS(gpushm_broker_budget_create(1 << 20, 0, &budget));
  snprintf(other, sizeof other, "%s/other", directory);
  options.socket_path = gpushm_text(other);
  options.limits = &limits;
  options.shared = budget;
  WORKS(gpushm_broker_start(&options, &second));
  gpushm_broker_budget_free(budget); /* the broker keeps a reference */
  {
    gpushm_connect_options connecting = GPUSHM_INIT(connecting);
    gpushm_create_options creating = GPUSHM_INIT(creating);
    gpushm_client* client = NULL;
    gpushm_segment* first = NULL;
    gpushm_segment* more = NULL;
    connecting.socket_path = gpushm_text(other);
    WORKS(gpushm_client_connect(&connecting, GPUSHM_DEFAULT_TIMEOUT, &client));
    creating.size_bytes = 1;
    creating.device = gpushm_text("host");
    WORKS(gpushm_client_create(client, gpushm_text("a"), &creating, &first));
    FAILS(gpushm_client_create(client, gpushm_text("b"), &creating, &more),
          GPUSHM_ERRC_TOO_MANY_SEGMENTS);
    gpushm_segment_close(first);
    gpushm_client_close(client);
  }
  gpushm_broker_stop(second);
}

/* An address at which one segment after the other is seen. */
static void windows(gpushm_client* client, gpushm_segment* made) {
  gpushm_segment* other = created(client, "c/two", 4096);
  gpushm_segment* smaller = created(client, "c/small", 1);
  gpushm_segment* shown = NULL;
  gpushm_window* window = NULL;
  gpushm_window* dup;
  const unsigned char* bytes;

  WORKS(gpushm_segment_fill(other, 0x22));
  FAILS(gpushm_window_create(made, NULL), GPUSHM_ERRC_INVALID_ARGUMENT);
  WORKS(gpushm_window_create(made, &window));
  bytes = gpushm_window_data(window);
  EXPECT(bytes != NULL && bytes != gpushm_segment_data(made));
  EXPECT(gpushm_window_mutable_data(window) == bytes);
  EXPECT(gpushm_window_size_bytes(window) == 4096 && gpushm_window_ordinal(window) == -1);
  EXPECT(bytes[4095] == 'd');
  WORKS(gpushm_window_show(window, other));
  EXPECT(gpushm_window_data(window) == bytes && bytes[0] == 0x22 && bytes[4095] == 0x22);
  WORKS(gpushm_window_segment(window, &shown));
  EXPECT(is_text(gpushm_segment_name(shown), "c/two"));
  gpushm_segment_close(shown);
  shown = NULL;
  FAILS(gpushm_window_show(window, smaller), GPUSHM_ERRC_SIZE_MISMATCH);
  FAILS(gpushm_window_show(window, NULL), GPUSHM_ERRC_INVALID_ARGUMENT);
  FAILS(gpushm_window_segment(window, NULL), GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT(bytes[0] == 0x22);

  /* Another handle keeps the window, and the window its segment. */
  dup = gpushm_window_dup(window);
  EXPECT(dup == window);
  gpushm_window_close(window);
  gpushm_segment_close(other);
  EXPECT(gpushm_window_state(dup) == GPUSHM_SEGMENT_LIVE && bytes[4095] == 0x22);
  WORKS(gpushm_window_show(dup, made));
  EXPECT(bytes[4095] == 'd');
  gpushm_window_close(dup);
  gpushm_segment_close(smaller);
}

/* A child inherits the handles, but every function fails; the parent's stay valid. */
static void forked(gpushm_broker* broker, gpushm_client* client, gpushm_segment* made) {
  gpushm_subscription* subscription = NULL;
  gpushm_window* window = NULL;
  int status = 0;
  pid_t child;
  WORKS(gpushm_client_subscribe(client, gpushm_text(""), NULL, &subscription));
  WORKS(gpushm_window_create(made, &window));
  child = fork();
  EXPECT(child >= 0);
  if (child == 0) {
    const gpushm_errc wanted = GPUSHM_ERRC_FORKED;
    gpushm_segment* opened = NULL;
    gpushm_segment_list* list = NULL;
    gpushm_client* dup = NULL;
    gpushm_window* another = NULL;
    gpushm_event event = GPUSHM_INIT(event);
    gpushm_ticket ticket = GPUSHM_INIT(ticket);
    gpushm_string path;
    const void* data;
    size_t size;
    bool arrived;
    int descriptor;
    failures = 0;
    FAILS(gpushm_client_open(client, gpushm_text("c/one"), NULL, 0, &opened), wanted);
    FAILS(gpushm_client_list(client, gpushm_text(""), &list), wanted);
    FAILS(gpushm_client_remove(client, gpushm_text("c/one")), wanted);
    FAILS(gpushm_client_dup(client, &dup), wanted);
    FAILS(gpushm_client_trim(client), wanted);
    FAILS(gpushm_segment_publish(made, NULL, 0), wanted);
    FAILS(gpushm_segment_unshare(made), wanted);
    FAILS(gpushm_segment_suspend(made, GPUSHM_SUSPEND_KEEP), wanted);
    FAILS(gpushm_segment_resume(made), wanted);
    FAILS(gpushm_window_create(made, &another), wanted);
    FAILS(gpushm_window_show(window, made), wanted);
    FAILS(gpushm_window_segment(window, &opened), wanted);
    EXPECT(gpushm_window_state(window) == GPUSHM_SEGMENT_UNKNOWN);
    FAILS(gpushm_segment_metadata(made, &data, &size), wanted);
    FAILS(gpushm_export_segment(made, gpushm_text(""), &ticket), wanted);
    FAILS(gpushm_subscription_next(subscription, 0, NULL, &event, &arrived), wanted);
    FAILS(gpushm_subscription_descriptor(subscription, &descriptor), wanted);
    FAILS(gpushm_broker_socket_path(broker, &path), wanted);
    /* Host memory is still mapped. */
    EXPECT(((const char*)gpushm_segment_data(made))[4095] == 'd');
    EXPECT(((const char*)gpushm_window_data(window))[4095] == 'd');
    gpushm_window_close(window);
    gpushm_subscription_close(subscription);
    gpushm_segment_close(gpushm_segment_dup(made));
    gpushm_broker_stop(broker);
    _exit(failures);
  }
  EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT(gpushm_window_state(window) == GPUSHM_SEGMENT_LIVE);
  gpushm_window_close(window);
  gpushm_subscription_close(subscription);
}

int main(void) {
  gpushm_broker_options options = GPUSHM_INIT(options);
  gpushm_broker* broker = NULL;
  gpushm_client* client;
  gpushm_client* dup = NULL;
  gpushm_segment* made;
  gpushm_segment* opened = NULL;

  names_of_enumerators();
  errors();
  if (mkdtemp(directory) == NULL) {
    return 1;
  }
  snprintf(socket_path, sizeof socket_path, "%s/socket", directory);
  options.socket_path = gpushm_text(socket_path);
  WORKS(gpushm_broker_start(&options, &broker));
  client = connected();
  if (client == NULL) {
    return 1;
  }
  made = created(client, "c/one", 4096);
  segments(client, made);
  windows(client, made);
  null_arguments(client, made);
  other_struct_sizes(client);
  many_and_lists(client);
  prefetched(client);
  generations(client);
  replaces(client);
  waits_are_stopped(client);
  tickets(client, made);
  shared_memory(client);
  file_exports();
  subscriptions(client);
  brokers(broker);
  forked(broker, client, made);
  log_lines();

  /* Another handle of the connection, and segments, outlive the first. */
  WORKS(gpushm_client_dup(client, &dup));
  gpushm_client_close(client);
  WORKS(gpushm_client_open(dup, gpushm_text("c/one"), NULL, 0, &opened));
  gpushm_client_close(dup);
  EXPECT(gpushm_segment_current_state(opened) == GPUSHM_SEGMENT_LIVE);
  gpushm_segment_close(opened);
  gpushm_segment_close(made);
  gpushm_broker_stop(broker);

  {
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    EXPECT(system(command) == 0);
  }
  if (failures == 0) {
    printf("c_interface: passed\n");
  }
  return failures == 0 ? 0 : 1;
}
