// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "gpushm/client.hpp"
#include "gpushm/gpushm.h"

extern "C" {
/// Not an interface: what libgpushm-broker.so logs goes to the sink that the user installed in
/// libgpushm.so of the same version. Hands over one line, at once.
GPUSHM_API void gpushm_private_log(gpushm_log_level level, gpushm_string text) noexcept;
}

namespace gpushm::base {

/// Hands `text` to the sink that `gpushm_set_log_sink` installed, without characters that command
/// a terminal or cannot be seen (`printable_lines` in base/text.hpp); nothing when there is none.
/// While a `held_log_lines` of this thread lives, when that ends. Never throws. Thread-safe.
void log(log_level level, std::string_view text) noexcept;

/// Keeps this thread's log lines while it lives, and then hands them to the sink. The sink is
/// foreign code: called with a lock held, it deadlocks when it calls the library, or waits for a
/// lock of its own that another thread holds while that calls the library. So every public function
/// under which anything logs, and every round of a thread that takes locks, begins with one. One
/// within another does nothing. Keeps at most 256 lines and counts the others.
///
/// Distinct objects: safe. Shared objects: unsafe; a local variable, declared before any lock.
class held_log_lines {
 public:
  held_log_lines() noexcept;
  held_log_lines(const held_log_lines&) = delete;
  held_log_lines& operator=(const held_log_lines&) = delete;
  ~held_log_lines();

 private:
  friend void log(log_level level, std::string_view text) noexcept;
  void keep(log_level level, std::string_view text) noexcept;

  struct line {
    log_level level;
    std::string text;
  };
  std::vector<line> lines_;
  std::size_t left_out_ = 0;
};

}  // namespace gpushm::base
