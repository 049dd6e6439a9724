// SPDX-License-Identifier: Apache-2.0
#include "client/broker_link.hpp"

#include <algorithm>
#include <utility>

#include "base/syscall.hpp"

namespace gpushm::detail {

namespace {

/// Retry interval while the broker's socket does not exist; no event reports that it does.
constexpr std::chrono::milliseconds connect_poll{10};

}  // namespace

broker_link::broker_link(connect_options options, std::shared_ptr<lease_table> leases)
    : options_(std::move(options)),
      leases_(std::move(leases)),
      connection_(connect_until(base::deadline_after(options_.timeout), nullptr)) {
  connection_->worker().set_listener(leases_.get());
}

broker_link::~broker_link() {
  if (connection_->forks() != fork_count()) {
    leak(connection_);
    leak(leases_);
    return;
  }
  connection_->worker().set_listener(nullptr);
  leases_->close();
}

/// A caller's timeout also limits the handshake: a stopped broker's socket accepts connections as
/// long as its backlog has room.
std::shared_ptr<connection> broker_link::connect_until(steady_time deadline,
                                                       const connection* predecessor) const {
  for (;;) {
    const auto handshake = options_.timeout > std::chrono::milliseconds(0)
                               ? std::min(time_left(deadline), options_.request_timeout)
                               : options_.request_timeout;
    try {
      return connection::establish(options_.socket_path, handshake, predecessor);
    } catch (const error& why) {
      if (why.code() != errc::broker_unreachable || time_left(deadline) < connect_poll) {
        throw;
      }
    }
    if (options_.stop.stop_requested()) {
      throw cancelled({"connect", options_.socket_path});
    }
    base::pause_before_retry(connect_poll);
  }
}

std::shared_ptr<connection> broker_link::get() {
  const auto connect_deadline = base::deadline_after(options_.timeout);
  const auto deadline = base::deadline_after(options_.request_timeout);
  std::unique_lock lock(mutex_);
  while (!connection_->alive()) {
    if (connecting_) {
      if (!connected_.wait_until(lock, deadline, [&] { return !connecting_; })) {
        throw error(errc::timed_out,
                    "connect",
                    options_.socket_path,
                    "another thread of this client was still connecting",
                    "check whether the broker is stopped or overloaded");
      }
      continue;
    }
    connecting_ = true;
    const auto former = connection_;
    lock.unlock();
    std::shared_ptr<connection> next;
    std::exception_ptr failed;
    try {
      next = connect_until(connect_deadline, former.get());
      take_over(*former, next);
    } catch (...) {
      failed = std::current_exception();
    }
    lock.lock();
    // Once handed over, the leases are the new connection's, even if reporting them failed.
    if (!failed || former->handed_over()) {
      connection_ = std::move(next);
    }
    connecting_ = false;
    connected_.notify_all();
    if (failed) {
      std::rethrow_exception(failed);
    }
  }
  return connection_;
}

/// Leases in flight are lost with the former connection (`lease_table::take`).
void broker_link::take_over(connection& former, const std::shared_ptr<connection>& next) {
  former.worker().set_listener(nullptr);
  next->worker().set_listener(leases_.get());
  if (next->resumed()) {
    leases_->hand_over(former, next, base::deadline_after(options_.request_timeout));
  }
  leases_->end_all_lost();
}

}  // namespace gpushm::detail
