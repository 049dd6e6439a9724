// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "base/report/log.hpp"
#include "client/lease/broker_link.hpp"
#include "client/lease/mapping.hpp"
#include "client/session/fork_guard.hpp"
#include "gpushm/gpushm.h"

/// One use of a mapping, counted by its handles: the handle of the C interface.
struct gpushm_segment {
 public:
  /// Takes over one use of `mapped` that was counted in the lease table of `link`; without a broker
  /// (null), uses are not counted.
  gpushm_segment(std::shared_ptr<gpushm::client_detail::broker_link> link,
                 std::shared_ptr<gpushm::client_detail::mapping> mapped,
                 std::chrono::milliseconds timeout)
      : link_(std::move(link)), mapping_(std::move(mapped)), request_timeout_(timeout) {}
  gpushm_segment(const gpushm_segment&) = delete;
  gpushm_segment& operator=(const gpushm_segment&) = delete;

  void take_handle() const noexcept { handles_.fetch_add(1, std::memory_order_relaxed); }
  void end_handle() const noexcept {
    if (handles_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;  // NOLINT(cppcoreguidelines-owning-memory): owned by its handles
    }
  }

  /// Keeps `client`, through which it was imported, alive.
  void keep(std::shared_ptr<const void> client) noexcept { client_ = std::move(client); }
  [[nodiscard]] gpushm::client_detail::mapping& mapped() const noexcept { return *mapping_; }
  [[nodiscard]] gpushm::memory::region& region() const noexcept { return mapping_->region(); }
  [[nodiscard]] const gpushm::wire::segment& info() const noexcept { return mapping_->info(); }
  /// Throws invalid_argument for memory that was imported without a broker.
  [[nodiscard]] gpushm::client_detail::segment_lease& lease(std::string_view operation) const;
  /// Precondition: it has a lease.
  [[nodiscard]] gpushm::client_detail::broker_link& link() const noexcept { return *link_; }
  [[nodiscard]] const std::shared_ptr<gpushm::client_detail::broker_link>& shared_link()
      const noexcept {
    return link_;
  }
  /// May own nothing: valid as long as this use of the mapping.
  [[nodiscard]] const std::shared_ptr<gpushm::client_detail::mapping>& shared_mapping()
      const noexcept {
    return mapping_;
  }
  [[nodiscard]] std::uint64_t forks() const noexcept { return forks_; }
  [[nodiscard]] std::chrono::milliseconds request_limit() const noexcept {
    return request_timeout_;
  }

 private:
  /// Runs on the thread that releases the last handle, which may be a library's.
  ~gpushm_segment() {
    if (forks_ != gpushm::client_detail::fork_count()) {
      gpushm::client_detail::leak(mapping_);
      gpushm::client_detail::leak(link_);
      gpushm::client_detail::leak(client_);
      return;
    }
    const gpushm::base::held_log_lines lines;
    if (link_) {
      link_->leases().release(std::move(mapping_));
    }
    mapping_.reset();
    link_.reset();
    client_.reset();
  }

  std::shared_ptr<const void> client_;  // destroyed last
  std::shared_ptr<gpushm::client_detail::broker_link> link_;
  std::shared_ptr<gpushm::client_detail::mapping> mapping_;
  std::chrono::milliseconds request_timeout_;
  std::uint64_t forks_ = gpushm::client_detail::fork_count();
  mutable std::atomic<std::uint32_t> handles_{1};
};

namespace gpushm::client_detail {

struct handle_ender {
  void operator()(const gpushm_segment* handle) const noexcept { handle->end_handle(); }
};
/// An owning handle.
using segment_ptr = std::unique_ptr<gpushm_segment, handle_ender>;

/// The first handle of a use of `mapped` that was counted in the lease table of `link`. Throws
/// std::bad_alloc; the use has ended then.
[[nodiscard]] inline segment_ptr handle_of_use(const std::shared_ptr<broker_link>& link,
                                               std::shared_ptr<mapping> mapped,
                                               std::chrono::milliseconds timeout) {
  try {
    return segment_ptr(new gpushm_segment(link, mapped, timeout));
  } catch (const std::bad_alloc&) {
    link->leases().release(std::move(mapped));
    throw;
  }
}

/// A handle of another use of the same mapping, which so has one more user. Precondition: it has a
/// lease. Throws std::bad_alloc.
[[nodiscard]] inline segment_ptr use_again(const gpushm_segment& segment) {
  segment.link().leases().use(segment.shared_mapping());
  return handle_of_use(segment.shared_link(), segment.shared_mapping(), segment.request_limit());
}

}  // namespace gpushm::client_detail
