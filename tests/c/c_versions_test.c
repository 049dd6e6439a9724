/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests versions and aliases in C11 through the shared libraries. Prints failures; exits with 1 if
 * there are any. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"
#include "gpushm/broker.h"
#include "gpushm/gpushm.h"
#include "gpushm/versions.h"

static char directory[] = "/tmp/gpushm-versions-XXXXXX";
static char socket_path[128];

static gpushm_client* connect_to_broker(void) {
  gpushm_connect_options options = GPUSHM_INIT(options);
  gpushm_client* made = NULL;
  options.socket_path = gpushm_text(socket_path);
  WORKS(gpushm_client_connect(&options, GPUSHM_DEFAULT_TIMEOUT, &made));
  return made;
}

/* Creates, fills and publishes a segment whose first byte is `value`. */
static void publish(gpushm_client* client, const char* name, unsigned char value) {
  gpushm_create_options options = GPUSHM_INIT(options);
  gpushm_segment* made = NULL;
  options.size_bytes = 64;
  options.device = gpushm_text("host");
  options.lifetime = GPUSHM_LIFETIME_PERSISTENT;
  WORKS(gpushm_client_create(client, gpushm_text(name), &options, &made));
  if (made != NULL) {
    WORKS(gpushm_segment_write(made, 0, &value, 1));
    WORKS(gpushm_segment_publish(made, NULL, 0));
    gpushm_segment_close(made);
  }
}

/* The first byte of a segment; -1: there is none. */
static int value_of(gpushm_client* client, const char* name) {
  gpushm_segment* opened = NULL;
  unsigned char value = 0;
  if (gpushm_client_open(client, gpushm_text(name), NULL, 0, &opened) != GPUSHM_OK) {
    return -1;
  }
  WORKS(gpushm_segment_read(opened, 0, &value, 1));
  gpushm_segment_close(opened);
  return value;
}

static void a_version_is_seen_with_its_last_part(gpushm_client* maker, gpushm_client* reader) {
  const gpushm_string parts[] = {gpushm_text("r0"), gpushm_text("r1")};
  gpushm_version_options options = GPUSHM_INIT(options);
  uint64_t number = 0;
  options.parts = parts;
  options.part_count = 2;
  options.keep_versions = 2;
  options.has_keep_versions = true;
  WORKS(gpushm_client_create_version(maker, gpushm_text("m"), &options, &number));
  EXPECT(number == 1);
  publish(maker, "m@1/r0", 10);
  EXPECT(value_of(reader, "m@1/r0") == -1);
  EXPECT(value_of(reader, "m@latest/r0") == -1);
  publish(maker, "m@1/r1", 11);
  EXPECT(value_of(reader, "m@1/r0") == 10);
  EXPECT(value_of(reader, "m@latest/r1") == 11);
  options.number = 5;
  WORKS(gpushm_client_create_version(maker, gpushm_text("m"), &options, &number));
  EXPECT(number == 5);
  publish(maker, "m@5/r0", 50);
  publish(maker, "m@5/r1", 51);
  EXPECT(value_of(reader, "m@latest/r0") == 50);
}

static void aliases_move(gpushm_client* maker, gpushm_client* reader) {
  uint64_t number = 0;
  WORKS(gpushm_client_move_alias(maker, gpushm_text("m"), gpushm_text("prod"), 1));
  EXPECT(value_of(reader, "m@prod/r0") == 10);
  WORKS(gpushm_client_move_alias(maker, gpushm_text("m"), gpushm_text("prod"), 5));
  EXPECT(value_of(reader, "m@prod/r0") == 50);
  WORKS(gpushm_client_resolve_version(reader, gpushm_text("m@prod"), &number));
  EXPECT(number == 5);
  WORKS(gpushm_client_withdraw_version(maker, gpushm_text("m"), 5));
  WORKS(gpushm_client_resolve_version(reader, gpushm_text("m"), &number));
  EXPECT(number == 1);
  EXPECT(value_of(reader, "m@latest/r0") == 10);
}

static void versions_are_listed(gpushm_client* reader) {
  gpushm_version_info info = GPUSHM_INIT(info);
  gpushm_version_list* list = NULL;
  WORKS(gpushm_client_list_versions(reader, gpushm_text("m"), &list));
  EXPECT(gpushm_version_list_size(list) == 2);
  WORKS(gpushm_version_list_get(list, 0, &info));
  EXPECT(info.number == 5 && info.withdrawn && info.state == GPUSHM_VERSION_PUBLISHED);
  EXPECT(info.aliases.size == 4 && memcmp(info.aliases.data, "prod", 4) == 0);
  EXPECT(info.bytes >= 128);
  WORKS(gpushm_version_list_get(list, 1, &info));
  EXPECT(info.number == 1 && !info.withdrawn);
  FAILS(gpushm_version_list_get(list, 2, &info), GPUSHM_ERRC_INVALID_ARGUMENT);
  gpushm_version_list_free(list);
  list = NULL;
  WORKS(gpushm_client_list_versions(reader, gpushm_text("nothing"), &list));
  EXPECT(gpushm_version_list_size(list) == 0);
  gpushm_version_list_free(list);
  gpushm_version_list_free(NULL);
}

static void what_is_wrong_changes_nothing(gpushm_client* maker) {
  const gpushm_string twice[] = {gpushm_text("a"), gpushm_text("a")};
  gpushm_version_options options = GPUSHM_INIT(options);
  uint64_t number = 0;
  options.number = 4; /* lower than the last one */
  FAILS(gpushm_client_create_version(maker, gpushm_text("m"), &options, &number),
        GPUSHM_ERRC_INVALID_ARGUMENT);
  options.number = GPUSHM_MAX_VERSION + 1;
  FAILS(gpushm_client_create_version(maker, gpushm_text("m"), &options, &number),
        GPUSHM_ERRC_INVALID_ARGUMENT);
  options.number = 0;
  options.parts = twice;
  options.part_count = 2;
  FAILS(gpushm_client_create_version(maker, gpushm_text("m"), &options, &number),
        GPUSHM_ERRC_INVALID_ARGUMENT);
  FAILS(gpushm_client_create_version(maker, gpushm_text("m@1"), NULL, &number),
        GPUSHM_ERRC_INVALID_ARGUMENT);
  FAILS(gpushm_client_move_alias(maker, gpushm_text("m"), gpushm_text("latest"), 1),
        GPUSHM_ERRC_INVALID_ARGUMENT);
  FAILS(gpushm_client_move_alias(maker, gpushm_text("m"), gpushm_text("prod"), 9),
        GPUSHM_ERRC_NO_SUCH_SEGMENT);
  FAILS(gpushm_client_remove_alias(maker, gpushm_text("m"), gpushm_text("none")),
        GPUSHM_ERRC_NO_SUCH_SEGMENT);
  FAILS(gpushm_client_withdraw_version(maker, gpushm_text("m"), 9), GPUSHM_ERRC_NO_SUCH_SEGMENT);
  FAILS(gpushm_client_resolve_version(maker, gpushm_text("other"), &number),
        GPUSHM_ERRC_NO_SUCH_SEGMENT);
  EXPECT(number == 0);
  EXPECT(value_of(maker, "m@prod/r0") == 50);
  publish(maker, "bare", 1);
  FAILS(gpushm_client_create_version(maker, gpushm_text("bare"), NULL, &number),
        GPUSHM_ERRC_ALREADY_EXISTS);
}

int main(void) {
  gpushm_broker_options options = GPUSHM_INIT(options);
  gpushm_broker* broker = NULL;
  gpushm_client* maker;
  gpushm_client* reader;
  char command[200];
  if (mkdtemp(directory) == NULL) {
    return 1;
  }
  snprintf(socket_path, sizeof socket_path, "%s/socket", directory);
  options.socket_path = gpushm_text(socket_path);
  WORKS(gpushm_broker_start(&options, &broker));
  maker = connect_to_broker();
  reader = connect_to_broker();
  if (failures == 0) {
    a_version_is_seen_with_its_last_part(maker, reader);
    aliases_move(maker, reader);
    versions_are_listed(reader);
    what_is_wrong_changes_nothing(maker);
  }
  gpushm_client_close(reader);
  gpushm_client_close(maker);
  gpushm_broker_stop(broker);
  snprintf(command, sizeof command, "rm -rf '%s'", directory);
  EXPECT(system(command) == 0);
  if (failures == 0) {
    printf("versions: passed\n");
  }
  return failures == 0 ? 0 : 1;
}
