// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <string>
#include <utility>

#include "broker/hub/turns.hpp"
#include "broker/session/connection.hpp"
#include "broker/session/member_log.hpp"
#include "core/scheduling.hpp"

namespace gpushm::broker_detail {

/// Shares the event loop's time among connections and the broker's own jobs, in rounds of turns
/// (turns.hpp). Between two rounds the loop checks for I/O; it sleeps while no turn is requested.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class turn_loop {
 public:
  /// A job of the broker itself: each turn is one call of `run`. An exception from it ends the
  /// round (`restart`).
  class job final : public turns::member {
   public:
    explicit job(std::function<void()> run) : run_(std::move(run)) {}
    void run() const { run_(); }

   private:
    std::function<void()> run_;
  };

  /// `step` does a bounded part of a connection's work. `end_round` is called after each round.
  turn_loop(asio::io_context& io,
            member_log& log,
            std::function<void(connection&)> step,
            std::function<void()> end_round)
      : io_(io), log_(log), step_(std::move(step)), end_round_(std::move(end_round)) {}
  turn_loop(const turn_loop&) = delete;
  turn_loop& operator=(const turn_loop&) = delete;
  ~turn_loop() = default;

  /// Call before requesting turns; this object must outlive `who`.
  void join(job& who, const std::string& name) { turns_.join(who, name, nullptr); }
  /// Call before requesting turns; joins as a member of its principal (`core::scheduling_key`). The
  /// connection must leave before this object is destroyed.
  void join(connection& who) {
    turns_.join(who.turn, std::string(core::scheduling_key(who.principal)), &who);
  }
  /// No effect the second time.
  void leave(connection& who) { turns_.leave(who.turn); }

  /// Call after a handler of the event loop has thrown: a round may have ended early, or may not
  /// have been scheduled. Throws std::bad_alloc.
  void restart();

  /// Requests a turn; does not run the job.
  void request_turn(job& who) { request_turn_of(who); }
  /// Requests a turn if there is work for `who`; does none of it.
  void request_turn(connection& who) {
    if (!who.closed && who.has_something_to_do()) {
      request_turn_of(who.turn);
    }
  }

 private:
  void request_turn_of(turns::member& who);
  void post_round();
  void post_round_after_events();
  void take_turns();

  asio::io_context& io_;
  member_log& log_;
  std::function<void(connection&)> step_;
  std::function<void()> end_round_;
  turns turns_;
  bool round_posted_ = false;
  bool in_round_ = false;
};

}  // namespace gpushm::broker_detail
