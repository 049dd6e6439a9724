// SPDX-License-Identifier: Apache-2.0
#pragma once

// Processes that use CUDA, driven by a test that does not: so the test can fork, keep descriptors
// open without loading the driver, and kill them.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "gpu/driver/cuda_abi.hpp"

namespace gpushm::conformance {

/// The operations of an agent; each operates on one allocation and one mapping at a time.
enum class order : std::uint32_t {
  /// number: ordinal. Loads the driver, makes the primary context current. value: its own PID,
  /// value2: number of devices, bytes[0]: whether devices 0 and 1 are peers
  init,
  create,       ///< number: bytes, number2: chunks. VMM, exportable, mapped read-write in one range
  create_rdma,  ///< number: bytes. The same with one chunk and gpuDirectRDMACapable
  chunk_rdma,   ///< value: gpuDirectRDMACapable in the properties of the first chunk
  export_chunk,  ///< number: index. Replies with a descriptor
  import_chunk,  ///< with a descriptor. value: location id of its properties
  map_imported,  ///< number: CUmemAccess_flags, number2: ordinal that gets access
  unmap,         ///< all VMM mappings and chunks
  alloc,         ///< number: bytes, cuMemAlloc
  free,          ///< cuMemFree
  get_handle,    ///< number: offset into the allocation. bytes: the handle
  open_handle,   ///< bytes: the handle
  close_handle,
  buffer_id,     ///< value: CU_POINTER_ATTRIBUTE_BUFFER_ID
  fill,          ///< number: byte
  check,         ///< number: byte. value: number of bytes that differ
  write_word,    ///< number: value of 4 bytes to write at the start
  free_memory,   ///< value: free bytes of the device, value2: total
  pool_create,   ///< number: bytes. Pool with descriptor handles and one allocation
  pool_plain,    ///< a pool without handles; the result is that of exporting it
  pool_export,   ///< replies with a descriptor; bytes: the pointer's export data
  pool_import,   ///< with a descriptor; bytes: the pointer's export data
  event_handle,  ///< bytes: handle of a new interprocess event
  event_open,    ///< bytes: the handle
  event_record,  ///< in the stream of wait_word, or in the default stream
  event_wait,    ///< a new stream waits for the event
  event_query,
  entry_point,  ///< bytes: name, number: version, number2: flags of cuGetProcAddress_v2. value: the
                ///< address, value2: the status
  wait_word,  ///< with a descriptor of a memfd page: registers it, a stream waits for number in its
              ///< first word
  wait_done,  ///< number: milliseconds at most. CUDA_ERROR_NOT_READY when the stream still waits
  write_stream,  ///< number: value that the stream then writes to the page's second word
  // The orders below name addresses and pools themselves, as returned in answers.
  where,       ///< value, value2: address and bytes that the orders above apply to
  select,      ///< number: address, number2: bytes that they apply to from now on
  attribute,   ///< number: address, number2: CUpointer_attribute. value: its bytes over zeros
  attributes,  ///< number: address. bytes: the four of `plural_attributes`, each over 8 times 0xff
  address_range,  ///< number: address. value, value2: base and bytes
  create_plain,   ///< number: bytes. VMM without handle types, mapped. value: address
  unmap_part,     ///< number: address, number2: bytes
  retain_chunk,   ///< number: address, number2: whether without a current context. value: handle
                  ///< types of its properties, value2: the result of exporting it, which replies
                  ///< with a descriptor
  host_plain,     ///< number: bytes, number2: whether of a memfd. value: address of pageable memory
  host_alloc,     ///< number: bytes, cuMemHostAlloc. value: address
  host_free,      ///< number: address, cuMemFreeHost
  host_register,  ///< number: address, number2: bytes
  host_unregister,   ///< number: address
  default_alloc,     ///< number: bytes, cuMemAllocAsync. value: address, value2: the default pool
  pool_make,         ///< number: CUmemAllocationHandleType. value: the pool
  pool_alloc,        ///< number: bytes, number2: pool. value: address
  pool_descriptor,   ///< number: pool. Replies with a descriptor
  pool_pointer,      ///< number: address. bytes: its export data
  pool_open,         ///< with a descriptor. value: the pool
  pool_take,         ///< number: pool; bytes: the pointer's export data. value: address
  pool_take_wrong,   ///< as pool_take, with data that may crash: a signal then ends the agent
  pool_access,       ///< number: pool, number2: CUmemAccess_flags of the agent's device
  pool_trim,         ///< number: pool
  pool_destroy,      ///< number: pool
  pool_free,         ///< number: address, cuMemFreeAsync
  device_free,       ///< number: address, cuMemFree
  use_context,       ///< number: whether to make the primary context or no context current
  push_context,      ///< makes the primary context current with cuCtxPushCurrent
  retain_context,    ///< value: the CUcontext
  reset_context,     ///< cuDevicePrimaryCtxReset
  context_active,    ///< value: whether cuDevicePrimaryCtxGetState reports active
  device_attribute,  ///< number: CUdevice_attribute. value
  context_id,        ///< value: cuCtxGetId of the primary context
  end,               ///< exits with status 0
};

/// The attributes that `attributes` queries in one call; each is 8 bytes wide except the first,
/// which is 4.
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
  bool own_shm = false;            ///< also new IPC and mount namespaces, with its own /dev/shm
  std::vector<std::pair<std::string, std::string>> environment;  ///< added; an empty value removes
};

/// A child process. Waits at most a minute for each answer. Killed by the destructor.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class agent {
 public:
  /// Starts it; `started` returns the result of its `init`.
  explicit agent(const agent_options& options = {});
  agent(const agent&) = delete;
  agent& operator=(const agent&) = delete;
  ~agent();

  /// Throws std::runtime_error if the agent has exited or does not reply.
  answer request(order subject,
                 std::uint64_t number = 0,
                 std::uint64_t number2 = 0,
                 const char* bytes = nullptr,
                 int fd = -1);
  [[nodiscard]] const answer& started() const noexcept { return started_; }
  /// Its PID in this process's namespace.
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Sends SIGKILL, and waits for the exit.
  void kill();
  /// Requests its exit; returns its wait status.
  int end();
  /// Waits for its exit without requesting it; returns the wait status.
  int wait();

 private:
  pid_t pid_ = -1;
  base::unique_fd socket_;
  answer started_;
};

/// Runs as an agent on descriptor 3; returns the exit status.
int agent_main();

/// Empty if namespaces can be created here; the reason otherwise.
[[nodiscard]] std::string namespace_skip_reason();

}  // namespace gpushm::conformance
