// SPDX-License-Identifier: Apache-2.0
// What comes from the broker: who reads it, and where it goes.
#include <poll.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/log.hpp"
#include "base/syscall.hpp"
#include "client/connection.hpp"
#include "transport/packet_socket.hpp"
#include "wire/codec.hpp"

namespace gpushm::detail {

namespace {

using std::chrono::milliseconds;

/// How long a caller asks the socket again and again before it sleeps: an answer usually takes less
/// than twice the time it takes to wake a thread.
constexpr std::chrono::microseconds spin{30};
/// How long the connection's thread leaves the socket to a caller before it looks again.
constexpr milliseconds look_again{1};

}  // namespace

// ---- reading ----

/// Returns when `wanted` has an answer, when too much is held for others, at `deadline`, or when
/// the connection is broken.
void connection::read_for_everybody(const pending& wanted, steady_time deadline) {
  const auto stop_spinning = std::chrono::steady_clock::now() + spin;
  bool alive = true;
  try {
    for (;;) {
      alive = read_available(&wanted);
      {
        const std::lock_guard lock(mutex_);
        if (!alive || !wanted.answers.empty() || holds_too_much()) {
          break;
        }
      }
      const auto now = std::chrono::steady_clock::now();
      if (now < stop_spinning) {
        continue;
      }
      if (now >= deadline || !transport::wait_readable(socket_.get(), time_left(deadline))) {
        return;
      }
    }
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
    alive = false;
  }
  if (!alive) {
    break_down();
  }
}

/// A caller does not read any more. With `mutex_` held.
void connection::stop_reading() {
  caller_reads_ = false;
  resume_reading();
}

/// One of those who wait becomes the reader, else the thread if it was parked. With `mutex_` held.
void connection::resume_reading() {
  if (caller_reads_ || holds_too_much()) {
    return;
  }
  for (const auto& [id, waiting] : pending_) {
    if (waiting->waited_for) {
      waiting->arrived.notify_one();
      return;
    }
  }
  if (std::exchange(parked_, false)) {
    wake_thread();
  }
}

/// An answer has left `pending_`. With `mutex_` held.
void connection::took(const answer& taken) {
  const bool held_too_much = holds_too_much();
  held_descriptors_ -= taken.descriptors.size();
  if (held_too_much) {
    resume_reading();
  }
}

void connection::read_until_stopped() {
  bool caller_read_before = false;
  for (;;) {
    base::held_log_lines lines;
    std::array<pollfd, 2> waits{{{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    std::optional<steady_time> wake_at;
    {
      const std::lock_guard lock(mutex_);
      if (torn_down_) {
        break;
      }
      if (caller_reads_ || holds_too_much()) {
        waits[0].fd = -1;
        // Callers come one after the other: to be woken by each of them costs more than a look at
        // the clock. Not where others wait for what this process confirms.
        if (holds_too_much() || caller_read_before || !answers_.empty()) {
          parked_ = true;
        } else {
          wake_at = std::chrono::steady_clock::now() + look_again;
        }
        caller_read_before = caller_reads_;
      } else {
        caller_read_before = false;
      }
      if (!lost_.empty()) {
        wake_at = std::chrono::steady_clock::now();
      }
    }
    if (queue_.pending()) {
      waits[0].events = static_cast<short>(waits[0].fd == -1 ? POLLOUT : POLLIN | POLLOUT);
      waits[0].fd = socket_.get();
    }
    if (const auto due = takes_reports_ ? reports_.due() : std::nullopt) {
      if (*due <= std::chrono::steady_clock::now()) {
        send_report();
        continue;
      }
      wake_at = wake_at ? std::min(*wake_at, *due) : *due;
    }
    const int timeout = wake_at ? static_cast<int>(time_left(*wake_at).count()) : -1;
    const int count = ::poll(waits.data(), waits.size(), timeout);
    if (count < 0 && errno != EINTR) {
      break;
    }
    if (count > 0 && waits[1].revents != 0) {
      std::uint64_t drained = 0;
      static_cast<void>(base::retry([&] { return ::read(wake_.get(), &drained, sizeof drained); }));
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        return;
      }
      caller_read_before = false;
    }
    try {
      if (count > 0 && (waits[0].revents & ~POLLIN) != 0 && queue_.pending()) {
        flush_queue();
      }
      if (count > 0 && (waits[0].events & POLLIN) != 0 && waits[0].revents != 0 &&
          !caller_has_begun() && !read_available(nullptr)) {
        break;
      }
    } catch (const std::exception& why) {
      base::log(log_level::warning, why.what());
      break;
    }
    tell_listener(false);
  }
  base::held_log_lines lines;
  break_down();
  tell_listener(true);
}

/// The kernel may be short of memory for a packet: that is no end of the connection.
void connection::flush_queue() noexcept {
  try {
    static_cast<void>(queue_.flush());
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
    base::pause_before_retry(look_again);
  }
}

bool connection::caller_has_begun() {
  const std::lock_guard lock(mutex_);
  return caller_reads_;
}

/// Receives and dispatches what is there: all of it without `wanted`, else until that has an
/// answer; and no more than may be held. False at the end of the connection.
bool connection::read_available(const pending* wanted) {
  const std::lock_guard lock(receive_mutex_);
  for (;;) {
    {
      const std::lock_guard state(mutex_);
      if (holds_too_much() || (wanted != nullptr && !wanted->answers.empty())) {
        return true;
      }
    }
    auto got = transport::receive_guarded(socket_.get(), buffer_);
    switch (got.status) {
      case transport::receive_status::would_block:
        return true;
      case transport::receive_status::closed:
      case transport::receive_status::truncated:
        return false;
      case transport::receive_status::packet:
      case transport::receive_status::descriptors_lost: {
        auto message = wire::decode(got.packet);
        if (!message) {
          note_dropped({0, errc::protocol_error, "its packet is not a message", {}});
          return false;
        }
        dispatch(std::move(*message),
                 std::move(got.descriptors),
                 got.status == transport::receive_status::descriptors_lost);
      }
    }
  }
}

/// The broker says why it is about to hang up.
void connection::note_dropped(const wire::failure& why) {
  const std::lock_guard lock(mutex_);
  dropped_because_ = why.cause;
  if (!why.next_step.empty()) {
    dropped_because_ += " (" + why.next_step + ")";
  }
}

void connection::dispatch(wire::message message,
                          std::vector<base::guarded_fd> descriptors,
                          bool lost) {
  std::optional<gpushm::generation> granted;
  if (const auto* opened = std::get_if<wire::opened>(&message.body)) {
    granted = opened->segment.generation;
  } else if (const auto* reserved = std::get_if<wire::reserved>(&message.body)) {
    granted = reserved->generation;
  }
  if (lost) {
    const auto* opened = std::get_if<wire::opened>(&message.body);
    const std::uint32_t index = opened == nullptr ? 0 : opened->index;
    if (granted) {
      release(*std::exchange(granted, std::nullopt), 1, true);
    }
    message.body = wire::failure{index,
                                 errc::too_many_descriptors,
                                 "this process has no room for the segment's descriptors",
                                 "raise its open file limit (ulimit -n)"};
  }
  if (const auto* asked = std::get_if<wire::confirm>(&message.body)) {
    answer_confirm(message.id, asked->generation);
    return;
  }
  if (const auto* failure = std::get_if<wire::failure>(&message.body);
      failure != nullptr && (message.id == 0 || failure->code == errc::protocol_error)) {
    note_dropped(*failure);
  }
  std::unique_lock lock(mutex_);
  if (auto* what = std::get_if<wire::event>(&message.body)) {
    if (message.id == 0) {  // of a lease, not of a subscription; a resync has generation 0
      lost_.push_back(what->generation);
      lock.unlock();
      wake_thread();
      return;
    }
    const auto sink = sinks_.find(message.id);
    if (sink != sinks_.end()) {
      sink->second->deliver(
          {what->kind, std::move(what->name), what->generation, what->leases, what->peer_pid});
    }
    return;
  }
  const auto at = pending_.find(message.id);
  if (at != pending_.end()) {
    held_descriptors_ += descriptors.size();
    at->second->answers.push_back({std::move(message.body), std::move(descriptors)});
    at->second->arrived.notify_one();
    return;
  }
  lock.unlock();
  if (granted) {
    release(*granted, 1, true);  // whoever asked has given up
  }
}

// ---- leases and shares ----

void connection::set_lease_listener(lease_listener* listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = listener;
}

/// On the connection's thread: ending mappings takes as long as the driver does. One at a time
/// unless `all`, because others may wait for what this thread reads in between.
void connection::tell_listener(bool all) noexcept {
  const std::lock_guard listener_lock(listener_mutex_);
  for (;;) {
    gpushm::generation generation = 0;
    {
      const std::lock_guard lock(mutex_);
      if (lost_.empty()) {
        break;
      }
      generation = lost_.front();
    }
    if (listener_ == nullptr || !listener_->end_lost(*this, generation)) {
      const std::lock_guard lock(mutex_);
      lost_.pop_front();
    }
    if (!all) {
      return;
    }
  }
  while (all && broken() && listener_ != nullptr && listener_->end_lost(*this, 0)) {
  }
}

void connection::answer_for(gpushm::generation generation, confirm_answer answer) {
  auto kept = std::make_shared<const confirm_answer>(std::move(answer));
  const std::lock_guard lock(mutex_);
  answers_[generation] = std::move(kept);
}

void connection::stop_answering(gpushm::generation generation) noexcept {
  const std::lock_guard lock(mutex_);
  answers_.erase(generation);
}

void connection::answer_confirm(std::uint64_t id, gpushm::generation generation) noexcept {
  try {
    std::shared_ptr<const confirm_answer> answer;
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = answers_.find(generation); at != answers_.end()) {
        answer = at->second;
      }
    }
    wire::confirmed said{generation, wire::verdict::not_shared};
    if (answer) {
      said.verdict = (*answer)() ? wire::verdict::unchanged : wire::verdict::changed;
    }
    push({id, said});
  } catch (const std::exception& why) {  // the broker's deadline tells who waits
    base::log(log_level::warning, why.what());
  }
}

void connection::break_down() noexcept {
  std::string log_line;
  log_level level = log_level::info;
  {
    const std::lock_guard lock(mutex_);
    broken_.store(true, std::memory_order_release);
    if (std::exchange(torn_down_, true)) {
      return;
    }
    try {
      log_line = gone({}).what();
      if (!dropped_because_.empty() || table_.broker_alive()) {
        level = log_level::warning;  // it lives and has hung up
      }
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): then nothing is logged
    }
    for (const auto& [id, waiting] : pending_) {
      waiting->arrived.notify_all();
    }
    for (const auto& [id, sink] : sinks_) {
      sink->broker_gone();
    }
  }
  base::log(level, log_line);
}

}  // namespace gpushm::detail
