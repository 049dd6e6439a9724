// SPDX-License-Identifier: Apache-2.0
#include "broker/session/end_watch.hpp"

#include <poll.h>

#include <asio/posix/stream_descriptor.hpp>
#include <utility>

#include "base/files/syscall.hpp"

namespace gpushm::broker_detail {

struct end_watch::state {
  state(asio::io_context& io, base::guarded_fd watched)
      : file(std::move(watched)), events(io, file.get()) {}
  state(const state&) = delete;
  state& operator=(const state&) = delete;
  ~state() { stop(); }

  void stop() noexcept {
    if (events.is_open()) {
      events.release();
      file.reset();
      ended = nullptr;
    }
  }

  base::guarded_fd file;
  asio::posix::stream_descriptor events;  ///< does not own `file`
  std::function<void()> ended;
  bool armed = false;
};

namespace {

bool is_readable(int fd) noexcept {
  pollfd entry{fd, POLLIN, 0};
  return base::retry([&] { return ::poll(&entry, 1, 0); }) > 0;
}

}  // namespace

end_watch::end_watch(asio::io_context& io, base::guarded_fd file)
    : state_(file ? std::make_shared<state>(io, std::move(file)) : nullptr) {}

void end_watch::wait(std::function<void()> ended) {
  if (!state_) {
    return;
  }
  state_->ended = std::move(ended);
  if (!state_->armed) {
    arm(state_);
  }
}

void end_watch::arm(const std::shared_ptr<state>& state) {
  state->events.async_wait(asio::posix::stream_descriptor::wait_read,
                           [state](asio::error_code code) {
                             state->armed = false;
                             if (code || !state->events.is_open() || !state->ended) {
                               return;
                             }
                             // An Asio event is only a hint: an event queued for a released
                             // descriptor is delivered to the next descriptor that reuses its slot,
                             // and a wait performs no operation that could fail.
                             if (!is_readable(state->file.get())) {
                               arm(state);
                               return;
                             }
                             std::exchange(state->ended, nullptr)();
                           });
  state->armed = true;
}

void end_watch::stop() noexcept {
  if (state_) {
    state_->stop();
  }
}

}  // namespace gpushm::broker_detail
