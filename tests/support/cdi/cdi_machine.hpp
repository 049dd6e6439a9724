// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpushm/broker.hpp"
#include "tests/support/container/options.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {

/// A machine with GPUs, real ones or two fake ones, and the CDI documents that gpushm generates for
/// it. The fake driver is a tree with the fake libraries under versioned names.
class cdi_machine {
 public:
  /// Throws `harness_error` if a fake machine cannot be created.
  explicit cdi_machine(bool real);

  /// The paths of its driver and nodes as options of `gpushm cdi generate` and of the agent; none
  /// for a real machine.
  [[nodiscard]] std::vector<std::string> places() const;
  /// Runs `gpushm cdi generate` for it, with more options.
  [[nodiscard]] gpushm_testing::run_result generate(const std::vector<std::string>& more) const;
  /// Starts a broker of the domain "default" below `domains`, and writes the share device's
  /// document for it as `document`. Reports failures to GoogleTest.
  [[nodiscard]] gpushm::broker serve_and_share(const std::string& domains,
                                               const std::string& document) const;
  /// The edits that only the fake driver needs: its GPUs' memory, and the variables that locate it.
  /// Empty for a real machine.
  [[nodiscard]] std::vector<gpushm_testing::bind_mount> memory() const;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> environment() const;

  /// Driver files whose dependencies the image must provide.
  [[nodiscard]] std::vector<std::string> driver_libraries() const;
  /// True if two GPUs can be used in one container.
  [[nodiscard]] bool has_two() const;
  [[nodiscard]] bool is_fake() const { return fake_.has_value(); }
  [[nodiscard]] const gpushm::fake::fake_gpus& fake() const { return fake_.value(); }

 private:
  std::optional<gpushm::fake::fake_gpus> fake_;
  gpushm_testing::temp_dir tree_{0755};
};

/// The arguments of a role: `producer`, or `consumer`, which reads, checks, and writes an answer.
[[nodiscard]] std::vector<std::string> role_arguments(const std::string& role, int ordinal);

/// Waits for the events of both roles and makes them check each other's bytes. On return both
/// exited successfully or a failure was reported.
void expect_roles_share(gpushm_testing::child& producer, gpushm_testing::child& consumer);

}  // namespace gpushm_tests
