// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "domains/protocol/messages.hpp"

namespace gpushm::domains {

/// The directory of the private socket in the run directory, and the socket. Only the group of
/// gpushm-brokerd (and root) can reach it.
[[nodiscard]] std::string private_directory(const std::string& run_dir);
[[nodiscard]] std::string private_socket_path(const std::string& run_dir);

/// The domains of gpushm-brokerd, from another program of its group. Each call has a connection of
/// its own, and waits for a broker that is being replaced.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class private_socket {
 public:
  explicit private_socket(const std::string& run_dir) : path_(private_socket_path(run_dir)) {}

  /// As domain_set::open, close and read. Block for `timeout` at most. Throw what those throw, and
  /// `error`: broker_unreachable, permission_denied, timed_out, protocol_error,
  /// unsupported_version.
  [[nodiscard]] std::string open(const std::string& domain,
                                 std::chrono::milliseconds timeout) const;
  void close(const std::string& domain, std::chrono::milliseconds timeout) const;
  [[nodiscard]] std::vector<reading> read(std::chrono::milliseconds timeout) const;
  /// Lets a broker end that has no successor, because its keeper has ended; it has ended, or is
  /// about to, when this returns. Blocks and throws as `read`, and address_in_use: its keeper has
  /// not ended; permission_denied: it has another uid.
  void yield(std::chrono::milliseconds timeout) const;
  /// As domain_set::set_quotas and usages. Block and throw as `read`.
  void set_quotas(const std::string& text, std::chrono::milliseconds timeout) const;
  [[nodiscard]] usages read_usage(const std::string& domain,
                                  std::chrono::milliseconds timeout) const;
  /// As domain_set::read_broker and read_statistics. Block and throw as `read`.
  [[nodiscard]] broker_facts read_broker(std::chrono::milliseconds timeout) const;
  [[nodiscard]] domain_statistics read_statistics(const std::string& domain,
                                                  std::chrono::milliseconds timeout) const;
  /// All segments of a domain, and domain_set::remove_unheld. Block and throw as `read`. Segments
  /// that are created meanwhile may be left out.
  [[nodiscard]] std::vector<segment_row> list_segments(const std::string& domain,
                                                       std::chrono::milliseconds timeout) const;
  [[nodiscard]] bool remove_unheld(const std::string& domain,
                                   gpushm::generation generation,
                                   std::chrono::milliseconds timeout) const;
  /// As domain_set::lose_device. Blocks and throws as `read`, and as that. If it throws, repeat it:
  /// some segments may have the state already.
  void lose_device(const base::lost_device& device, std::chrono::milliseconds timeout) const;
  /// The process that listens, as this PID namespace numbers it; 0: it is in another one. Blocks
  /// and throws as `read`.
  [[nodiscard]] pid_t listening_process(std::chrono::milliseconds timeout) const;

 private:
  template <typename Reply>
  [[nodiscard]] Reply ask(const request& request,
                          std::chrono::steady_clock::time_point deadline) const;

  std::string path_;
};

}  // namespace gpushm::domains
