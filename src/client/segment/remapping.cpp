// SPDX-License-Identifier: Apache-2.0
#include "client/segment/remapping.hpp"

#include <utility>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpushm/error.hpp"

namespace gpushm::client_detail {

std::optional<memory::chunk_source::chunk> leased_chunks::next() {
  if (broker_) {
    return broker_->next();
  }
  if (next_ == lease_->info().chunk_count) {
    return std::nullopt;
  }
  if (!own_.files.empty()) {
    return own_.copy(next_++, lease_->info().name);
  }
  if (auto copy = lease_->copy_kept(next_)) {
    ++next_;
    return copy;
  }
  return broker_.emplace(lease_, chunk_stream::batch{}, timeout_).next();
}

segment_lease::kept_chunks copy_chunks(const std::shared_ptr<segment_lease>& lease,
                                       std::chrono::milliseconds timeout) {
  segment_lease::kept_chunks result;
  result.held = lease->room_for_chunks();
  if (!result.held) {
    return result;
  }
  const segment_lease::kept_chunks none;
  leased_chunks source(lease, none, timeout);
  while (auto chunk = source.next()) {
    result.files.push_back(std::move(chunk->file));
    result.bytes.push_back(chunk->size_bytes);
  }
  return result;
}

void check_idle(int ordinal, std::string_view operation, const std::string& name) {
  if (ordinal < 0) {
    return;
  }
  const auto refuse = [&](std::string_view cause, std::string_view next_step) {
    throw error(errc::segment_busy, operation, name, cause, next_step);
  };
  const auto& cu = driver::cuda_driver::instance();
  cuda::CUdevice device = 0;
  driver::cuda_driver::check(cu->cuDeviceGet(&device, ordinal), operation, name, "cuDeviceGet");
  const driver::context_scope scope(
      driver::primary_context(device, operation, name), operation, name);
  // Fails, and ends no capture, if a stream that is ordered with the default stream is captured.
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  if (cu->cuStreamIsCapturing(nullptr, &status) == cuda::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    refuse("a stream of its GPU is captured for a graph", "finish the capture first");
  }
  const cuda::CUresult result = cu->cuStreamQuery(nullptr);
  if (result == cuda::CUDA_ERROR_NOT_READY) {
    refuse("the default stream of its GPU has work in flight",
           "synchronize the streams that use the segment first");
  }
  driver::cuda_driver::check(result, operation, name, "cuStreamQuery");
}

}  // namespace gpushm::client_detail
