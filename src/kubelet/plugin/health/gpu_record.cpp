// SPDX-License-Identifier: Apache-2.0
#include "kubelet/plugin/health/gpu_record.hpp"

#include <utility>

#include "driver/xid.hpp"

namespace gpushm::plugin {

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
      return std::string("recovery action ").append(std::to_string(action));
  }
}

}  // namespace

std::string xid_text(std::uint64_t number) {
  std::string text = "Xid ";
  text.append(std::to_string(number));
  if (const driver::known_xid* const known = driver::find_xid(number)) {
    text.append(" (").append(known->meaning).append(")");
  }
  return text;
}

void gpu_record::was_critical(std::string why, bool only_a_reset_mends, time_point now) {
  critical_ = std::move(why);
  only_a_reset_mends_ = only_a_reset_mends_ || only_a_reset_mends;
  when_ = now;
}

void gpu_record::forget() {
  critical_.clear();
  only_a_reset_mends_ = false;
}

void gpu_record::xid(std::uint64_t number, time_point now) {
  was_critical(xid_text(number), driver::is_xid_of(driver::xid_kind::needs_reset, number), now);
}

void gpu_record::memory_error(time_point now) {
  was_critical("uncorrected memory error", true, now);
}

void gpu_record::looked(const gpu_status& seen, time_point now, std::chrono::milliseconds quiet) {
  const bool came_back = seen.answers && !last_.answers;
  const bool was_asked = last_.action.value_or(0) != 0;
  // A GPU that does not answer reports no recovery action.
  const std::optional<unsigned int> action = seen.answers ? seen.action : last_.action;
  const bool asks_no_more = was_asked && action && *action == 0;
  last_ = seen;
  last_.action = action;
  const bool mended = came_back || asks_no_more;
  const bool quiet_again =
      !critical_.empty() && now - when_ >= quiet && (!only_a_reset_mends_ || action.has_value());
  if (seen.answers && action.value_or(0) == 0 && (mended || quiet_again)) {
    forget();
  }
}

gpu_health gpu_record::health() const {
  if (!last_.answers) {
    return {false, std::string("it does not answer: ").append(last_.why_not)};
  }
  if (last_.action.value_or(0) != 0) {
    std::string why = "the driver requests ";
    why.append(action_text(*last_.action));
    if (!critical_.empty()) {
      why.append(" after ").append(critical_);
    }
    return {false, why};
  }
  return {critical_.empty(), critical_};
}

}  // namespace gpushm::plugin
