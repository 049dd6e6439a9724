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

#include "base/segments/device_loss.hpp"
#include "base/segments/xid.hpp"

namespace gpushm::device_plugin {

struct health_options {
  /// Xids caused by application errors; they do not affect the GPU's health.
  std::set<std::uint64_t> application_xids = base::application_xids();
  bool any_xid = true;  ///< false: Xids are ignored; GPUs that do not respond are still unhealthy
  /// Upper bound of one wait for events, and so of the delay in detecting a stop or a GPU that does
  /// not respond.
  std::chrono::milliseconds wait{1'000};
  /// Poll interval for the GPUs' state and MIG layout.
  std::chrono::milliseconds poll_interval{5'000};
  /// A GPU recovers after this time without a critical Xid.
  std::chrono::milliseconds quiet{300'000};
  bool operator==(const health_options&) const = default;
};

/// Changes which Xids are application errors: "48" adds one, "-31" removes one, "all" and "xids"
/// ignore every Xid; commas separate several. Throws `error` (invalid_argument), with `setting` as
/// the name of the setting; then nothing is changed.
void change_application_xids(health_options& options,
                             std::string_view text,
                             std::string_view setting);

struct gpu_health {
  bool healthy = true;
  std::string reason;  ///< empty while healthy
  bool operator==(const gpu_health&) const = default;
};

/// Watches the GPUs of NVML: a thread waits for NVML events and polls each GPU.
///
/// A GPU is unhealthy after a critical Xid (any that is not an application's), after an uncorrected
/// memory error, while it does not respond, and while the driver requests a reset or a reboot. It
/// is healthy again when it responds, the driver requests no action, and
///   - a reset was observed: the GPU was lost and came back, or the driver no longer requests the
///     reset that it requested; or
///   - no critical event occurred for `quiet`. With a driver that does not report recovery actions
///     (before 560), that is not enough after uncorrected memory errors and after Xids that only a
///     reset fixes (`base::xid_kind::needs_reset`).
/// A new monitor has no history other than what the driver reports.
///
/// The same rules apply to a MIG instance for errors that NVML reports with the instance's ids: its
/// GPU and its siblings stay healthy.
///
/// Thread-safety: shared objects: safe.
class health_monitor {
 public:
  /// Called on the monitor's thread; must not throw, and not destroy the monitor.
  struct listener {
    /// A GPU, or a MIG instance alone, became healthy or unhealthy.
    std::function<void(const std::string& uuid, const gpu_health& now)> health = {};
    /// The set of GPUs, their MIG layout or the driver changed: take an inventory and plan again.
    std::function<void(const std::string& setting)> layout_changed = {};
    /// The memory on a GPU, or on a MIG instance alone, is gone or can be wrong: after an Xid that
    /// is fatal for memory (`base::is_fatal_for_memory`, unless Xids of that number are ignored),
    /// while NVML says that the GPU is lost, and after a reset that was observed. May be called
    /// twice for one loss. An unhealthy GPU is not lost.
    std::function<void(const base::lost_device& device)> lost = {};
  };

  /// Starts immediately; without a driver, retries until one is available. Throws only
  /// std::bad_alloc and std::system_error (no thread).
  health_monitor(health_options options, listener listener);
  health_monitor(const health_monitor&) = delete;
  health_monitor& operator=(const health_monitor&) = delete;
  /// Blocks for up to `wait` plus one second. A thread that is still blocked in NVML then is
  /// detached: see `any_abandoned`. The listener is not called afterwards in either case.
  ~health_monitor();

  /// The health of every GPU ever seen, and of MIG instances with errors of their own, by UUID; for
  /// a plan created in the meantime.
  [[nodiscard]] std::map<std::string, gpu_health> gpus() const;
  /// The time since NVML last completed a call.
  [[nodiscard]] std::chrono::milliseconds unresponsive_for() const noexcept;

  /// Whether a detached thread of this process may hang in NVML: the process must then end by
  /// _exit, without unloading the libraries that the thread executes.
  [[nodiscard]] static bool any_abandoned() noexcept;

 private:
  class impl;
  std::shared_ptr<impl> impl_;  // shared with the thread
};

}  // namespace gpushm::device_plugin
