// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <optional>

#include "broker/hub/hub.hpp"
#include "broker/session/member_log.hpp"
#include "broker/session/turn_loop.hpp"
#include "succession/recorder/recorder.hpp"

namespace gpushm::broker_detail {

/// Runs the hub: in turns while it has work, and at its next deadline.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class hub_driver {
 public:
  hub_driver(asio::io_context& io,
             hub& driven,
             turn_loop& loop,
             member_log& log,
             succession::recorder& records);
  hub_driver(const hub_driver&) = delete;
  hub_driver& operator=(const hub_driver&) = delete;
  ~hub_driver() = default;

  /// Call after anything that may have given the hub work or an earlier deadline. Does none of the
  /// work.
  void schedule();

 private:
  void work();
  void arm_deadline();

  hub& hub_;
  turn_loop& loop_;
  member_log& log_;
  succession::recorder& recorder_;
  turn_loop::job work_;
  asio::steady_timer timer_;
  std::optional<core::time_point> armed_for_;
};

}  // namespace gpushm::broker_detail
