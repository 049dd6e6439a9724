/* SPDX-License-Identifier: Apache-2.0
 * A user's program in C: creates and opens a segment, with its own broker. */
#include <gpushm/broker.h>
#include <gpushm/gpushm.h>
#include <stdio.h>

static int failed(const char* operation) {
  fprintf(stderr, "%s: %s\n", operation, gpushm_error_message(gpushm_last_error()).data);
  return 1;
}

int main(int argc, char** argv) {
  gpushm_broker_options serving = GPUSHM_INIT(serving);
  gpushm_connect_options connecting = GPUSHM_INIT(connecting);
  gpushm_create_options creating = GPUSHM_INIT(creating);
  gpushm_broker* broker = NULL;
  gpushm_client* client = NULL;
  gpushm_segment* made = NULL;
  gpushm_segment* opened = NULL;
  int same;
  if (argc != 2) {
    return 2;
  }
  serving.socket_path = gpushm_text(argv[1]);
  connecting.socket_path = serving.socket_path;
  creating.size_bytes = 4096;
  creating.device = gpushm_text("host");
  if (gpushm_broker_start(&serving, &broker) != GPUSHM_OK ||
      gpushm_client_connect(&connecting, GPUSHM_DEFAULT_TIMEOUT, &client) != GPUSHM_OK ||
      gpushm_client_create(client, gpushm_text("consumer/c"), &creating, &made) != GPUSHM_OK ||
      gpushm_segment_fill(made, 0x5A) != GPUSHM_OK ||
      gpushm_segment_publish(made, NULL, 0) != GPUSHM_OK ||
      gpushm_client_open(client, gpushm_text("consumer/c"), NULL, 0, &opened) != GPUSHM_OK) {
    return failed("sharing");
  }
  same = ((const unsigned char*)gpushm_segment_data(opened))[4095] == 0x5A;
  gpushm_segment_close(opened);
  gpushm_segment_close(made);
  gpushm_client_close(client);
  gpushm_broker_stop(broker);
  printf("opened %s bytes\n", same ? "the same" : "other");
  return same ? 0 : 1;
}
