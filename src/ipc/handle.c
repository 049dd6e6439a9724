// SPDX-License-Identifier: Apache-2.0
#include "ipc/handle.h"

#include <stddef.h>
#include <string.h>

enum {
  memory_pid_offset = 8,
  event_pid_offset = 0,
  event_zero_offset = 4,
  event_file_offset = 8,
  event_unused_offset = 20,
  event_number_offset = 48,
  event_way_offset = 52,
  tag_offset = 56,
};

// The upper 16 bits of a tag. Values of the wire: never change.
#define TAG_MARK (UINT64_C(0x6749) << 48U)

static bool is_zero(const ipc_handle* handle, size_t begin, size_t end) {
  unsigned char any = 0;
  for (size_t each = begin; each < end; ++each) {
    any |= handle->bytes[each];
  }
  return any == 0;
}

static int32_t int_at(const ipc_handle* handle, size_t offset) {
  int32_t value = 0;
  memcpy(&value, handle->bytes + offset, sizeof(value));
  return value;
}

static void put(ipc_handle* handle, size_t offset, const void* value, size_t size) {
  memcpy(handle->bytes + offset, value, size);
}

static uint64_t tag_of(const ipc_handle* handle) {
  uint64_t tag = 0;
  memcpy(&tag, handle->bytes + tag_offset, sizeof(tag));
  return (tag & ~IPC_TAG_RANDOM_BITS) == TAG_MARK ? tag : 0;
}

uint64_t ipc_make_tag(uint64_t random_bits) {
  return TAG_MARK | (random_bits & IPC_TAG_RANDOM_BITS);
}

bool ipc_tag_memory(ipc_handle* handle, int32_t pid, uint64_t tag) {
  if (ipc_memory_pid(handle) != pid || !is_zero(handle, tag_offset, ipc_handle_bytes)) {
    return false;
  }
  put(handle, tag_offset, &tag, sizeof(tag));
  return true;
}

uint64_t ipc_take_memory_tag(ipc_handle* handle) {
  const uint64_t tag = tag_of(handle);
  if (tag != 0) {
    memset(handle->bytes + tag_offset, 0, ipc_handle_bytes - tag_offset);
  }
  return tag;
}

int32_t ipc_memory_pid(const ipc_handle* handle) {
  return int_at(handle, memory_pid_offset);
}

void ipc_set_memory_pid(ipc_handle* handle, int32_t pid) {
  put(handle, memory_pid_offset, &pid, sizeof(pid));
}

bool ipc_event_file(const ipc_handle* handle, int32_t pid, uint64_t* file) {
  memcpy(file, handle->bytes + event_file_offset, sizeof(*file));
  return ipc_event_pid(handle) == pid && *file != 0 &&
         is_zero(handle, event_zero_offset, event_file_offset) &&
         is_zero(handle, event_unused_offset, ipc_handle_bytes);
}

void ipc_tag_event(ipc_handle* handle, const struct ipc_event_tag* tag) {
  const unsigned char way = (unsigned char)tag->way;
  put(handle, event_number_offset, &tag->number, sizeof(tag->number));
  put(handle, event_way_offset, &way, sizeof(way));
  put(handle, tag_offset, &tag->process, sizeof(tag->process));
}

bool ipc_take_event_tag(ipc_handle* handle, struct ipc_event_tag* tag) {
  tag->process = tag_of(handle);
  memcpy(&tag->number, handle->bytes + event_number_offset, sizeof(tag->number));
  const unsigned char way = handle->bytes[event_way_offset];
  tag->way = (enum ipc_event_way)way;
  const bool is_known =
      tag->process != 0 && is_zero(handle, event_way_offset + 1, tag_offset) &&
      ((way == ipc_event_by_file && tag->number != 0 && tag->number < IPC_NUMBER_END) ||
       (way == ipc_event_completed && tag->number == 0));
  if (is_known) {
    memset(handle->bytes + event_number_offset, 0, ipc_handle_bytes - event_number_offset);
  }
  return is_known;
}

int32_t ipc_event_pid(const ipc_handle* handle) {
  return int_at(handle, event_pid_offset);
}

void ipc_set_event_pid(ipc_handle* handle, int32_t pid) {
  put(handle, event_pid_offset, &pid, sizeof(pid));
}

int32_t ipc_pid_of_exporter(uint64_t tag) {
  return ipc_pid_of_number((uint32_t)tag);
}

int32_t ipc_pid_of_number(uint32_t number) {
  return (int32_t)(IPC_NUMBER_END | (number & (IPC_NUMBER_END - 1)));
}

uint32_t ipc_number_of_pid(uint32_t pid) {
  return (pid & ~(IPC_NUMBER_END - 1)) == IPC_NUMBER_END ? pid & (IPC_NUMBER_END - 1) : 0;
}

// Reads hexadecimal digits, at least one and at most `most`, up to `end`, which it steps over.
// Returns NULL for other texts.
static const char* read_hexadecimal(const char* text, int most, char end, uint64_t* value) {
  *value = 0;
  int digits = 0;
  for (; *text != end; ++text, ++digits) {
    const char digit = *text;
    if (digits == most || !((digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f'))) {
      return NULL;
    }
    *value = *value << 4U | (uint64_t)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  return digits == 0 ? NULL : text + 1;
}

bool ipc_read_event_file_name(const char* name, uint32_t* pid, uint64_t* file) {
  static const char prefix[] = "/cuda.shm.";
  if (strncmp(name, prefix, sizeof(prefix) - 1) != 0) {
    return false;
  }
  uint64_t number = 0;
  const char* rest = read_hexadecimal(name + sizeof(prefix) - 1, 8, '.', &number);  // the uid
  rest = rest == NULL ? NULL : read_hexadecimal(rest, 8, '.', &number);
  *pid = (uint32_t)number;
  return rest != NULL && read_hexadecimal(rest, 16, '\0', file) != NULL;
}
