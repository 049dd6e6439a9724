// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "apps/gpushmd/metrics/broker_reading.hpp"
#include "base/process/busy_names.hpp"
#include "domains/protocol/private_socket.hpp"
#include "kubernetes/dra/claims/domains.hpp"

namespace gpushm::agent {

/// The domains of this node, which gpushm-brokerd serves. Those that this object has opened are
/// opened again if gpushm-brokerd has lost them. A broker that is being replaced is waited for; one
/// that does not run is reported by `not_ready`, and asked again.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class node_domains final : public dra::domains {
 public:
  struct options {
    std::string run_dir = "/run/gpushm";
    std::vector<std::string> domains;  ///< which always exist
    std::chrono::milliseconds check_interval{2'000};
    std::chrono::milliseconds timeout{10'000};  ///< of a call that opens or closes a domain
    /// How long a configured domain can be away before it is `unserved`; longer than a takeover.
    std::chrono::milliseconds grace{10'000};
  };
  explicit node_domains(options chosen);
  node_domains(const node_domains&) = delete;
  node_domains& operator=(const node_domains&) = delete;
  ~node_domains() override;

  /// Blocks and throws as `private_socket::open` and `close`. Calls for one domain, and its check,
  /// wait for each other, up to the timeout each.
  std::string open(const std::string& domain) override;
  /// Throws `error` (invalid_argument) for a configured domain.
  void close(const std::string& domain) override;
  /// The domains of claims: all but the configured ones. Throws as `private_socket::read`.
  [[nodiscard]] std::vector<std::string> list() const override;

  /// What gpushm-brokerd and its open domains count. Blocks for a second at most.
  [[nodiscard]] metrics::broker_reading read_broker() const;
  /// Why not every domain is served, as of the last check; empty: all are. Does not block.
  [[nodiscard]] std::string not_ready() const;
  /// The configured domains that have not been served for `grace` (of this object's life, if they
  /// never were), each with the reason. Does not block.
  [[nodiscard]] std::map<std::string, std::string> unserved() const;

 private:
  [[nodiscard]] bool is_configured(const std::string& domain) const;
  [[nodiscard]] std::set<std::string> wanted() const;
  /// Blocks for the timeout at most; throws `error` (timed_out) then.
  [[nodiscard]] base::busy_names::hold take(const std::string& domain);
  void note(const std::string& problem);
  /// Stores the result of a check. `reasons`: by domain, why it is not served.
  void judge(const std::map<std::string, std::string>& reasons);
  void check();

  const options options_;
  const gpushm::domains::private_socket broker_;
  mutable std::mutex mutex_;
  std::condition_variable_any stopping_;                      // ends a wait of checker_
  std::set<std::string> wanted_;                              // guarded by mutex_
  std::string problem_ = "gpushm-brokerd was not asked yet";  // guarded by mutex_
  std::map<std::string, std::string> unserved_;               // guarded by mutex_
  std::map<std::string, std::chrono::steady_clock::time_point> served_at_;  // by the checker only
  base::busy_names changing_;  // domains that a thread opens or closes
  std::jthread checker_;
};

}  // namespace gpushm::agent
