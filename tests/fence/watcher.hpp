// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/fence/victim.hpp"

namespace gpushm::fence_rounds {

/// One kind of death, with one or several victims that die together.
struct setting {
  std::string name;
  victim_options victim;
  unsigned victims = 1;
  bool is_fenced = true;  ///< nothing may change after pidfd and life pipe
};

/// What was seen of one victim. Times are milliseconds after it was ended; nothing: not within the
/// time that the round watched.
struct sight {
  std::uint32_t files = 0;            ///< of the driver, that it had
  std::uint64_t changes_before = 0;   ///< sweeps in which its memory had changed before
  std::optional<double> socket_end;   ///< end-of-file on its socket
  std::optional<double> pidfd;        ///< its pidfd was readable
  std::optional<double> life;         ///< no process had the life pipe's write end any more
  std::optional<double> last_change;  ///< the latest moment at which the memory can have changed
  bool changed_after_pidfd = false;   ///< two looks that began after it differ
  bool changed_after_both = false;    ///< the same, after the pidfd and the life pipe
  std::optional<double> child_ended;  ///< its child was killed by the watcher then
  std::optional<double> last_after_child;  ///< last change, in milliseconds after that
};

/// Runs one round. Throws std::runtime_error, with the reason, when a victim cannot do it.
[[nodiscard]] std::vector<sight> run_round(const setting& what);

/// Empty when this process has a CUDA driver; else why not. Call it in a process of its own or
/// before `run_round`: a victim is not forked off this process's context but executed.
[[nodiscard]] std::string why_no_gpu();

/// How victims are told what to be, and what `main` does with it.
[[nodiscard]] std::string to_text(const victim_options& options);
[[nodiscard]] victim_options from_text(const std::string& text);

}  // namespace gpushm::fence_rounds
