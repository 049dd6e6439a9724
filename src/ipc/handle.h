// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSHM_IPC_HANDLE_H
#define GPUSHM_IPC_HANDLE_H

#include <stdbool.h>
#include <stdint.h>

// The driver's IPC handles, as far as their layout is known, and the tag that an exporter adds to
// them (docs/adr/0042-ipc-for-unchanged-programs.md). Pure functions. Integers are little-endian.
//
//            memory                      event
//    0       -                           PID of the exporter
//    4       -                           0
//    8       PID of the exporter         number of the exporter's file of events, from 1 on
//   16       -                           number of the event in the file
//   20       -                           0
//   48       -                           0; tagged: number of the registered file
//   52       -                           0; tagged: enum ipc_event_way
//   56       0; tagged: tag              0; tagged: tag

enum { ipc_handle_bytes = 64 };

// CUipcMemHandle or CUipcEventHandle, which calls pass by value.
typedef struct ipc_handle {
  unsigned char bytes[ipc_handle_bytes];
} ipc_handle;

// Bits of a tag that are random; the others say that it is one.
#define IPC_TAG_RANDOM_BITS UINT64_C(0x0000ffffffffffff)
// The tag with the given random bits, which identifies a process. Never 0.
uint64_t ipc_make_tag(uint64_t random_bits);

// Numbers of registered descriptors are smaller.
#define IPC_NUMBER_END (UINT32_C(1) << 30)

// How the importer of an event waits for the exporter's work.
enum ipc_event_way {
  ipc_event_unknown = 0,
  ipc_event_by_file = 1,    // by the driver's file of events, registered with a domain's broker
  ipc_event_completed = 2,  // not at all: each record returns after its work has completed
};

struct ipc_event_tag {
  uint64_t process;
  uint32_t number;  // of the registered file; 0 unless `way` is ipc_event_by_file
  enum ipc_event_way way;
};

// Adds `tag` to a memory handle that this process (`pid`) has received from the driver. Returns
// false, with the handle unchanged, if its layout is not the known one.
bool ipc_tag_memory(ipc_handle* handle, int32_t pid, uint64_t tag);
// Removes the tag of a memory handle and returns it. Returns 0, with the handle unchanged, if it
// has none.
uint64_t ipc_take_memory_tag(ipc_handle* handle);
int32_t ipc_memory_pid(const ipc_handle* handle);
void ipc_set_memory_pid(ipc_handle* handle, int32_t pid);

// The same for an event handle. ipc_tag_event writes the number of the exporter's file of events to
// `file`.
bool ipc_event_file(const ipc_handle* handle, int32_t pid, uint64_t* file);
void ipc_tag_event(ipc_handle* handle, const struct ipc_event_tag* tag);
// Returns false, with the handle unchanged, if it has no tag, or one of unknown meaning.
bool ipc_take_event_tag(ipc_handle* handle, struct ipc_event_tag* tag);
int32_t ipc_event_pid(const ipc_handle* handle);
void ipc_set_event_pid(ipc_handle* handle, int32_t pid);

// A PID that no process has (they end at 2^22), in place of the exporter's: the same for each
// handle of that exporter, because the driver may count opens by handle.
int32_t ipc_pid_of_exporter(uint64_t tag);
// The PID of an exporter without tag.
#define IPC_PID_OF_UNKNOWN_EXPORTER INT32_C(0x3fffffff)
// The PID with which the driver is given an event of a registered file, and the number of the file
// in it; 0 if the PID is of another kind.
int32_t ipc_pid_of_number(uint32_t number);
uint32_t ipc_number_of_pid(uint32_t pid);

// Reads the name of a file of events, "/cuda.shm.UID.PID.FILE" in hexadecimal. Returns false for
// every other name.
bool ipc_read_event_file_name(const char* name, uint32_t* pid, uint64_t* file);

#endif
