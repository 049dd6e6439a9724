// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "gpu/driver/cuda_abi.hpp"
#include "gpu/driver/owners.hpp"

namespace gpushm::memory {

/// A scope that uses this process's own stream of a GPU, and makes the GPU's primary context
/// current on the thread. The stream is created with the first scope, does not synchronize with the
/// legacy default stream, and is never waited for by another stream: the user's streams, of which
/// one may wait for a signal of this thread, neither delay its work nor wait for it. After a reset
/// of the GPU (cudaDeviceReset), which destroys it, the next scope creates another. It is never
/// destroyed otherwise. All scopes of a GPU share it: do not enqueue waits for another process.
///
/// Thread-safety: distinct objects: safe. Bound to the thread that created it, nested like scopes.
class private_stream {
 public:
  /// Blocks while the driver creates a context. Throws `error`: driver_unavailable, forked,
  /// driver_error, out_of_memory. The texts must outlive this object.
  private_stream(cuda::CUdevice device, std::string_view operation, std::string_view object);

  [[nodiscard]] cuda::CUstream get() const noexcept { return stream_; }
  /// Blocks until everything enqueued so far, by any thread, is done. Throws driver_error.
  void synchronize() const;

 private:
  std::string_view operation_;
  std::string_view object_;
  cuda::CUcontext context_;
  driver::context_scope scope_;
  cuda::CUstream stream_;
};

}  // namespace gpushm::memory
