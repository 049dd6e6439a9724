// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gpushm/broker.hpp"
#include "kubelet/dra/domains.hpp"
#include "metrics/agent_metrics.hpp"

namespace gpushm::agent {

struct broker_set_options {
  std::string run_dir = "/run/gpushm";
  std::vector<std::string> domains;  ///< that are always there
  broker_limits limits = {};
  bool accept_fake_chunks = false;
};

/// The brokers of this node, one a domain. A domain's directory is `<run_dir>/d/<domain>`; whoever
/// has it mounted can connect under any uid, so `<run_dir>/d` is closed to everybody but this
/// process's user.
///
/// Distinct objects: safe. Shared objects: safe.
class broker_set final : public dra::domains {
 public:
  /// Serves the domains that are always there. Throws `error`.
  explicit broker_set(broker_set_options options);
  ~broker_set() override = default;

  std::string open(const std::string& domain) override;
  void close(const std::string& domain) override;
  /// Those of claims: the ones that are always there are nobody's to close.
  [[nodiscard]] std::vector<std::string> list() const override;

  [[nodiscard]] std::vector<metrics::domain_reading> readings() const;
  /// Where the domains' directories are.
  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }

 private:
  [[nodiscard]] std::string directory_of(const std::string& domain) const;
  void start(const std::string& domain);

  broker_set_options options_;
  std::string directory_;
  mutable std::mutex mutex_;
  std::map<std::string, broker> open_;  // guarded by mutex_
};

}  // namespace gpushm::agent
