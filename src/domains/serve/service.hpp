// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "domains/protocol/messages.hpp"
#include "domains/serve/domain_set.hpp"
#include "protocol/transport/listener.hpp"

namespace gpushm::domains {

/// What a process does that serves domains without a keeper.
struct orphan_rules {
  /// Whether the keeper has ended. Called by several threads.
  std::function<bool()> has_no_keeper = [] { return false; };
  /// Ends the process, for another one with a keeper. Only called if it has none.
  std::function<void()> end = [] {};
};

/// Answers requests on the private socket. Several are carried out at the same time; others wait.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class service {
 public:
  /// `domains` must outlive it. The socket and its directory belong to `group`; nothing: this
  /// process's. Throws `error`: address_in_use, permission_denied, system_error.
  service(domain_set& domains,
          const std::string& run_dir,
          std::optional<gid_t> group = {},
          orphan_rules rules = {});
  service(const service&) = delete;
  service& operator=(const service&) = delete;
  /// Blocks until requests that are being carried out have ended.
  ~service();

 private:
  void stop_threads() noexcept;
  void serve();
  void reply_to_one(int socket);
  [[nodiscard]] reply carry_out(const request& request, int socket);
  void check_yield(int socket) const;

  domain_set& domains_;
  const orphan_rules rules_;
  transport::listener listener_;
  base::guarded_fd stop_;  ///< readable: stop
  std::vector<std::jthread> threads_;
};

}  // namespace gpushm::domains
