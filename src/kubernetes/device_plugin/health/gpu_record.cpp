// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/health/gpu_record.hpp"

#include <fmt/core.h>

#include <utility>

#include "base/segments/xid.hpp"

namespace gpushm::device_plugin {

namespace {

// By NVML's values of nvmlDeviceGpuRecoveryAction_t.
std::string action_text(unsigned int action) {
  switch (action) {
    case 1:
      return "a reset of the GPU";
    case 2:
      return "a reboot of the node";
    case 3:
      return "draining of its peer-to-peer traffic";
    case 4:
      return "a drain and a reset";
    default:
      return fmt::format("recovery action {}", action);
  }
}

/// Whether the driver withdraws this request only after a reset. Draining of peer-to-peer traffic
/// leaves the memory as it is.
bool is_reset(unsigned int action) {
  constexpr unsigned int gpu_reset = 1;
  constexpr unsigned int node_reboot = 2;
  constexpr unsigned int drain_and_reset = 4;
  return action == gpu_reset || action == node_reboot || action == drain_and_reset;
}

}  // namespace

void gpu_record::record_critical(std::string why, bool needs_reset, time_point now) {
  critical_ = std::move(why);
  needs_reset_ = needs_reset_ || needs_reset;
  when_ = now;
}

void gpu_record::clear_critical() {
  critical_.clear();
  needs_reset_ = false;
}

void gpu_record::xid(std::uint64_t number, time_point now) {
  record_critical(
      base::xid_text(number), base::is_xid_of(base::xid_kind::needs_reset, number), now);
}

void gpu_record::memory_error(time_point now) {
  record_critical("uncorrected memory error", true, now);
}

void gpu_record::update(const gpu_status& seen, time_point now, std::chrono::milliseconds quiet) {
  const bool is_back = seen.responds && !last_.responds;
  const bool had_request = last_.action.value_or(0) != 0;
  // A GPU that does not respond reports no recovery action.
  const std::optional<unsigned int> action = seen.responds ? seen.action : last_.action;
  const bool request_withdrawn = had_request && action && *action == 0;
  was_reset_ = (is_back && last_.awaits_reset) ||
               (seen.responds && request_withdrawn && is_reset(*last_.action));
  last_ = seen;
  last_.action = action;
  const bool recovered = is_back || request_withdrawn;
  const bool quiet_passed =
      !critical_.empty() && now - when_ >= quiet && (!needs_reset_ || action.has_value());
  if (seen.responds && action.value_or(0) == 0 && (recovered || quiet_passed)) {
    clear_critical();
  }
}

gpu_health gpu_record::health() const {
  if (!last_.responds) {
    return {false, "it does not respond: " + last_.reason};
  }
  if (last_.action.value_or(0) != 0) {
    return {false,
            fmt::format("the driver requests {}{}{}",
                        action_text(*last_.action),
                        critical_.empty() ? "" : " after ",
                        critical_)};
  }
  return {critical_.empty(), critical_};
}

}  // namespace gpushm::device_plugin
