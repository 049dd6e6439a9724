/* SPDX-License-Identifier: Apache-2.0
 * share.cpp in C: one process publishes bytes, any number of other processes read them.
 *
 *   share produce TEXT    publishes the text and exits; the memory stays
 *   share consume         prints it
 *
 * Both find the broker through $GPUSHM_SOCKET and can be started in any order. */
#include <gpushm/gpushm.h>
#include <stdio.h>
#include <string.h>

static int failed(void) {
  fprintf(stderr, "share: %s\n", gpushm_error_message(gpushm_last_error()).data);
  return 1;
}

static int produce(gpushm_client* client, const char* text) {
  gpushm_create_options options = GPUSHM_INIT(options);
  gpushm_segment* segment = NULL;
  int status = 0;
  options.size_bytes = strlen(text);
  options.device = gpushm_text("host"); /* default: the first visible GPU */
  options.lifetime = GPUSHM_LIFETIME_PERSISTENT;
  if (gpushm_client_create(client, gpushm_text("w/text"), &options, &segment) != GPUSHM_OK ||
      gpushm_segment_write(segment, 0, text, strlen(text)) != GPUSHM_OK ||
      gpushm_segment_publish(segment, NULL, 0) != GPUSHM_OK) { /* visible from here on */
    status = failed();
  }
  gpushm_segment_close(segment);
  return status;
}

static int consume(gpushm_client* client) {
  gpushm_segment* segment = NULL;
  if (gpushm_client_open(client, gpushm_text("w/text"), NULL, 10000, &segment) != GPUSHM_OK) {
    return failed();
  }
  /* In place, without a copy. For GPU memory use a kernel, or gpushm_segment_read. */
  printf(
      "%.*s\n", (int)gpushm_segment_size_bytes(segment), (const char*)gpushm_segment_data(segment));
  gpushm_segment_close(segment);
  return 0;
}

int main(int argc, char** argv) {
  gpushm_client* client = NULL;
  const int is_producer = argc == 3 && strcmp(argv[1], "produce") == 0;
  int status;
  if (!is_producer && !(argc == 2 && strcmp(argv[1], "consume") == 0)) {
    fputs("usage: share produce TEXT | share consume\n", stderr);
    return 2;
  }
  if (gpushm_client_connect(NULL, 10000, &client) != GPUSHM_OK) {
    return failed();
  }
  status = is_producer ? produce(client, argv[2]) : consume(client);
  gpushm_client_close(client);
  return status;
}
