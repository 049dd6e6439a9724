// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/gpushmd/metrics/agent_metrics.hpp"
#include "base/unique_fd.hpp"
#include "gpushm/broker.hpp"
#include "kubelet/dra/domains.hpp"

namespace gpushm::agent {

struct broker_set_options {
  std::string run_dir = "/run/gpushm";
  std::vector<std::string> domains;  ///< that are always there
  /// Of each domain. `memory_bytes` (0: no limit) and `descriptors` are of all domains together, so
  /// that one that is full leaves room for the others.
  broker_limits limits = {};
  std::uint64_t descriptors = 0;  ///< 0: no limit
  bool accept_fake_chunks = false;
  /// How often sockets are looked at, and what could not be served is tried again.
  std::chrono::milliseconds check_every{5'000};
  /// For a broker to end, and for a domain that another call opens or closes.
  std::chrono::milliseconds patience{5'000};
};

/// The brokers of this node, one a domain. A domain's directory is `<run_dir>/d/<domain>`; every
/// process that has it mounted can connect under any uid, so `<run_dir>/d` is closed to all but
/// this process's user. Locks are in `<run_dir>/locks`, which no pod mounts.
///
/// A domain that cannot be served (its lock is held, its directory is another user's) does not keep
/// the others waiting: it is tried again, logged and part of `not_ready` and `readings`. A domain
/// whose socket disappears is served again as soon as no client is connected and it holds nothing.
///
/// Distinct objects: safe, with directories of their own. Shared objects: safe; calls for different
/// domains do not wait for each other.
class broker_set final : public dra::domains {
 public:
  /// Serves the domains that are always there. Throws `error` when no domain at all could be
  /// served: another agent runs here (address_in_use), the directories cannot be made or are
  /// another user's.
  explicit broker_set(broker_set_options options);
  broker_set(const broker_set&) = delete;
  broker_set& operator=(const broker_set&) = delete;
  /// Ends all brokers at the same time. One that has not ended after `patience` is left behind: see
  /// `any_left_behind`.
  ~broker_set() override;

  std::string open(const std::string& domain) override;
  void close(const std::string& domain) override;
  /// Those of claims: the ones that are always there cannot be closed.
  [[nodiscard]] std::vector<std::string> list() const override;

  /// Does not wait for brokers that start or end.
  [[nodiscard]] std::vector<metrics::domain_reading> readings() const;
  /// Which domain is not served, and why; empty: all are.
  [[nodiscard]] std::string not_ready() const;
  /// Where the domains' directories are.
  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }

  /// Whether this process has a broker that did not end in time: then it must end by _exit.
  [[nodiscard]] static bool any_left_behind() noexcept;

 private:
  struct served {
    std::optional<broker> serving;
    bool busy = false;  ///< a thread opens, closes or repairs it, without the mutex
    dev_t device = 0;   ///< of the socket
    ino_t inode = 0;
    std::string problem;  ///< empty: none
  };
  class hold;

  [[nodiscard]] std::string directory_of(const std::string& domain) const;
  [[nodiscard]] std::string lock_path_of(const std::string& domain) const;
  [[nodiscard]] bool is_always_there(const std::string& domain) const;
  void lock_node();
  void remove_empty_directories() const;
  /// Makes the directory and starts the broker; without the mutex.
  void start(const std::string& domain, served& into) const;
  /// With the mutex: remembers what is wrong, and logs it when it is new.
  static void note_problem(const std::string& domain, served& of, const std::string& problem);
  void check_all();
  void check(const std::string& domain);

  const broker_set_options options_;
  const std::string directory_;
  const std::string locks_;
  const std::shared_ptr<const broker_budget> budget_;
  base::unique_fd node_lock_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, served> open_;  // guarded by mutex_, but of a busy one only `problem`
  std::jthread checker_;
};

}  // namespace gpushm::agent
