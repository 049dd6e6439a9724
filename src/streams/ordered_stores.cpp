// SPDX-License-Identifier: Apache-2.0
#include "streams/ordered_stores.hpp"

#include <algorithm>
#include <utility>

#include "driver/cuda.hpp"
#include "driver/owners.hpp"
#include "driver/primary_context.hpp"
#include "gpushm/error.hpp"
#include "streams/stream_operations.hpp"
#include "sync/cpu_wait.hpp"

namespace gpushm::streams {

using driver::cuda_driver;

namespace {

[[noreturn]] void throw_unordered(std::string_view operation, std::string_view object) {
  throw error(errc::driver_error,
              operation,
              object,
              "the event after the previous store could not be recorded",
              "synchronize the stream of that store first");
}

}  // namespace

bool ordered_stores::is_pending() const noexcept {
  // Not by the event: a query of one spoils a capture of another thread in the global mode.
  return last_.has_value() && !sync::releases(word_.reader().read().word, last_value_);
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
      throw_unordered(operation, object);
    }
    last_->done->enqueue_wait(stream, operation, object);
  }
  for (const stream_point& each : points) {
    each.enqueue_wait(stream, operation, object);
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

void ordered_stores::store(std::optional<cuda::CUstream> on,
                           std::uint64_t value,
                           std::span<const stream_point> points,
                           const std::function<cuda::CUdeviceptr(cuda::CUstream)>& address,
                           std::string_view operation,
                           std::string_view object) {
  if (on) {
    enqueue(*on, address(*on), value, points, operation, object);
    return;
  }
  const auto open = std::find_if(
      points.begin(), points.end(), [](const stream_point& each) { return !each.is_reached(); });
  if (open == points.end() && !is_pending()) {
    static_cast<void>(word_.signal(value));
    last_value_ = value;
    last_.reset();
    return;
  }
  if (open == points.end() && !last_->done) {
    throw_unordered(operation, object);
  }
  const stream_point& behind = open == points.end() ? *last_->done : *open;
  const cuda::CUstream stream = own_stream(behind.context(), operation, object);
  enqueue(stream, address(stream), value, points, operation, object);
}

cuda::CUstream ordered_stores::own_stream(cuda::CUcontext context,
                                          std::string_view operation,
                                          std::string_view object) {
  const std::uint64_t life = driver::context_life(context);
  if (own_stream_ != nullptr && own_context_ == context && own_life_ == life) {
    return own_stream_;
  }
  end_own_stream();
  const driver::context_scope scope(context, operation, object);
  cuda_driver::check(
      cuda_driver::instance()->cuStreamCreate(&own_stream_, cuda::CU_STREAM_NON_BLOCKING),
      operation,
      object,
      "cuStreamCreate");
  own_context_ = context;
  own_life_ = life;
  return own_stream_;
}

void ordered_stores::end_own_stream() noexcept {
  const cuda::CUstream ended = std::exchange(own_stream_, nullptr);
  if (ended != nullptr && driver::context_life(own_context_) == own_life_) {
    // Its work goes on.
    driver::close_quietly("cuStreamDestroy",
                          [&](const cuda_driver& cu) { return cu->cuStreamDestroy_v2(ended); });
  }
}

ordered_stores::~ordered_stores() {
  end_own_stream();
}

bool ordered_stores::wait(std::chrono::steady_clock::time_point deadline) const noexcept {
  return !last_ ||
         sync::wait(word_.reader(), last_value_, deadline) != sync::wait_result::timed_out;
}

}  // namespace gpushm::streams
