// SPDX-License-Identifier: Apache-2.0
#include "client/lease/broker_link.hpp"

#include <algorithm>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/report/log.hpp"
#include "client/lease/handback.hpp"
#include "client/lease/socket_path.hpp"

namespace gpushm::client_detail {

namespace {

/// Retry interval while the broker's socket does not exist; no event reports that it does.
constexpr std::chrono::milliseconds connect_poll{10};

/// For each step of recovering leases without a request: a client that is destroyed meanwhile waits
/// for one of them.
constexpr std::chrono::milliseconds step_timeout{1'000};
/// For other processes to hand back what this one has open. They try to connect once a second.
constexpr std::chrono::seconds others_timeout{10};

/// Whether another place may have a broker that this process may use.
bool has_no_broker_for_us(const error& why) noexcept {
  return why.code() == errc::broker_unreachable || why.code() == errc::permission_denied;
}

std::span<const std::string> first_batch(std::span<const std::string> names) {
  return names.first(std::min(names.size(), names_per_batch));
}

}  // namespace

broker_link::broker_link(connect_options options, std::shared_ptr<lease_table> leases)
    : options_(std::move(options)),
      leases_(std::move(leases)),
      connection_(connect_until(base::deadline_after(options_.timeout),
                                options_.request_limit,
                                nullptr,
                                {},
                                first_batch(options_.prefetch))),
      thread_(std::make_shared<handback_thread>(
          [this](const std::stop_token& stop) { return recover_leases(stop); })) {
  connection_->worker().set_listener(this);
}

broker_link::~broker_link() {
  if (connection_->forks() != fork_count()) {
    leak(connection_);
    leak(leases_);
    leak(thread_);
    return;
  }
  thread_->stop();
  connection_->worker().set_listener(nullptr);
}

// ---- leases that are lost ----

/// What can be recovered stays cached meanwhile.
bool broker_link::end_lost(gpushm::generation generation) noexcept {
  return !(generation == 0 && thread_->is_busy()) && leases_->end_lost(generation);
}

/// Called on the connection's worker, which must not be the last owner of a connection or a lease:
/// neither may be destroyed on it.
void broker_link::broker_ended(bool was_dropped) noexcept {
  if (!was_dropped && leases_->has_receipts()) {
    static_cast<void>(thread_->start());
  }
}

bool broker_link::has_lost_leases() const noexcept {
  try {
    return !leases_->lost().empty();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

/// Returns false to be called again.
bool broker_link::recover_leases(const std::stop_token& stop) noexcept {
  try {
    if (!has_lost_leases()) {
      leases_->end_all_lost();
      return true;
    }
    const auto connected = get(std::chrono::milliseconds(0), step_timeout, {});
    open_again(*leases_, connected, stop, step_timeout, base::deadline_after(others_timeout));
    if (!stop.stop_requested()) {
      leases_->end_all_lost();
    }
    return true;
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
    return false;
  }
}

// ---- connecting ----

std::shared_ptr<connection> broker_link::establish(std::chrono::milliseconds handshake_timeout,
                                                   const connection* predecessor,
                                                   std::span<const std::string> names) {
  return options_.socket_path.empty()
             ? establish_at_default(handshake_timeout, names)
             : connection::establish(options_.socket_path, handshake_timeout, predecessor, names);
}

/// The machine's broker first, then one of this user. The first that answers is the link's from
/// then on.
std::shared_ptr<connection> broker_link::establish_at_default(
    std::chrono::milliseconds handshake_timeout, std::span<const std::string> names) {
  const auto connect_to = [&](const std::string& path) {
    auto result = connection::establish(path, handshake_timeout, nullptr, names);
    options_.socket_path = path;
    return result;
  };
  const std::string of_machine = machine_socket();
  try {
    return connect_to(of_machine);
  } catch (const error& why) {
    if (!has_no_broker_for_us(why)) {
      throw;
    }
    const own_sockets own = find_own_sockets();
    std::string tried;
    for (const std::string& path : own.paths) {
      try {
        return connect_to(path);
      } catch (const error& at_path) {
        if (!has_no_broker_for_us(at_path)) {
          throw;
        }
        tried += "; at " + path + ": " + at_path.cause();
      }
    }
    if (own.paths.empty() && !own.expected.empty()) {
      tried = ", and this user has no broker at " + own.expected;
    }
    throw error(
        why.code(), "connect", of_machine, why.cause() + tried + own.refused, why.next_step());
  }
}

/// A deadline in the future also limits the handshake: a stopped broker's socket accepts
/// connections as long as its backlog has room.
std::shared_ptr<connection> broker_link::connect_until(steady_time deadline,
                                                       std::chrono::milliseconds handshake_timeout,
                                                       const connection* predecessor,
                                                       const std::stop_token& stop,
                                                       std::span<const std::string> names) {
  const std::string place =
      options_.socket_path.empty() ? base::machine_domains : options_.socket_path;
  const bool waits = time_left(deadline) > std::chrono::milliseconds(0);
  for (;;) {
    const auto handshake =
        waits ? std::min(time_left(deadline), handshake_timeout) : handshake_timeout;
    try {
      return establish(handshake, predecessor, names);
    } catch (const error& why) {
      if (why.code() != errc::broker_unreachable || time_left(deadline) < connect_poll) {
        throw;
      }
    }
    if (options_.stop.stop_requested() || stop.stop_requested()) {
      throw cancelled({"connect", place});
    }
    base::pause_before_retry(connect_poll);
  }
}

std::shared_ptr<connection> broker_link::get(std::chrono::milliseconds connect_timeout,
                                             std::chrono::milliseconds request_limit,
                                             const std::stop_token& stop) {
  const std::stop_callback wake(stop, [this] {
    const std::lock_guard lock(mutex_);
    connected_.notify_all();
  });
  const auto connect_deadline = base::deadline_after(connect_timeout);
  const auto deadline = base::deadline_after(request_limit);
  std::unique_lock lock(mutex_);
  while (!connection_->alive()) {
    if (connecting_) {
      const bool in_time = connected_.wait_until(
          lock, deadline, [&] { return !connecting_ || stop.stop_requested(); });
      if (connecting_ && stop.stop_requested()) {
        throw cancelled({"connect", options_.socket_path});
      }
      if (!in_time) {
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
      next = connect_until(connect_deadline, request_limit, former.get(), stop);
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

/// Leases in flight are lost with the previous connection (`lease_table::take`).
void broker_link::take_over(connection& former, const std::shared_ptr<connection>& next) {
  former.worker().set_listener(nullptr);
  next->worker().set_listener(this);
  if (next->resumed()) {
    leases_->hand_over(former, next, base::deadline_after(options_.request_limit));
  } else if (has_lost_leases()) {
    leases_->end_takes(former);
    hand_back(*leases_, next, options_.request_limit);
  }
  if (!has_lost_leases() || !thread_->start()) {
    leases_->end_all_lost();
  }
}

}  // namespace gpushm::client_detail
