// SPDX-License-Identifier: Apache-2.0
#include "ipc/event_set.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { bucket_count = 1024 };

struct node {
  struct node* next;
  const void* event;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct node* buckets[bucket_count];  // guarded by `mutex`
static atomic_size_t event_count = 0;

static struct node** bucket_of(const void* event) {
  const uint64_t mixed = (uint64_t)(uintptr_t)event * UINT64_C(0x9e3779b97f4a7c15);
  return &buckets[mixed >> 54U];
}

// The place of the pointer to the event's node, or to the NULL at its bucket's end.
static struct node** find(const void* event) {
  struct node** place = bucket_of(event);
  while (*place != NULL && (*place)->event != event) {
    place = &(*place)->next;
  }
  return place;
}

bool ipc_add_event(const void* event) {
  struct node* const added = malloc(sizeof(*added));
  if (added == NULL) {
    return false;
  }
  *added = (struct node){.event = event};
  pthread_mutex_lock(&mutex);
  struct node** const place = find(event);
  const bool is_new = *place == NULL;
  if (is_new) {
    *place = added;
    atomic_fetch_add(&event_count, 1);
  }
  pthread_mutex_unlock(&mutex);
  if (!is_new) {
    free(added);
  }
  return true;
}

void ipc_remove_event(const void* event) {
  if (atomic_load(&event_count) == 0) {
    return;
  }
  pthread_mutex_lock(&mutex);
  struct node** const place = find(event);
  struct node* const removed = *place;
  if (removed != NULL) {
    *place = removed->next;
    atomic_fetch_sub(&event_count, 1);
  }
  pthread_mutex_unlock(&mutex);
  free(removed);
}

bool ipc_has_event(const void* event) {
  if (atomic_load(&event_count) == 0) {
    return false;
  }
  pthread_mutex_lock(&mutex);
  const bool found = *find(event) != NULL;
  pthread_mutex_unlock(&mutex);
  return found;
}
