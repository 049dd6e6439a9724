// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <set>

#include "broker/connection.hpp"
#include "broker/hub.hpp"
#include "broker/member_log.hpp"

namespace gpushm::broker_detail {

/// Closes connections whose peers are late: with their hello, with reading what they are sent, or
/// with descriptors whose close blocks. Looks from time to time while there is one that could be:
/// an idle broker sleeps.
///
/// Distinct objects: safe. Shared objects: unsafe; runs on the broker's strand.
class deadlines {
 public:
  using clock = std::chrono::steady_clock;
  struct limits {
    std::chrono::milliseconds hello;
    std::chrono::milliseconds send;  ///< for reading, and for the porter
  };

  deadlines(asio::io_context& io,
            const hub& sessions,
            connection_ender& ender,
            member_log& log,
            limits limit)
      : sessions_(sessions), ender_(ender), log_(log), limits_(limit), timer_(io) {}
  deadlines(const deadlines&) = delete;
  deadlines& operator=(const deadlines&) = delete;
  ~deadlines() = default;

  /// `of` was accepted at `now`, not before any other.
  void expect_hello(connection& of, clock::time_point now);
  /// What is to be sent on `on` waits for the peer. No effect while it does already.
  void expect_reader(lane& on, clock::time_point now);
  /// The peer has read something: it has all the time again.
  static void reader_goes_on(lane& on, clock::time_point now) noexcept;
  /// Nothing waits for the peer any more.
  void reader_is_done(lane& on) noexcept;
  /// The porter has a packet of `from`, whose descriptors may block it.
  void expect_porter(lane& from, clock::time_point now);
  static void porter_is_done(lane& from) noexcept { from.at_porter_since.reset(); }

  /// Closes those that are late at `now`. Throws std::bad_alloc; then some may be left.
  void close_the_late(clock::time_point now);
  /// Where one of the above threw: the times of those that it had taken. Throws std::bad_alloc.
  void arm();

 private:
  /// Null: it was closed, or forgotten.
  [[nodiscard]] connection* find(core::session_id number) const noexcept;

  const hub& sessions_;
  connection_ender& ender_;
  member_log& log_;
  limits limits_;
  asio::steady_timer timer_;
  bool is_armed_ = false;
  // Numbers: a connection may be gone by the time. What is not waited for any more is found out by
  // `close_the_late`.
  std::deque<core::session_id> silent_;  ///< in the order in which they came
  std::set<core::session_id> stalled_;   ///< those with something that cannot go out
  std::set<core::session_id> at_porter_;
};

}  // namespace gpushm::broker_detail
