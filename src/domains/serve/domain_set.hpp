// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "base/process/busy_names.hpp"
#include "broker/server/running_server.hpp"
#include "core/budget.hpp"
#include "domains/protocol/messages.hpp"
#include "domains/serve/quota_rules.hpp"
#include "domains/serve/start_counts.hpp"
#include "gpushm/broker.hpp"
#include "succession/recorder/takeover_state.hpp"

namespace gpushm::domains {

struct domain_set_options {
  std::string run_dir = "/run/gpushm";
  std::vector<std::string> domains;  ///< the configured domains, which always exist
  std::string version = {};          ///< of this program, for `read_broker`
  /// Per domain. `memory_bytes` (0: no limit) and `descriptors` apply to all domains together, so
  /// that a full domain leaves room for the others.
  broker_limits limits = {};
  std::uint64_t descriptors = 0;  ///< 0: no limit
  /// The file of `quota_rules`, read again when it changes, within `check_interval`; empty:
  /// `set_quotas` sets them.
  std::string quota_file = {};
  bool accept_fake_chunks = false;
  /// How long a domain takes back what was lost with the last process and its keeper.
  std::chrono::milliseconds return_time = succession::segment_ledger::default_return_time;
  /// Interval of checking sockets and of retrying domains that could not be served.
  std::chrono::milliseconds check_interval{5'000};
  /// Timeout for a broker to stop, and for another call that opens or closes a domain.
  std::chrono::milliseconds timeout{5'000};
};

/// Deletes a broker, which frees its memory, unless a successor of this process continues it.
struct deleter_unless_continued {
  bool is_continued = false;
  void operator()(broker_detail::running_server* server) const noexcept {
    if (!is_continued) {
      delete server;  // NOLINT(cppcoreguidelines-owning-memory): a deleter
    }
  }
};
using hosted_broker = std::unique_ptr<broker_detail::running_server, deleter_unless_continued>;

/// The domains of the last process, by their short names in the keeper (`take_predecessor`).
using predecessor = std::map<std::string, succession::takeover_state>;

/// The brokers of this node, one per domain. A domain's directory is `<run_dir>/d/<domain>`; any
/// process that has it mounted can connect under any uid, so `<run_dir>/d` is accessible only to
/// this process's user. Locks are in `<run_dir>/locks`, which no pod mounts. A domain that cannot
/// be served (its lock is held, its directory belongs to another user) does not delay the others:
/// it is retried, logged and reported by `read`. A socket or a directory that has disappeared, or
/// was replaced, is made again within `check_interval`; members stay connected.
///
/// Thread-safety: distinct objects: safe, with distinct directories; shared objects: safe. Calls
/// for different domains do not wait for each other.
class domain_set {
 public:
  /// Binds the sockets of the configured domains and continues those of `before`; nullopt: this
  /// process has no keeper and no successor. Clients can connect, and requests wait for `serve`.
  /// Throws `error` if no domain can be served: the name of a configured one is not valid
  /// (invalid_argument; nothing was changed), another process serves here (address_in_use), or the
  /// directories cannot be created or belong to another user.
  explicit domain_set(domain_set_options options, std::optional<predecessor> before = {});
  domain_set(const domain_set&) = delete;
  domain_set& operator=(const domain_set&) = delete;
  /// Without a keeper, stops all brokers concurrently, which frees their memory; one that has not
  /// stopped within `timeout` is abandoned. With a keeper, leaves them to a successor: the process
  /// must end.
  ~domain_set();

  /// Handles requests from now on. No effect if called again.
  void serve();

  /// Once this returns, clients that have the domain's directory mounted can connect. No effect on
  /// an open domain. Returns the directory's path. Throws `error`.
  std::string open(const std::string& domain);
  /// Closes its clients' connections, frees its segments, removes its directory. For a domain that
  /// is not open, only removes a leftover directory. Throws `error`: invalid_argument for a
  /// configured domain, system_error.
  void close(const std::string& domain);
  /// Open domains and those with a leftover directory, by name. Does not wait for brokers that are
  /// starting or stopping.
  [[nodiscard]] std::vector<reading> read() const;

  /// Replaces the rules for quotas, even in open domains. They are kept for later processes with
  /// this run directory. Throws `error`, and nothing has changed: invalid_argument (the text is
  /// wrong, or there is a `quota_file`), system_error.
  void set_quotas(const std::string& text);
  /// What a domain and those in it use, by level, and the rules. Blocks for `timeout` at most.
  /// Throws `error`: invalid_argument (it is not served), timed_out, broker_unreachable (it ends).
  [[nodiscard]] usages read_usage(const std::string& domain) const;

  /// Counts this process among those that got ready. Call once.
  void count_start(keeper::start_reason why);
  /// About this process. Does not block.
  [[nodiscard]] broker_facts read_broker() const;
  /// What a domain has and has done, by principal, kind of request and budget. Its broker is busy
  /// for a moment in each of several turns. Blocks and throws as `read_usage`.
  [[nodiscard]] domain_statistics read_statistics(const std::string& domain) const;

  /// Some segments of a domain, in its slots from `slot` on. Blocks and throws as `read_usage`.
  [[nodiscard]] segment_page list_segments(const std::string& domain, std::uint32_t slot) const;
  /// Removes a segment if it is persistent and published and no process has it open. Returns false
  /// if that is not so. Blocks and throws as `read_usage`.
  [[nodiscard]] bool remove_unheld(const std::string& domain, gpushm::generation generation) const;

  /// The memory that exists on that GPU is gone: its segments in all domains are `device_lost` when
  /// this returns, also for a later process, and opens report why. Blocks for `timeout` at most.
  /// Throws `error`, and some segments may have the state: invalid_argument, too_many_requests,
  /// timed_out, broker_unreachable (a domain ends).
  void lose_device(const base::lost_device& device);

  /// A request to a domain's event loop that does nothing.
  struct round {
    std::string domain;
    std::weak_ptr<const void> waits;  ///< expired once the loop has got to it, or has ended
  };
  /// Sends one to each open domain. Does not wait for them. Throws std::bad_alloc only.
  [[nodiscard]] std::vector<round> start_rounds() const;

  /// The directory that contains the domains' directories.
  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }

 private:
  struct served {
    hosted_broker serving;
    std::string problem;           ///< empty: none
    std::uint64_t has_quotas = 0;  ///< the number of those that were posted to it
  };
  class exclusive_use;

  [[nodiscard]] std::string directory_of(const std::string& domain) const;
  [[nodiscard]] std::string lock_path_of(const std::string& domain) const;
  [[nodiscard]] std::string ledger_path_of(const std::string& domain) const;
  [[nodiscard]] bool is_configured(const std::string& domain) const;
  /// Configured domains, and those with an entry in `open_`.
  [[nodiscard]] std::set<std::string> names() const;
  /// Throws `error` (timed_out) if another call uses the domain for too long.
  [[nodiscard]] base::busy_names::hold take(const std::string& domain);
  void lock_node();
  void ask_to_yield();
  [[nodiscard]] std::vector<std::string> domains_with_ledgers() const;
  void open_again(const std::string& domain);
  void remove_empty_directories() const;
  /// Creates the directory and starts the broker. Called without the mutex.
  [[nodiscard]] hosted_broker start(const std::string& domain);
  [[nodiscard]] hosted_broker start(const std::string& domain,
                                    std::optional<broker_detail::successor_options> successors);
  void read_kept_quotas();
  void read_quota_file();
  void replace_quotas(const std::string& text, const std::string& source);
  /// Both: called with the mutex.
  [[nodiscard]] core::quotas quotas_of(const std::string& domain) const;
  void post_quotas(const std::string& domain, served& served) noexcept;
  [[nodiscard]] gpushm::generation next_first_generation();
  void start_all(std::optional<predecessor>& before);
  void continue_all(predecessor& before);
  /// Runs `work` on the domain's thread and returns its result. Blocks and throws as `read_usage`.
  template <typename Work>
  auto ask(const char* operation,
           const std::string& domain,
           std::chrono::steady_clock::time_point deadline,
           Work work) const;
  [[nodiscard]] std::vector<usage> process_budgets() const;
  /// Records a problem, and logs it if it is new. Called with the mutex.
  static void note_problem(const std::string& domain, served& served, const std::string& problem);
  void check_all();
  void check(const std::string& domain);

  const domain_set_options options_;
  const std::string directory_;
  const std::string locks_;
  /// Until then, the locks of this directory may still be those of a process that is dying.
  std::chrono::steady_clock::time_point locked_until_;
  const std::shared_ptr<core::process_budget> budget_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  const bool has_keeper_;
  succession::authenticator code_;  ///< if it has a keeper
  std::atomic<std::uint64_t> next_short_name_ = 1;
  std::mutex starts_mutex_;  // for the file of `next_first_generation`
  /// Brokers wait for it; shared with their threads, which may outlive this object.
  const std::shared_ptr<std::latch> gate_ = std::make_shared<std::latch>(1);
  base::unique_fd node_lock_;
  mutable std::mutex mutex_;
  std::condition_variable_any stopping_;  // ends a wait of checker_
  std::mutex quotas_mutex_;               // one thread replaces them
  std::string quota_file_text_;           // as it was seen last; for the thread in checker_
  bool quota_file_is_missing_ = false;
  // Guarded by mutex_.
  quota_rules rules_;
  std::string quota_text_;
  std::uint64_t quotas_number_ = 1;
  start_counts starts_;
  /// Guarded by mutex_. Once constructed, only the thread that holds a domain in busy_ changes its
  /// entry.
  std::map<std::string, served> open_;
  base::busy_names busy_;  // domains that a thread opens, closes or repairs
  std::jthread checker_;
};

}  // namespace gpushm::domains
