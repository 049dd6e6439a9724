// SPDX-License-Identifier: Apache-2.0
#include "broker/descriptors/closing_sockets.hpp"

#include <sys/socket.h>

#include <chrono>
#include <exception>
#include <iterator>
#include <new>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "succession/recorder/limited_log.hpp"
#include "succession/recorder/own_table.hpp"

namespace gpushm::broker_detail {

namespace {

/// Between queries of sockets whose peers have not read: no event reports that.
constexpr std::chrono::milliseconds period{100};
/// The number that is queried at once, which takes less than a millisecond although some are closed
/// then: a flood of connections leaves a thousand.
constexpr int queried_at_once = 64;
/// Until the next ones of them are.
constexpr std::chrono::milliseconds pause{2};

/// No charge limits how many connections are refused: with more sockets than this waiting, each of
/// theirs is closed at once, by a thread of its own, which no socket keeps (`close_apart`).
constexpr std::size_t max_waiting_refused = 64;

}  // namespace

/// In another thread.
void closing_sockets::close_now(succession::kept_fd& socket) noexcept {
  try {
    std::vector<base::unique_fd> one(1);
    one.front() = socket.file.release();
    succession::close_apart(std::move(one));
  } catch (const std::bad_alloc& why) {
    succession::log_about_members(log_level::warning, why.what());
    static_cast<void>(socket.file.release().release());  // which only costs a descriptor
  }
  recorder_.forget(socket.id);
}

closing_sockets::~closing_sockets() {
  std::vector<base::unique_fd> files;
  for (auto& [number, one] : waiting_) {
    one.inflight.reset();  // before the socket
    if (one.socket && !drain(one.socket.get())) {
      base::unique_fd file = one.socket.file.release();
      try {
        files.push_back(std::move(file));
      } catch (const std::bad_alloc&) {
        static_cast<void>(file.release());  // the end of the process closes it
      }
    }
  }
  succession::close_apart(std::move(files));
}

void closing_sockets::close(const core::principal& principal,
                            succession::kept_fd socket,
                            core::charges held,
                            inflight_charge inflight) noexcept {
  ::shutdown(socket.get(), SHUT_RDWR);
  if (inflight.is_read() && drain(socket.get())) {
    inflight.reset();  // before the socket
    recorder_.forget(socket.id);
    return;
  }
  const std::uint64_t number = next_++;
  closing* const one = add(number, principal);
  if (one == nullptr) {
    inflight.reset();
    if (drain(socket.get())) {
      recorder_.forget(socket.id);
    } else {
      static_cast<void>(socket.file.release().release());  // which only costs a descriptor
    }
    return;
  }
  one->socket = std::move(socket);
  one->held = std::move(held);
  one->inflight = std::move(inflight);
  if (is_closed(number, *one)) {
    waiting_.erase(number);
  } else if (one->socket) {
    arm(period);
  }
}

/// Returns null if there is no memory.
closing_sockets::closing* closing_sockets::add(std::uint64_t number,
                                               const core::principal& principal) noexcept {
  try {
    return &waiting_.try_emplace(number, closing{principal, {}, {}, {}}).first->second;
  } catch (const std::bad_alloc& why) {
    succession::log_about_members(log_level::warning, why.what());
    return nullptr;
  }
}

/// Returns true if nothing is left to do. False and no socket left: another thread reports it.
bool closing_sockets::is_closed(std::uint64_t number, closing& closing) noexcept {
  if (!closing.inflight.is_read()) {
    return false;
  }
  closing.inflight.reset();
  if (drain(closing.socket.get())) {
    recorder_.forget(closing.socket.id);
    closing.socket.file.reset();
    return true;
  }
  const bool is_refused = closing.held.who() == nullptr;
  if (is_refused && waiting_.size() > max_waiting_refused) {
    close_now(closing.socket);
    return true;
  }
  static_cast<void>(descriptor_receiver_.close_elsewhere(closing.who, closing.socket, number));
  return false;
}

void closing_sockets::look_again() noexcept {
  auto at = waiting_.lower_bound(next_query_);
  for (int left = queried_at_once; left != 0 && at != waiting_.end(); --left) {
    const bool is_done = at->second.socket && is_closed(at->first, at->second);
    at = is_done ? waiting_.erase(at) : std::next(at);
  }
  const bool are_all_queried = at == waiting_.end();
  next_query_ = are_all_queried ? 0 : at->first;
  if (!waiting_.empty()) {
    arm(are_all_queried ? period : pause);
  }
}

/// Looks again, and again while one is left. Without memory: after the next call.
void closing_sockets::arm(std::chrono::milliseconds after) noexcept {
  if (is_armed_) {
    return;
  }
  try {
    timer_.expires_after(after);
    timer_.async_wait([this](asio::error_code code) {
      is_armed_ = false;
      if (!code) {
        look_again();
      }
    });
    is_armed_ = true;
  } catch (const std::exception& why) {
    succession::log_about_members(log_level::warning, why.what());
  }
}

}  // namespace gpushm::broker_detail
