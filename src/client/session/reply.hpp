// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "gpushm/types.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::client_detail {

/// Receives leases that are not used.
class lease_returner {
 public:
  lease_returner() = default;
  lease_returner(const lease_returner&) = delete;
  lease_returner& operator=(const lease_returner&) = delete;
  virtual ~lease_returner() = default;
  /// `never_mapped`: none of the grants was used, so the exporter need not treat this as the end of
  /// a consumer.
  virtual void release(gpushm::generation generation,
                       std::uint32_t count,
                       bool never_mapped) noexcept = 0;
};

/// One lease that a reply of the broker granted, returned to the broker unless kept. Move-only.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class grant {
 public:
  grant() = default;
  /// `returner` must outlive it.
  grant(lease_returner& returner, gpushm::generation generation) noexcept
      : by_(&returner, {generation}) {}

  /// Transfers it to a lease object.
  void keep() noexcept { static_cast<void>(by_.release()); }

 private:
  struct releaser {
    gpushm::generation generation;
    void operator()(lease_returner* returner) const noexcept {
      returner->release(generation, 1, true);
    }
  };
  std::unique_ptr<lease_returner, releaser> by_;
};

/// Upper bound of descriptors of one kind that wait for their mapping: a share of what this process
/// may open.
[[nodiscard]] std::size_t max_held_descriptors();

/// Counts descriptors that replies own until they are mapped. The bound leaves room for memory that
/// is being imported and for the user's own files.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class held_descriptors {
 public:
  explicit held_descriptors(std::size_t max) noexcept : max_(max) {}

  /// The descriptors that one reply owns. Move-only.
  class part {
   public:
    part() = default;
    explicit operator bool() const noexcept { return of_ != nullptr; }

   private:
    friend class held_descriptors;
    part(held_descriptors& descriptors, std::size_t count) noexcept : of_(&descriptors, {count}) {}
    struct releaser {
      std::size_t count;
      void operator()(held_descriptors* descriptors) const noexcept {
        descriptors->now_.fetch_sub(count, std::memory_order_relaxed);
      }
    };
    std::unique_ptr<held_descriptors, releaser> of_;
  };

  [[nodiscard]] bool has_room(std::size_t count) const noexcept {
    return now_.load(std::memory_order_relaxed) + count <= max_;
  }
  /// Returns an empty part if there is no room.
  [[nodiscard]] part try_hold(std::size_t count) noexcept {
    if (now_.fetch_add(count, std::memory_order_relaxed) + count > max_) {
      now_.fetch_sub(count, std::memory_order_relaxed);
      return {};
    }
    return {*this, count};
  }

 private:
  std::size_t max_;
  std::atomic<std::size_t> now_{0};
};

/// A reply with its descriptors and the lease that it grants.
struct reply {
  wire::body body;
  std::vector<base::guarded_fd> descriptors = {};
  grant granted = {};
  held_descriptors::part held = {};
};

}  // namespace gpushm::client_detail
