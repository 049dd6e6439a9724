// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "kubelet/plugin/health/monitor.hpp"

namespace gpushm::plugin {

/// What one look at a board came to.
struct board_look {
  bool answers = true;
  std::string why_not = {};  ///< of a board that does not answer
  std::optional<unsigned int> action =
      {};  ///< what the driver wants to be done, 0: nothing; if it tells
};

/// Why a board is healthy or not, by the rules of `health_monitor`. Time is what the caller says.
///
/// Distinct objects: safe. Shared objects: unsafe.
class board_record {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  /// A critical Xid.
  void xid(std::uint64_t number, time_point now);
  void memory_error(time_point now);
  void looked(const board_look& seen, time_point now, std::chrono::milliseconds quiet);

  [[nodiscard]] board_health health() const;
  /// By the last look.
  [[nodiscard]] bool answers() const noexcept { return last_.answers; }

 private:
  void was_critical(std::string why, bool only_a_reset_mends, time_point now);
  void forget();

  board_look last_;
  std::string critical_;  ///< what happened; empty: nothing
  bool only_a_reset_mends_ = false;
  time_point when_;
};

/// "Xid 79 (the GPU has fallen off the bus)".
[[nodiscard]] std::string xid_text(std::uint64_t number);

}  // namespace gpushm::plugin
