// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "base/log.hpp"
#include "client/fork_guard.hpp"
#include "client/lease_table.hpp"
#include "client/mapping.hpp"

namespace gpushm::detail {

/// One user of a mapping.
class segment_impl {
 public:
  /// Takes over one use of `mapped` that was counted in `cache`; without a cache (null), nothing is
  /// counted.
  segment_impl(std::shared_ptr<lease_table> cache,
               std::shared_ptr<mapping> mapped,
               std::chrono::milliseconds timeout)
      : leases_(std::move(cache)), mapping_(std::move(mapped)), request_timeout_(timeout) {}
  segment_impl(const segment_impl&) = delete;
  segment_impl& operator=(const segment_impl&) = delete;
  /// On whatever thread the last user ends, also a library's that has a view.
  ~segment_impl() {
    if (forks_ != fork_count()) {
      keep_for_ever(mapping_);
      keep_for_ever(leases_);
      keep_for_ever(client_);
      return;
    }
    base::held_log_lines lines;
    if (leases_) {
      leases_->release(std::move(mapping_));
    }
    mapping_.reset();
    leases_.reset();
    client_.reset();
  }

  /// Keeps `client`, which it came through, as long as it lives.
  void keep(std::shared_ptr<const void> client) noexcept { client_ = std::move(client); }
  [[nodiscard]] const mapping& mapped() const noexcept { return *mapping_; }
  [[nodiscard]] memory::region& region() const noexcept { return mapping_->region(); }
  [[nodiscard]] const wire::segment& info() const noexcept { return mapping_->info(); }
  /// Throws invalid_argument for memory that was imported without a broker.
  [[nodiscard]] segment_lease& lease(std::string_view operation) const;
  [[nodiscard]] std::uint64_t forks() const noexcept { return forks_; }
  [[nodiscard]] std::chrono::milliseconds request_timeout() const noexcept {
    return request_timeout_;
  }

 private:
  std::shared_ptr<const void> client_;  // goes last
  std::shared_ptr<lease_table> leases_;
  std::shared_ptr<mapping> mapping_;
  std::chrono::milliseconds request_timeout_;
  std::uint64_t forks_ = fork_count();
};

}  // namespace gpushm::detail
