// SPDX-License-Identifier: Apache-2.0
#include "broker/session/session_ender.hpp"

#include <poll.h>

#include <algorithm>
#include <asio/post.hpp>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "broker/session/sender.hpp"
#include "protocol/transport/credentials.hpp"

namespace gpushm::broker_detail {

namespace {

/// Packets of a dead process that are still read: one may be a goodbye (docs/protocol.md).
constexpr int last_packets = 32;

/// Until another attempt to wait for a fence, after a lack of memory.
constexpr std::chrono::milliseconds retry_pause{10};
constexpr std::chrono::hours no_retry{24};

}  // namespace

session_ender::session_ender(asio::io_context& io,
                             hub& sessions,
                             hub_driver& driver,
                             turn_loop& loop,
                             descriptor_receiver& descriptors,
                             member_log& log,
                             succession::recorder& records,
                             std::chrono::milliseconds fence_delay)
    : io_(io),
      hub_(sessions),
      driver_(driver),
      loop_(loop),
      log_(log),
      recorder_(records),
      fence_delay_(fence_delay),
      closing_(io, descriptors, records),
      retry_(io, no_retry) {}

void session_ender::track(connection& created) {
  if (created.peer.pid > 0) {
    by_pid_.emplace(created.peer.pid, &created);
  }
}

void session_ender::watch_process(connection& connection) {
  connection.process.wait([this, weak = connection.weak_from_this()] {
    if (const auto died = weak.lock(); died && !died->closed) {
      const succession::recorder::step named(recorder_,
                                             {succession::step_kind::watch, died->number});
      process_died(*died);
    }
  });
}

void session_ender::set_fence(connection& connection,
                              fence kind,
                              succession::kept_fd pidfd,
                              succession::kept_fd life) {
  connection.fence = kind;
  connection.life_id = life.id;
  connection.life = end_watch(io_, std::move(life.file));
  if (connection.process && transport::kernel_names_peers()) {  // prefer the kernel's pidfd
    recorder_.forget(pidfd.id);
    return;
  }
  connection.process.stop();
  recorder_.forget(std::exchange(connection.process_id, pidfd.id));
  connection.process = end_watch(io_, std::move(pidfd.file));
  watch_process(connection);
}

void session_ender::process_died(connection& connection) {
  // The socket may still contain a goodbye, which distinguishes a normal end from a death.
  connection.last_packets = last_packets;
  connection.muted = true;
  hub_.mute(connection);
  loop_.request_turn(connection);
}

void session_ender::close_socket(const core::principal& principal,
                                 succession::kept_fd socket) noexcept {
  closing_.close(principal, std::move(socket));
}

/// For as long as its socket stays open: the charges of its session end earlier.
core::charges session_ender::charges_of(const lane& closing) noexcept {
  core::charges result;
  log_.guarded([&] {
    result = hub_.new_charges(closing.of);
    result.charge(core::resource::connections, closing.kind == lane_kind::requests ? 1 : 0);
    result.charge(core::resource::descriptors, 1);
    result.charge(core::resource::memory_bytes, core::cost::connection);
  });
  return result;
}

void session_ender::close(connection& gone) {
  if (gone.closed) {
    return;
  }
  const succession::recorder::step named(recorder_, {succession::step_kind::end, gone.number});
  log_.guarded([&] { mute_siblings(gone); });
  post_end(gone);
  // Nothing from here on may fail, or the session would not end.
  gone.closed = true;
  gone.for_each_lane([&](lane& each) {
    discard_queue(each);
    if (std::exchange(each.is_put_off, false)) {
      const auto& left = std::static_pointer_cast<received_packet>(each.peeked)->descriptors;
      std::for_each(left.begin(), left.end(), [&](const succession::kept_fd& file) {
        recorder_.forget(file.id);
      });
    }
    each.peeked.reset();
  });
  gone.held.reset();
  loop_.leave(gone);
  gone.for_each_lane([&](lane& each) {
    closing_.close(gone.principal, each.take_socket(), charges_of(each), std::move(each.inflight));
  });
  gone.record();
  const auto [first, last] = by_pid_.equal_range(gone.peer.pid);
  for (auto at = first; at != last; ++at) {
    if (at->second == &gone) {
      by_pid_.erase(at);
      break;
    }
  }
}

/// Deferred: the hub may be handling a request of this or another session.
void session_ender::post_end(connection& gone) {
  asio::post(io_, [this, kept = gone.shared_from_this()] {
    log_.guarded([&] { end_session(*kept); });
    driver_.schedule();
  });
}

void session_ender::restore_closed(connection& gone) {
  gone.closed = true;
  if (hub_.domain().is_ending(gone.number)) {
    watch_fence(gone);
  } else {
    post_end(gone);
  }
}

void session_ender::drop(connection& gone, std::string_view why) noexcept {
  log_.guarded([&] { log_.dropped(gone, why); });
  if (!gone.has_queued()) {
    log_.guarded([&] { close(gone); });
  }
}

/// Ends the session's leases now, or once its process can no longer write.
void session_ender::end_session(connection& gone) {
  const core::session_id number = gone.number;
  const succession::recorder::step named(recorder_, {succession::step_kind::end, number});
  if (hub_.stop_some(gone)) {
    try {
      post_end(gone);
      return;
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the rest at once
    }
  }
  bool waits = false;
  try {
    waits = hub_.lose(gone, std::chrono::steady_clock::now());
  } catch (...) {
    fence_reached(number);
    throw;
  }
  if (waits) {
    watch_fence(gone);
  }
}

/// The process can still write, so its leases stay, whatever memory there is.
void session_ender::watch_fence(connection& gone) noexcept {
  const core::session_id number = gone.number;
  try {
    if (!gone.ending) {
      gone.ending = std::make_unique<fence_watch>(
          io_, gone.fence, std::move(gone.process), std::move(gone.life), fence_delay_);
    }
    gone.ending->wait(
        [this, number] { fence_reached(number); },
        [this, number](fence_wait wait) {
          const succession::recorder::step named(recorder_, {succession::step_kind::watch, number});
          hub_.set_fence_wait(number, wait);
        });
    unwatched_ -= std::exchange(gone.is_unwatched, false) ? 1U : 0U;
  } catch (const std::bad_alloc&) {
    unwatched_ += std::exchange(gone.is_unwatched, true) ? 0U : 1U;
    retry_.expires_after(retry_pause);
  }
}

void session_ender::watch_again() {
  unwatched_ = 0;  // some may have ended meanwhile
  hub_.for_each_session([this](session& each) {
    auto& gone = static_cast<connection&>(each);
    if (std::exchange(gone.is_unwatched, false)) {
      watch_fence(gone);
    }
  });
}

void session_ender::arm_retry() {
  if (std::exchange(is_retry_armed_, true)) {
    return;
  }
  try {
    retry_.async_wait([this](asio::error_code code) {
      is_retry_armed_ = false;
      if (code) {  // it expires earlier now
        arm_retry();
        return;
      }
      retry_.expires_after(no_retry);
      if (unwatched_ != 0) {
        watch_again();
      }
      arm_retry();
    });
  } catch (...) {
    is_retry_armed_ = false;
    throw;
  }
}

void session_ender::fence_reached(core::session_id number) {
  {
    const succession::recorder::step named(recorder_, {succession::step_kind::fence, number});
    log_.guarded([&] { hub_.hang_up(number); });
  }
  driver_.schedule();
}

/// When a process dies, all its connections close one after the other. Mutes those that the peer
/// has already closed, so that they do not get events about each other.
void session_ender::mute_siblings(connection& gone) {
  if (gone.peer.pid <= 0 || by_pid_.count(gone.peer.pid) < 2) {
    return;
  }
  std::vector<pollfd> sockets;
  std::vector<connection*> owners;
  const auto [first, last] = by_pid_.equal_range(gone.peer.pid);
  for (auto at = first; at != last; ++at) {
    connection& other = *at->second;
    if (&other != &gone && !other.closed && !other.muted) {
      sockets.push_back({other.requests.socket.get(), POLLRDHUP, 0});
      owners.push_back(&other);
    }
  }
  if (sockets.empty() || ::poll(sockets.data(), sockets.size(), 0) <= 0) {
    return;
  }
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    if ((sockets[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
      owners[i]->muted = true;
      hub_.mute(*owners[i]);
    }
  }
}

}  // namespace gpushm::broker_detail
