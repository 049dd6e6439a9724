// SPDX-License-Identifier: Apache-2.0
#pragma once

// Processes that use CUDA, driven by a test that does not: so the test may fork, hold descriptors
// with no driver in it, and kill them.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "driver/cuda_abi.hpp"

namespace gpushm::conformance {

/// What an agent can do; each has one allocation and one mapping at a time.
enum class order : std::uint32_t {
  /// number: ordinal. Loads the driver, makes the primary context current. value: its own PID,
  /// value2: how many devices, bytes[0]: whether devices 0 and 1 are peers
  init,
  create,  ///< number: bytes, number2: chunks. VMM, exportable, mapped read-write in one range
  export_chunk,  ///< number: which. Answers with a descriptor
  import_chunk,  ///< with a descriptor. value: location id of its properties
  map_imported,  ///< number: CUmemAccess_flags, number2: ordinal whose access is set
  unmap,         ///< everything of VMM
  alloc,         ///< number: bytes, cuMemAlloc
  free,          ///< cuMemFree
  get_handle,    ///< number: offset into the allocation. bytes: the handle
  open_handle,   ///< bytes: the handle
  close_handle,
  buffer_id,     ///< value: CU_POINTER_ATTRIBUTE_BUFFER_ID
  fill,          ///< number: byte
  check,         ///< number: byte. value: how many bytes differ
  write_word,    ///< number: value of 4 bytes to write at the start
  free_memory,   ///< value: free bytes of the device, value2: total
  pool_create,   ///< number: bytes. Pool with descriptor handles and one allocation
  pool_plain,    ///< a pool without handles; the result is that of exporting it
  pool_export,   ///< answers with a descriptor; bytes: the pointer's export data
  pool_import,   ///< with a descriptor; bytes: the pointer's export data
  event_handle,  ///< bytes: handle of a new interprocess event
  event_open,    ///< bytes: the handle
  wait_word,  ///< with a descriptor of a memfd page: registers it, a stream waits for number in its
              ///< first word
  wait_done,  ///< number: milliseconds at most. CUDA_ERROR_NOT_READY when the stream still waits
  write_stream,  ///< number: value that the stream then writes to the page's second word
  end,           ///< exits with status 0
};

struct message {
  order what = order::init;
  std::uint32_t result = 0;
  std::uint64_t number = 0;
  std::uint64_t number2 = 0;
  char bytes[64] = {};
};

struct answer {
  cuda::CUresult result = cuda::CUDA_SUCCESS;
  std::uint64_t value = 0;
  std::uint64_t value2 = 0;
  char bytes[64] = {};
  base::unique_fd fd;
};

struct agent_options {
  int ordinal = 0;
  bool own_pid_namespace = false;  ///< is PID 1 of a new one
  bool own_shm = false;  ///< also new IPC and mount namespaces, with a /dev/shm of its own
  std::vector<std::pair<std::string, std::string>> environment;  ///< added; an empty value removes
};

/// One child process. Every answer is waited for at most a minute. Killed by its destructor.
///
/// Distinct objects: safe. Shared objects: unsafe.
class agent {
 public:
  /// Starts it; `started` says how its `init` went.
  explicit agent(const agent_options& options = {});
  agent(const agent&) = delete;
  agent& operator=(const agent&) = delete;
  ~agent();

  /// Throws std::runtime_error when the agent is gone or does not answer.
  answer ask(order what,
             std::uint64_t number = 0,
             std::uint64_t number2 = 0,
             const char* bytes = nullptr,
             int fd = -1);
  [[nodiscard]] const answer& started() const noexcept { return started_; }
  /// Its PID as this process sees it.
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// SIGKILL, and waits for the end.
  void kill();
  /// Ends it in order; returns its wait status.
  int end();
  /// Waits for its end without asking for it; the wait status.
  int wait();

 private:
  pid_t pid_ = -1;
  base::unique_fd socket_;
  answer started_;
};

/// Runs as an agent on descriptor 3; returns the exit status.
int agent_main();

/// Empty when namespaces can be made here; else why not.
[[nodiscard]] std::string why_no_namespaces();

}  // namespace gpushm::conformance
