// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpushm/broker.hpp"
#include "testing/container/options.hpp"
#include "testing/fake_driver/fake_gpus.hpp"
#include "testing/process/child.hpp"
#include "testing/process/temp_dir.hpp"

namespace gpushm_tests {

/// A machine with GPUs, real ones or two fake ones, and the documents that gpushm writes about it.
/// A fake one's driver is a tree with the fake libraries under names with a version.
class cdi_machine {
 public:
  /// Throws `harness_error` where a fake one cannot be made.
  explicit cdi_machine(bool real);

  /// Where its driver and its nodes are, as options of `gpushm cdi generate` and of the agent; none
  /// for a real machine.
  [[nodiscard]] std::vector<std::string> places() const;
  /// `gpushm cdi generate` for it, with more options.
  [[nodiscard]] gpushm_testing::run_result generate(const std::vector<std::string>& more) const;
  /// A broker of the domain "default" below `domains`, and the share device's document that leads
  /// there as `document`. Tells GoogleTest of a failure.
  [[nodiscard]] gpushm::broker serve_and_share(const std::string& domains,
                                               const std::string& document) const;
  /// What a container needs of the fake driver beyond what any driver needs: its GPUs' memory, and
  /// the variables that lead to it. Empty for a real machine.
  [[nodiscard]] std::vector<gpushm_testing::bind_mount> memory() const;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> environment() const;

  /// What of the driver needs libraries that an image must have.
  [[nodiscard]] std::vector<std::string> driver_libraries() const;
  /// Two GPUs may be used in one container.
  [[nodiscard]] bool has_two() const;
  [[nodiscard]] bool is_fake() const { return fake_.has_value(); }
  [[nodiscard]] const gpushm::fake::fake_gpus& fake() const { return fake_.value(); }

 private:
  std::optional<gpushm::fake::fake_gpus> fake_;
  gpushm_testing::temp_dir tree_{0755};
};

/// The arguments of a role: `producer`, or `consumer`, which reads, checks, and writes an answer.
[[nodiscard]] std::vector<std::string> role_arguments(const std::string& role, int ordinal);

/// Waits for the events of both roles and has them check each other's bytes; both have ended well
/// when this returns, or a failure has been told.
void expect_roles_share(gpushm_testing::child& producer, gpushm_testing::child& consumer);

}  // namespace gpushm_tests
