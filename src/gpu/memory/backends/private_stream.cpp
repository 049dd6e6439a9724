// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/backends/private_stream.hpp"

#include <cstdint>
#include <map>
#include <mutex>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/primary_context.hpp"

namespace gpushm::memory {

namespace {

using driver::cuda_driver;

struct kept_stream {
  cuda::CUstream stream = nullptr;
  std::uint64_t context_life = 0;
};
struct kept_streams {
  std::mutex mutex;
  std::map<cuda::CUdevice, kept_stream> by_device;
};

/// Precondition: `context`, the primary one of `device`, is current.
cuda::CUstream stream_of(cuda::CUdevice device,
                         cuda::CUcontext context,
                         std::string_view operation,
                         std::string_view object) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): threads may use it while the process exits
  static auto* const streams = new kept_streams;
  const std::uint64_t life = driver::context_life(context);
  const std::lock_guard lock(streams->mutex);
  kept_stream& kept = streams->by_device[device];
  if (kept.stream == nullptr || kept.context_life != life) {
    cuda::CUstream created = nullptr;
    cuda_driver::check(
        cuda_driver::instance()->cuStreamCreate(&created, cuda::CU_STREAM_NON_BLOCKING),
        operation,
        object,
        "cuStreamCreate");
    kept = {created, life};
  }
  return kept.stream;
}

}  // namespace

private_stream::private_stream(cuda::CUdevice device,
                               std::string_view operation,
                               std::string_view object)
    : operation_(operation),
      object_(object),
      context_(driver::primary_context(device, operation, object)),
      scope_(context_, operation, object),
      stream_(stream_of(device, context_, operation, object)) {}

void private_stream::synchronize() const {
  cuda_driver::check(cuda_driver::instance()->cuStreamSynchronize(stream_),
                     operation_,
                     object_,
                     "cuStreamSynchronize");
}

}  // namespace gpushm::memory
