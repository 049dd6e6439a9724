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

/// Returns when `wanted` has an answer, at `deadline`, or when the connection is broken.
void connection::read_for_everybody(const pending& wanted, steady_time deadline) {
  const auto stop_spinning = std::chrono::steady_clock::now() + spin;
  bool alive = true;
  try {
    for (;;) {
      alive = read_available();
      {
        const std::lock_guard lock(mutex_);
        if (!alive || !wanted.answers.empty()) {
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

/// One of those who wait becomes the reader. With `mutex_` held.
void connection::hand_over_reading() {
  for (const auto& [id, waiting] : pending_) {
    if (waiting->waited_for) {
      waiting->arrived.notify_one();
      return;
    }
  }
}

void connection::read_until_stopped() {
  for (;;) {
    std::array<pollfd, 2> waits{{{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    {
      // Somebody who waits for an answer reads. Look again soon, as long as nobody says when that
      // ends.
      const std::lock_guard lock(mutex_);
      if (torn_down_) {
        break;
      }
      if (caller_reads_) {
        waits[0].fd = -1;
      }
    }
    const bool only_wake = waits[0].fd == -1;
    int timeout = only_wake ? static_cast<int>(look_again.count()) : -1;
    if (const auto due = report_due()) {
      const milliseconds left = time_left(*due);
      if (left == milliseconds(0)) {
        send_report();
      } else if (!only_wake) {
        timeout = static_cast<int>(left.count());
      }
    }
    const int count = ::poll(waits.data(), waits.size(), timeout);
    if (count < 0 && errno != EINTR) {
      break;
    }
    if (count > 0 && waits[1].revents != 0) {
      std::uint64_t drained = 0;
      static_cast<void>(base::retry([&] { return ::read(wake_.get(), &drained, sizeof drained); }));
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) {
          return;
        }
      }
      tell_listener();
      continue;
    }
    if (count <= 0 || waits[0].revents == 0 || caller_has_begun()) {
      continue;
    }
    try {
      if (!read_available()) {
        break;
      }
    } catch (const std::exception& why) {
      base::log(log_level::warning, why.what());
      break;
    }
  }
  break_down();
  tell_listener();
}

bool connection::caller_has_begun() {
  const std::lock_guard lock(mutex_);
  return caller_reads_;
}

/// Receives and dispatches what is there. False at the end of the connection.
bool connection::read_available() {
  const std::lock_guard lock(receive_mutex_);
  for (;;) {
    auto got = transport::receive_packet(socket_.get(), buffer_);
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
          base::log(log_level::warning, "the broker sent a packet that is no message");
          return false;
        }
        dispatch(std::move(*message),
                 std::move(got.descriptors),
                 got.status == transport::receive_status::descriptors_lost);
      }
    }
  }
}

void connection::dispatch(wire::message message,
                          std::vector<base::unique_fd> descriptors,
                          bool lost) {
  std::optional<gpushm::generation> granted;
  if (const auto* opened = std::get_if<wire::opened>(&message.body)) {
    granted = opened->segment.generation;
  } else if (const auto* reserved = std::get_if<wire::reserved>(&message.body)) {
    granted = reserved->generation;
  }
  if (lost) {
    if (granted) {
      release(*std::exchange(granted, std::nullopt), 1);
    }
    message.body = wire::failure{0,
                                 errc::too_many_descriptors,
                                 "this process has no room for the segment's descriptors",
                                 "raise its open file limit (ulimit -n)"};
  }
  if (const auto* asked = std::get_if<wire::confirm>(&message.body)) {
    answer_confirm(message.id, asked->generation);
    return;
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
    at->second->answers.push_back({std::move(message.body), std::move(descriptors)});
    at->second->arrived.notify_one();
    return;
  }
  lock.unlock();
  if (granted) {
    release(*granted, 1);  // whoever asked has given up
  }
}

// ---- leases and shares ----

void connection::set_lease_listener(lease_listener* listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = listener;
}

/// On the connection's thread: ending mappings takes as long as the driver does.
void connection::tell_listener() noexcept {
  const std::lock_guard listener_lock(listener_mutex_);
  std::vector<gpushm::generation> lost;
  {
    const std::lock_guard lock(mutex_);
    lost.swap(lost_);
  }
  if (listener_ == nullptr) {
    return;
  }
  for (const gpushm::generation generation : lost) {
    listener_->lease_lost(*this, generation);
  }
  if (broken()) {
    listener_->lease_lost(*this, 0);
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
    send(wire::encode({id, said}),
         {},
         {"confirm", {}},
         std::chrono::steady_clock::now() + std::chrono::seconds(1));
  } catch (const std::exception& why) {  // the broker's deadline tells who waits
    base::log(log_level::warning, why.what());
  }
}

void connection::break_down() noexcept {
  const std::lock_guard lock(mutex_);
  broken_.store(true, std::memory_order_release);
  if (std::exchange(torn_down_, true)) {
    return;
  }
  for (const auto& [id, waiting] : pending_) {
    waiting->arrived.notify_all();
  }
  for (const auto& [id, sink] : sinks_) {
    sink->broker_gone();
  }
}

}  // namespace gpushm::detail
