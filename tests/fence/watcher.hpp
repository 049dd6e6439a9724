// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/fence/victim.hpp"

namespace gpushm::fence_rounds {

/// One kind of death, with one victim or several that end together.
struct setting {
  std::string name;
  victim_options victim;
  unsigned victims = 1;
  bool is_fenced = true;  ///< memory must not change after pidfd and life pipe
};

/// Observations of one victim. Times are milliseconds after its end; nullopt: not during the round.
struct observation {
  std::uint32_t files = 0;                 ///< driver files that it had
  std::uint64_t changes_before = 0;        ///< sweeps that saw a change of its memory
  std::optional<double> socket_end;        ///< end-of-file on its socket
  std::optional<double> pidfd;             ///< its pidfd became readable
  std::optional<double> life;              ///< the last write end of the life pipe was closed
  std::optional<double> last_change;       ///< upper bound of the time of the last change
  bool changed_after_pidfd = false;        ///< two sweeps that began after it differ
  bool changed_after_both = false;         ///< the same, after the pidfd and the life pipe
  std::optional<double> child_ended;       ///< the watcher killed its child
  std::optional<double> last_after_child;  ///< last change, in milliseconds after that
};

/// Runs one round. Throws std::runtime_error with the reason if a victim cannot run.
[[nodiscard]] std::vector<observation> run_round(const setting& setting);

/// Returns why this process has no CUDA driver; empty if it has one. Call it in a separate process
/// or before `run_round`: victims are executed, not forked with this process's context.
[[nodiscard]] std::string why_no_gpu();

/// Passes the options of a victim on its command line; `main` parses them.
[[nodiscard]] std::string to_text(const victim_options& options);
[[nodiscard]] victim_options from_text(const std::string& text);

}  // namespace gpushm::fence_rounds
