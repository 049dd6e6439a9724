// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/files/fork_guard.hpp"
#include "client/timeline/timeline_pages.hpp"
#include "protocol/wire/ticket.hpp"

namespace gpushm::client_detail {

class signaler_watch;

/// Timeline pages that need no broker: memfds of this process, and those of other processes that
/// tickets name, opened through /proc. Every process of the domain could write them: such timelines
/// are advisory.
///
/// Thread-safety: safe.
class local_pages {
 public:
  /// The only object in the process; never destroyed.
  static local_pages& instance();

  /// Takes a word that no timeline has had, and makes the ticket by which other processes reach it.
  /// Throws not_exportable (nothing proves the end of this process: MPS, or no pidfd),
  /// too_many_descriptors, out_of_memory, system_error.
  [[nodiscard]] std::pair<timeline_range, wire::ticket> take();
  /// Opens the timeline of a ticket that has a word reference. Does not block. Throws
  /// invalid_ticket, peer_died, peer_unreachable (another PID namespace), permission_denied,
  /// gone_or_replaced (its process has closed all timelines of that page), too_many_descriptors,
  /// system_error.
  [[nodiscard]] timeline_range open(const wire::ticket& described);

 private:
  /// A file system, and an inode number in it.
  using key = std::pair<std::uint64_t, std::uint64_t>;

  [[nodiscard]] std::shared_ptr<mapped_page> find(const key& key);
  [[nodiscard]] std::shared_ptr<mapped_page> remember(const key& key,
                                                      std::shared_ptr<mapped_page> page);
  [[nodiscard]] std::shared_ptr<signaler_watch> watch();
  void forget_in_child();

  base::fork_safe_mutex mutex_;
  std::uint64_t created_in_ = base::fork_generation();
  std::weak_ptr<mapped_page> newest_;  ///< of this process
  wire::ticket ticket_of_newest_;
  std::uint32_t next_timeline_ = 0;  ///< in `newest_`
  std::map<key, std::weak_ptr<mapped_page>> all_;
  std::weak_ptr<signaler_watch> watch_;
};

}  // namespace gpushm::client_detail
