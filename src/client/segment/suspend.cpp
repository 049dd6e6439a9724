// SPDX-License-Identifier: Apache-2.0
// Segments that are unmapped for a time (docs/adr/0047-step-aside.md).
#include "client/segment/suspend.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/lease/chunk_stream.hpp"
#include "client/segment/segment_impl.hpp"
#include "client/session/fork_guard.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpushm/error.hpp"

namespace gpushm::client_detail {

namespace {

/// The chunks of a segment that this process leases: its own copies, else those of the broker.
class leased_chunks final : public memory::chunk_source {
 public:
  /// `own`: all of them, or none; exists as long as this object.
  leased_chunks(std::shared_ptr<segment_lease> lease,
                const segment_lease::kept_chunks& own,
                std::chrono::milliseconds timeout)
      : lease_(std::move(lease)), own_(own), timeout_(timeout) {}

  [[nodiscard]] std::optional<chunk> next() override {
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

 private:
  std::shared_ptr<segment_lease> lease_;
  const segment_lease::kept_chunks& own_;
  std::chrono::milliseconds timeout_;
  std::uint32_t next_ = 0;
  std::optional<chunk_stream> broker_;
};

/// So that the memory does not depend on the broker's life while nothing maps it. Throws as
/// `chunk_stream::next`.
segment_lease::kept_chunks copy_chunks(const gpushm_segment& segment) {
  segment_lease::kept_chunks result;
  result.held = segment.lease("suspend").room_for_chunks();
  if (!result.held) {
    return result;
  }
  const segment_lease::kept_chunks none;
  leased_chunks source(segment.mapped().shared_lease(), none, segment.request_limit());
  while (auto chunk = source.next()) {
    result.files.push_back(std::move(chunk->file));
    result.bytes.push_back(chunk->size_bytes);
  }
  return result;
}

/// Of all work that may use the memory, that of the legacy default stream is the only one that can
/// be found without knowing the program's streams.
void check_idle(const gpushm_segment& segment) {
  const int ordinal = segment.mapped().ordinal();
  if (ordinal < 0) {
    return;
  }
  const std::string& name = segment.info().name;
  const auto refuse = [&](std::string_view cause, std::string_view next_step) {
    throw error(errc::in_use, "suspend", name, cause, next_step);
  };
  const auto& cu = driver::cuda_driver::instance();
  cuda::CUdevice device = 0;
  driver::cuda_driver::check(cu->cuDeviceGet(&device, ordinal), "suspend", name, "cuDeviceGet");
  const driver::context_scope scope(
      driver::primary_context(device, "suspend", name), "suspend", name);
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
  driver::cuda_driver::check(result, "suspend", name, "cuStreamQuery");
}

}  // namespace

void suspend(const gpushm_segment& segment, suspend_mode mode) {
  const std::string& name = segment.info().name;
  check_not_forked(segment.forks(), "suspend", name);
  mapping::suspension& suspension = segment.mapped().suspended_as();
  const std::lock_guard lock(suspension.mutex);
  memory::region& region = segment.region();
  try {
    if (region.can_be_suspended() && !region.suspended()) {
      check_idle(segment);
      suspension.chunks = copy_chunks(segment);
    }
    region.suspend();
  } catch (const error& why) {
    if (!region.suspended()) {
      suspension.chunks = {};
    }
    throw why.in("suspend", name);
  }
  suspension.mode = mode;
}

void resume(const gpushm_segment& segment) {
  const std::string& name = segment.info().name;
  check_not_forked(segment.forks(), "resume", name);
  mapping::suspension& suspension = segment.mapped().suspended_as();
  const std::lock_guard lock(suspension.mutex);
  leased_chunks chunks(segment.mapped().shared_lease(), suspension.chunks, segment.request_limit());
  try {
    segment.region().resume(chunks);
    suspension.chunks = {};
  } catch (const error& why) {
    throw why.in("resume", name);
  }
}

}  // namespace gpushm::client_detail
