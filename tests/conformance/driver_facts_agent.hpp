// SPDX-License-Identifier: Apache-2.0
#pragma once

// Processes that use CUDA, driven by a test that does not: so the test may fork, hold descriptors
// with no driver in it, and kill them.

#include <sys/types.h>

#include <array>
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
  create,       ///< number: bytes, number2: chunks. VMM, exportable, mapped read-write in one range
  create_rdma,  ///< number: bytes. The same of one chunk, with gpuDirectRDMACapable
  chunk_rdma,   ///< value: gpuDirectRDMACapable in the properties of the first chunk
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
  // Those below name addresses and pools themselves, as answers gave them.
  where,       ///< value, value2: address and bytes that the orders above are for
  select,      ///< number: address, number2: bytes that they are for from now on
  attribute,   ///< number: address, number2: CUpointer_attribute. value: its bytes over zeros
  attributes,  ///< number: address. bytes: the four of `plural_attributes`, each over 8 times 0xff
  address_range,  ///< number: address. value, value2: base and bytes
  create_plain,   ///< number: bytes. VMM without handle types, mapped. value: address
  unmap_part,     ///< number: address, number2: bytes
  retain_chunk,   ///< number: address, number2: whether without a current context. value: handle
                  ///< types of its properties, value2: the result of exporting it, which answers
                  ///< with a descriptor
  host_plain,     ///< number: bytes, number2: whether of a memfd. value: address of pageable memory
  host_alloc,     ///< number: bytes, cuMemHostAlloc. value: address
  host_free,      ///< number: address, cuMemFreeHost
  host_register,  ///< number: address, number2: bytes
  host_unregister,   ///< number: address
  default_alloc,     ///< number: bytes, cuMemAllocAsync. value: address, value2: the default pool
  pool_make,         ///< number: CUmemAllocationHandleType. value: the pool
  pool_alloc,        ///< number: bytes, number2: pool. value: address
  pool_descriptor,   ///< number: pool. Answers with a descriptor
  pool_pointer,      ///< number: address. bytes: its export data
  pool_open,         ///< with a descriptor. value: the pool
  pool_take,         ///< number: pool; bytes: the pointer's export data. value: address
  pool_take_wrong,   ///< as pool_take, with data that may crash: a signal ends the agent then
  pool_access,       ///< number: pool, number2: CUmemAccess_flags of the agent's device
  pool_trim,         ///< number: pool
  pool_destroy,      ///< number: pool
  pool_free,         ///< number: address, cuMemFreeAsync
  device_free,       ///< number: address, cuMemFree
  use_context,       ///< number: whether the primary context is made current, or none
  push_context,      ///< makes the primary context current with cuCtxPushCurrent
  retain_context,    ///< value: the CUcontext
  reset_context,     ///< cuDevicePrimaryCtxReset
  context_active,    ///< value: whether cuDevicePrimaryCtxGetState says active
  device_attribute,  ///< number: CUdevice_attribute. value
  context_id,        ///< value: cuCtxGetId of the primary context
  end,               ///< exits with status 0
};

/// What `attributes` asks for at once; each is 8 bytes wide but the first, which is 4.
inline constexpr std::array<cuda::CUpointer_attribute, 4> plural_attributes = {
    cuda::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    cuda::CU_POINTER_ATTRIBUTE_BUFFER_ID,
    cuda::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
    cuda::CU_POINTER_ATTRIBUTE_RANGE_SIZE};

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
