// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "gpushm/client.hpp"
#include "gpushm/gpushm.h"

extern "C" {
/// Not an interface: libgpushm-broker.so logs through the sink that the user installed in
/// libgpushm.so of the same version. Passes on one line immediately.
GPUSHM_API void gpushm_private_log(gpushm_log_level level, gpushm_string text) noexcept;
}

namespace gpushm::base {

/// Passes `text` to the sink that `gpushm_set_log_sink` installed, with control and invisible
/// characters escaped (`printable_lines` in base/text/text.hpp); does nothing if there is none.
/// Deferred while a `held_log_lines` of this thread exists. Never throws. Thread-safe.
void log(log_level level, std::string_view text) noexcept;

/// Holds this thread's log lines while it exists, and then passes them to the sink. The sink is
/// foreign code: if called with a lock held, it deadlocks when it calls the library, or waits for
/// one of its own locks while another thread that holds it calls the library. So every public
/// function that may log, and every iteration of a thread that takes locks, begins with one. A
/// nested one does nothing. Keeps at most 256 lines and counts the rest.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe; a local variable, declared before
/// any lock.
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
  std::size_t dropped_ = 0;
};

}  // namespace gpushm::base
