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

  /// Call before requesting turns; this object must outlive `job`.
  void join(job& job, const std::string& name) { turns_.join(job, name, nullptr); }
  /// Call before requesting turns; joins as a member of its principal (`core::scheduling_key`). The
  /// connection must leave before this object is destroyed.
  void join(connection& connection) {
    turns_.join(
        connection.turn, std::string(core::scheduling_key(connection.principal)), &connection);
  }
  /// No effect the second time.
  void leave(connection& connection) { turns_.leave(connection.turn); }

  /// Call after a handler of the event loop has thrown: a round may have ended early, or may not
  /// have been scheduled. Throws std::bad_alloc.
  void restart();

  /// Requests a turn; does not run the job.
  void request_turn(job& job) { request_turn_of(job); }
  /// Requests a turn if there is work for `connection`; does none of it.
  void request_turn(connection& connection) {
    if (!connection.closed && connection.has_something_to_do()) {
      request_turn_of(connection.turn);
    }
  }

 private:
  void request_turn_of(turns::member& member);
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
