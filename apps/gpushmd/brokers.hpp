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
  std::vector<std::string> domains;  ///< the configured domains, which always exist
  /// Per domain. `memory_bytes` (0: no limit) and `descriptors` apply to all domains together, so
  /// that a full domain leaves room for the others.
  broker_limits limits = {};
  std::uint64_t descriptors = 0;  ///< 0: no limit
  bool accept_fake_chunks = false;
  /// Interval of checking sockets and of retrying domains that could not be served.
  std::chrono::milliseconds check_interval{5'000};
  /// Timeout for a broker to stop, and for another call that opens or closes a domain.
  std::chrono::milliseconds timeout{5'000};
};

/// The brokers of this node, one per domain. A domain's directory is `<run_dir>/d/<domain>`; any
/// process that has it mounted can connect under any uid, so `<run_dir>/d` is accessible only to
/// this process's user. Locks are in `<run_dir>/locks`, which no pod mounts. A domain that cannot
/// be served (its lock is held, its directory belongs to another user) does not delay the others:
/// it is retried, logged and reported by `not_ready` and `readings`. A domain whose socket
/// disappears is served again as soon as it has no clients and no segments. Thread-safety: distinct
/// objects: safe, with distinct directories; shared objects: safe. Calls for different domains do
/// not wait for each other.
class broker_set final : public dra::domains {
 public:
  /// Serves the configured domains. Throws `error` if no domain can be served: another agent runs
  /// here (address_in_use), or the directories cannot be created or belong to another user.
  explicit broker_set(broker_set_options options);
  broker_set(const broker_set&) = delete;
  broker_set& operator=(const broker_set&) = delete;
  /// Stops all brokers concurrently. A broker that has not stopped within `timeout` is abandoned:
  /// see `any_abandoned`.
  ~broker_set() override;

  std::string open(const std::string& domain) override;
  void close(const std::string& domain) override;
  /// The domains of claims. Configured domains, which cannot be closed, are not included.
  [[nodiscard]] std::vector<std::string> list() const override;

  /// Does not wait for brokers that are starting or stopping.
  [[nodiscard]] std::vector<metrics::domain_reading> readings() const;
  /// A domain that is not served and the reason; empty: all are served.
  [[nodiscard]] std::string not_ready() const;
  /// The directory that contains the domains' directories.
  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }

  /// Whether a broker of this process did not stop in time; the process must then exit by _exit.
  [[nodiscard]] static bool any_abandoned() noexcept;

 private:
  struct served {
    std::optional<broker> serving;
    bool busy = false;  ///< a thread opens, closes or repairs it, without the mutex
    dev_t device = 0;   ///< of the socket
    ino_t inode = 0;
    std::string problem;  ///< empty: none
  };
  class busy_guard;

  [[nodiscard]] std::string directory_of(const std::string& domain) const;
  [[nodiscard]] std::string lock_path_of(const std::string& domain) const;
  [[nodiscard]] bool is_configured(const std::string& domain) const;
  void lock_node();
  void remove_empty_directories() const;
  /// Creates the directory and starts the broker. Called without the mutex.
  void start(const std::string& domain, served& into) const;
  /// Records a problem, and logs it if it is new. Called with the mutex.
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
  std::map<std::string, served>
      open_;  // guarded by mutex_, except for busy domains, of which only `problem` is
  std::jthread checker_;
};

}  // namespace gpushm::agent
