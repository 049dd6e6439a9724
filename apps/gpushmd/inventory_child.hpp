// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/child_process.hpp"
#include "base/wakeup.hpp"
#include "kubelet/plugin/plan/inventory.hpp"

namespace gpushm::agent {

/// The argument with which this program takes an inventory, writes it to standard output and ends.
inline constexpr const char* inventory_argument = "--print-inventory";
/// What it does then. `library`: as of `plugin::take_inventory`. The exit status.
int print_inventory(const std::string& library);

[[nodiscard]] std::string inventory_text(const plugin::inventory& from);
/// Nothing when the text is not what `inventory_text` makes.
[[nodiscard]] std::optional<plugin::inventory> inventory_of_text(const std::string& text);

/// Takes inventories in a process of its own, because NVML can block for minutes, also where no
/// signal ends it: no more than the child then hangs.
///
/// Distinct objects: safe. Shared objects: unsafe, but for `cancel`.
class inventory_child {
 public:
  /// `library`: NVML, where the linker finds none.
  explicit inventory_child(std::string library);
  inventory_child(const inventory_child&) = delete;
  inventory_child& operator=(const inventory_child&) = delete;
  ~inventory_child();

  /// Starts to ask. Throws `error` (timed_out) while an earlier child cannot be ended.
  void start();
  /// What came of it; nothing when `until` comes first: then wait again, or `stop`. Throws `error`:
  /// driver_error when the child ended without an answer, timed_out after `cancel`.
  [[nodiscard]] std::optional<plugin::inventory> wait(base::deadline until);
  /// Kills the child. Blocks for at most a second.
  void stop() noexcept;
  /// `wait` ends, now and from now on.
  void cancel() noexcept { cancelled_.signal(); }

 private:
  std::string library_;
  base::wakeup cancelled_;
  std::optional<base::child_process> child_;
  std::string text_;  // what came so far
};

}  // namespace gpushm::agent
