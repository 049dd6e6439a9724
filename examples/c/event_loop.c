/* SPDX-License-Identifier: Apache-2.0
 * A program that never blocks inside gpushm: poll(2) reports segment events, signals and the end of
 * input.
 *
 *   event_loop PREFIX     prints events of segments under PREFIX until SIGINT, SIGTERM or EOF
 *
 * It finds the broker through $GPUSHM_SOCKET. */
#define _GNU_SOURCE
#include <gpushm/gpushm.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct program {
  gpushm_client* client;
};

static int failed(void) {
  fprintf(stderr, "event_loop: %s\n", gpushm_error_message(gpushm_last_error()).data);
  return 1;
}

/* The name is published: this open does not wait for it. */
static void use(gpushm_client* client, const char* name) {
  gpushm_segment* segment = NULL;
  if (gpushm_client_open(client, gpushm_text(name), NULL, 0, &segment) != GPUSHM_OK) {
    failed();
    return;
  }
  printf("opened %s: %llu bytes\n", name, (unsigned long long)gpushm_segment_size_bytes(segment));
  gpushm_segment_close(segment);
}

static bool on_event(void* user, const gpushm_event* event) {
  const struct program* program = user;
  printf("%s %s\n", gpushm_event_kind_name(event->kind).data, event->name);
  if (event->kind == GPUSHM_EVENT_PUBLISHED) {
    use(program->client, event->name);
  }
  fflush(stdout);
  return true; /* continue with the next event */
}

int main(int argc, char** argv) {
  struct program program = {NULL};
  gpushm_subscription* subscription = NULL;
  gpushm_segment_list* present = NULL;
  struct pollfd polled[3] = {{-1, POLLIN, 0}, {-1, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  sigset_t signals;
  int status = 0;
  if (argc != 2) {
    fputs("usage: event_loop PREFIX\n", stderr);
    return 2;
  }
  /* Blocked before gpushm starts a thread, so that its threads inherit the mask. */
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigprocmask(SIG_BLOCK, &signals, NULL);
  polled[1].fd = signalfd(-1, &signals, SFD_CLOEXEC);

  if (gpushm_client_connect(NULL, GPUSHM_DEFAULT_TIMEOUT, &program.client) != GPUSHM_OK ||
      gpushm_client_subscribe(program.client, gpushm_text(argv[1]), &present, &subscription) !=
          GPUSHM_OK ||
      gpushm_subscription_descriptor(subscription, &polled[0].fd) != GPUSHM_OK) {
    status = failed();
  }
  for (size_t at = 0; at < gpushm_segment_list_size(present); ++at) {
    gpushm_segment_info info = GPUSHM_INIT(info);
    if (gpushm_segment_list_get(present, at, &info) == GPUSHM_OK) {
      use(program.client, info.name);
    }
  }
  gpushm_segment_list_free(present);
  fflush(stdout);
  while (status == 0) {
    if (poll(polled, 3, -1) < 0 || polled[1].revents != 0 || polled[2].revents != 0) {
      break;
    }
    if (gpushm_subscription_dispatch(subscription, on_event, &program, NULL) != GPUSHM_OK) {
      status = failed();
    }
  }
  gpushm_subscription_close(subscription);
  gpushm_client_close(program.client);
  close(polled[1].fd);
  return status;
}
