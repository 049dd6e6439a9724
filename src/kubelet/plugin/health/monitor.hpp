// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "driver/xid.hpp"

namespace gpushm::plugin {

struct health_options {
  /// What programs cause by themselves: the board is none the worse.
  std::set<std::uint64_t> application_xids = driver::application_xids();
  bool any_xid = true;  ///< false: Xids are not heeded; boards that do not answer still are
  /// How long one wait for events lasts at most: how late a stop and a board that says nothing are
  /// noticed.
  std::chrono::milliseconds wait{1'000};
  /// How often boards are asked whether they answer and how they are cut.
  std::chrono::milliseconds look_every{5'000};
  /// A board recovers when no critical Xid came for so long.
  std::chrono::milliseconds quiet{300'000};
  bool operator==(const health_options&) const = default;
};

/// Changes which Xids are an application's: "48" adds one, "-31" takes one out, "all" and "xids"
/// let all be; several with commas between them. Throws `error` (invalid_argument); then nothing is
/// changed. `what` names the setting there.
void change_application_xids(health_options& options, std::string_view text, std::string_view what);

struct board_health {
  bool healthy = true;
  std::string reason;  ///< empty while healthy
  bool operator==(const board_health&) const = default;
};

/// Watches the boards of NVML: a thread that waits for its events, and looks at each board now and
/// then.
///
/// A board is unhealthy after a critical Xid (any that is not an application's), after an
/// uncorrected memory error, while it does not answer, and while the driver says that it wants a
/// reset or a reboot. It is healthy again when it answers, the driver asks for nothing, and
///   - a reset was seen: the board was lost and came back, or the driver asked for a reset and does
///   no
///     more; or
///   - it has been quiet for `quiet`. Where the driver does not tell what it wants (before 560)
///   that
///     is not enough after Xids that only a reset mends (48, 62, 64, 74, 79, 92, 95, 119, 120, 140,
///     143) and uncorrected memory errors.
/// A monitor that starts anew knows nothing of before but what the driver says.
///
/// Shared objects: safe.
class health_monitor {
 public:
  /// Called on the monitor's thread; must not throw, and not destroy the monitor.
  struct listener {
    /// A board became healthy or unhealthy.
    std::function<void(const std::string& board_uuid, const board_health& now)> health = {};
    /// Boards, how they are cut, or the driver are not what they were: take an inventory and plan
    /// anew.
    std::function<void(const std::string& what)> layout_changed = {};
  };

  /// Starts at once, also without a driver: it is then looked for again and again. Throws nothing
  /// but std::bad_alloc and std::system_error (no thread).
  health_monitor(health_options options, listener to);
  health_monitor(const health_monitor&) = delete;
  health_monitor& operator=(const health_monitor&) = delete;
  /// Takes up to `wait` and a second. A thread that NVML does not let go by then is left behind:
  /// see `any_left_behind`. The listener is not called any more either way.
  ~health_monitor();

  /// Of every board that was ever seen, by UUID; for a plan that was made meanwhile.
  [[nodiscard]] std::map<std::string, board_health> boards() const;
  /// For how long NVML has not come back from what it was asked last.
  [[nodiscard]] std::chrono::milliseconds silent_for() const noexcept;

  /// Whether this process has a thread that hangs in NVML: then it must end by _exit, without
  /// taking down the libraries that the thread is in.
  [[nodiscard]] static bool any_left_behind() noexcept;

 private:
  class impl;
  std::shared_ptr<impl> impl_;  // also its thread's
};

}  // namespace gpushm::plugin
