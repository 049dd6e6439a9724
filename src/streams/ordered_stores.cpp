// SPDX-License-Identifier: Apache-2.0
#include "streams/ordered_stores.hpp"

#include <algorithm>

#include "gpushm/error.hpp"
#include "streams/stream_operations.hpp"
#include "sync/cpu_wait.hpp"

namespace gpushm::streams {

bool ordered_stores::is_pending() const noexcept {
  return last_.has_value() && !sync::releases(word_.reader().read().word, last_value_) &&
         !(last_->done && last_->done->is_reached());
}

void ordered_stores::enqueue(cuda::CUstream stream,
                             cuda::CUdeviceptr address,
                             std::uint64_t value,
                             std::span<const stream_point> points,
                             std::string_view operation,
                             std::string_view object) {
  const std::uint64_t id = stream_id(stream, operation, object);
  if (is_pending() && last_->stream != id) {
    if (!last_->done) {
      throw error(errc::driver_error,
                  operation,
                  object,
                  "the event after the previous store could not be recorded",
                  "synchronize the stream of that store first");
    }
    last_->done->enqueue_wait(stream, operation, object);
  }
  for (const stream_point& each : points) {
    if (!each.is_reached()) {
      each.enqueue_wait(stream, operation, object);
    }
  }
  word_.use_streams();
  enqueue_signal(stream, address, value, object);
  last_value_ = value;
  last_ = enqueued{id, std::nullopt};
  try {
    last_->done = stream_point::record(stream, operation, object);
  } catch (const error&) {  // NOLINT(bugprone-empty-catch): the store was enqueued
  }
}

bool ordered_stores::try_store(std::uint64_t value, std::span<const stream_point> points) noexcept {
  if (is_pending() || !std::all_of(points.begin(), points.end(), [](const stream_point& each) {
        return each.is_reached();
      })) {
    return false;
  }
  static_cast<void>(word_.signal(value));
  last_value_ = value;
  last_.reset();
  return true;
}

bool ordered_stores::wait(std::chrono::steady_clock::time_point deadline) const noexcept {
  if (!last_) {
    return true;
  }
  if (last_->done) {
    return last_->done->wait(deadline);
  }
  return sync::wait(word_.reader(), last_value_, deadline) != sync::wait_result::timed_out;
}

}  // namespace gpushm::streams
