// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "client/attachment.hpp"
#include "memory/backend.hpp"

namespace gpushm::detail {

/// One user of a segment. The region goes before the lease: a broker that frees finds it unmapped.
class segment_impl {
 public:
  segment_impl(std::shared_ptr<detail::attachment> lease,
               std::shared_ptr<memory::region> mapped,
               gpushm::access rights,
               std::chrono::milliseconds timeout)
      : attachment(std::move(lease)),
        region(std::move(mapped)),
        access(rights),
        request_timeout(timeout),
        epoch(attachment->broker().broker().epoch) {}
  segment_impl(const segment_impl&) = delete;
  segment_impl& operator=(const segment_impl&) = delete;
  ~segment_impl() {
    if (attachment->broker().forks() != fork_count()) {
      keep_for_ever(region);
      keep_for_ever(attachment);
    }
  }

  std::shared_ptr<detail::attachment> attachment;
  std::shared_ptr<memory::region> region;
  gpushm::access access;
  std::chrono::milliseconds request_timeout;
  gpushm::epoch epoch;
};

}  // namespace gpushm::detail
