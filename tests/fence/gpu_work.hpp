// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gpu/driver/cuda_abi.hpp"
#include "tests/fence/launcher.hpp"

namespace gpushm::fence_rounds {

/// What the GPU does for a process while it dies.
enum class work : std::uint8_t {
  kernel,       ///< one kernel that writes until it is stopped
  copies,       ///< a queue of copies of the whole memory
  streams,      ///< eight streams, half with kernels and half with copies
  peer_kernel,  ///< a kernel of GPU 1 that writes memory of GPU 0
  peer_copies,  ///< copies from GPU 1 to memory of GPU 0
};

/// Watched bytes: the first 64 KiB.
inline constexpr std::uint64_t watched_bytes = 65'536;
inline constexpr std::uint64_t shared_bytes = 64ULL * 1024 * 1024;

/// Work of the current context's GPU that writes `shared_bytes` at `target`, and the first
/// `watched_bytes` continuously. Ends with the process, or ten seconds after its start.
///
/// Distinct objects: safe. Shared objects: unsafe.
class gpu_work {
 public:
  /// Throws std::runtime_error, as do all members.
  gpu_work(work does, cuda::CUdeviceptr target);
  void begin();
  /// Keeps queues of copies full; a full queue makes the driver block.
  void feed(int count);

 private:
  work does_;
  cuda::CUdeviceptr target_;
  cuda::CUdeviceptr source_ = 0;
  std::vector<cuda::CUstream> streams_;
  std::optional<write_kernel> kernel_;
  unsigned value_ = 0;
};

}  // namespace gpushm::fence_rounds
