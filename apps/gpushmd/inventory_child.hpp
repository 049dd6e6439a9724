// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/process/child_process.hpp"
#include "base/process/wakeup.hpp"
#include "kubernetes/device_plugin/plan/inventory.hpp"

namespace gpushm::agent {

/// With this argument the program takes an inventory, writes it to standard output and exits.
inline constexpr const char* inventory_argument = "--print-inventory";
/// Implements that argument. `library`: as in `gpushm::device_plugin::take_inventory`. Returns the
/// exit status.
int print_inventory(const std::string& library);

[[nodiscard]] std::string inventory_text(const gpushm::device_plugin::inventory& document);
/// Returns nullopt if the text is not an output of `inventory_text`.
[[nodiscard]] std::optional<gpushm::device_plugin::inventory> inventory_of_text(
    const std::string& text);

/// Takes inventories in a child process, because NVML can block for minutes, even uninterruptibly;
/// only the child then hangs. Thread-safety: distinct objects: safe; shared objects: unsafe, except
/// `cancel`.
class inventory_child {
 public:
  /// `library`: the path of NVML, used if the linker does not find it.
  explicit inventory_child(std::string library);
  inventory_child(const inventory_child&) = delete;
  inventory_child& operator=(const inventory_child&) = delete;
  ~inventory_child();

  /// Starts an inventory. Throws `error` (timed_out) while an earlier child cannot be killed.
  void start();
  /// Blocks until the inventory is complete. Returns nullopt at `until`; the caller then waits
  /// again or calls `stop`. Throws `error`: driver_error if the child exited without a result,
  /// timed_out after `cancel`.
  [[nodiscard]] std::optional<gpushm::device_plugin::inventory> wait(base::deadline until);
  /// Kills the child. Blocks for at most a second.
  void stop() noexcept;
  /// Makes current and later calls of `wait` return.
  void cancel() noexcept { cancelled_.signal(); }

 private:
  std::string library_;
  base::wakeup cancelled_;
  std::optional<base::child_process> child_;
  std::string text_;  // output received so far
};

}  // namespace gpushm::agent
