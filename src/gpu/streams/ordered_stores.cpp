// SPDX-License-Identifier: Apache-2.0
#include "gpu/streams/ordered_stores.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpu/streams/stream_operations.hpp"
#include "gpushm/error.hpp"
#include "sync/cpu_wait.hpp"

namespace gpushm::streams {

using driver::cuda_driver;

bool ordered_stores::is_pending() const noexcept {
  // Not by the event: a query of one spoils a capture of another thread in the global mode.
  return last_.has_value() &&
         (last_stored_.is_flags || !sync::releases(word_.reader().read().word, last_stored_.word));
}

void ordered_stores::check_followed(std::string_view operation, std::string_view object) const {
  if (!can_be_followed()) {
    throw error(errc::invalid_argument,
                operation,
                object,
                "a graph, or a stream whose event could not be recorded, has still to store " +
                    std::to_string(last_stored_.word),
                "synchronize that stream first, or signal on one stream");
  }
}

void ordered_stores::follow(cuda::CUstream stream,
                            std::uint64_t id,
                            std::string_view operation,
                            std::string_view object) const {
  if (!is_pending() || last_->stream == id) {
    return;
  }
  check_followed(operation, object);
  if (last_->done) {
    last_->done->enqueue_wait(stream, operation, object);
  }
}

void ordered_stores::enqueue(cuda::CUstream stream,
                             cuda::CUdeviceptr address,
                             stored_word word,
                             std::span<const stream_point> points,
                             std::string_view operation,
                             std::string_view object) {
  const std::uint64_t id = stream_id(stream, operation, object);
  follow(stream, id, operation, object);
  for (const stream_point& each : points) {
    each.enqueue_wait(stream, operation, object);
  }
  use_streams();
  enqueue_signal(stream, address, word.word, object);
  note(id, word, std::nullopt);
  try {
    last_->done = stream_point::record(stream, operation, object);
  } catch (const error&) {  // NOLINT(bugprone-empty-catch): the store was enqueued
  }
}

/// Returns the point of the last store if the store may be pending; null if it is done.
const stream_point* ordered_stores::last_open(std::string_view operation,
                                              std::string_view object) const {
  if (!is_pending()) {
    return nullptr;
  }
  check_followed(operation, object);
  return last_->done && !(last_stored_.is_flags && last_->done->is_reached()) ? &*last_->done
                                                                              : nullptr;
}

bool ordered_stores::store(std::optional<cuda::CUstream> caller_stream,
                           stored_word word,
                           std::span<const stream_point> points,
                           const std::function<cuda::CUdeviceptr(cuda::CUstream)>& address,
                           std::string_view operation,
                           std::string_view object) {
  if (caller_stream) {
    enqueue(*caller_stream, address(*caller_stream), word, points, operation, object);
    return true;
  }
  const auto open = std::find_if(
      points.begin(), points.end(), [](const stream_point& each) { return !each.is_reached(); });
  const stream_point* const behind = open == points.end() ? last_open(operation, object) : &*open;
  if (behind == nullptr) {
    const auto result = word.is_flags ? word_.store(word.word) : word_.signal(word.word);
    if (result == sync::signal_result::closed) {
      return false;
    }
    last_stored_ = word;
    last_.reset();
    return true;
  }
  const cuda::CUstream stream = own_stream(behind->context(), operation, object);
  enqueue(stream, address(stream), word, points, operation, object);
  return true;
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
    // Its work continues.
    driver::close_quietly("cuStreamDestroy",
                          [&](const cuda_driver& cu) { return cu->cuStreamDestroy_v2(ended); });
  }
}

ordered_stores::~ordered_stores() {
  end_own_stream();
}

bool ordered_stores::wait(std::chrono::steady_clock::time_point deadline) noexcept {
  bool is_done = !is_pending();
  if (!is_done && last_stored_.is_flags) {
    is_done = last_->done && last_->done->wait(deadline);
  } else if (!is_done) {
    is_done =
        (last_->done && last_->done->is_lost()) ||
        sync::wait(word_.reader(), last_stored_.word, deadline) != sync::wait_result::timed_out;
  }
  if (is_done) {
    last_.reset();
  }
  return is_done;
}

}  // namespace gpushm::streams
