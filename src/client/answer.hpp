// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/guarded_fd.hpp"
#include "gpushm/types.hpp"
#include "wire/messages.hpp"

namespace gpushm::detail {

/// Takes back leases that nobody uses.
class lease_giver {
 public:
  lease_giver() = default;
  lease_giver(const lease_giver&) = delete;
  lease_giver& operator=(const lease_giver&) = delete;
  virtual ~lease_giver() = default;
  /// `never_mapped`: of none of what was granted was used, so no exporter should take it for the
  /// end of a consumer.
  virtual void release(gpushm::generation generation,
                       std::uint32_t count,
                       bool never_mapped) noexcept = 0;
};

/// One lease that an answer of the broker granted. It goes back unless it is kept. Move-only.
/// Distinct objects: safe. Shared objects: unsafe.
class grant {
 public:
  grant() = default;
  /// `by` must outlive it.
  grant(lease_giver& by, gpushm::generation generation) noexcept : by_(&by, {generation}) {}

  /// It is a lease's from now on.
  void keep() noexcept { static_cast<void>(by_.release()); }

 private:
  struct give_back {
    gpushm::generation generation;
    void operator()(lease_giver* by) const noexcept { by->release(generation, 1, true); }
  };
  std::unique_ptr<lease_giver, give_back> by_;
};

/// How many descriptors wait for their mapping at most, of one kind: a share of what this process
/// may open.
[[nodiscard]] std::size_t most_held_descriptors();

/// Descriptors that answers hold until somebody maps what they are of; at most so many, because
/// what is being imported, and the user's own, need room too.
///
/// Distinct objects: safe. Shared objects: safe.
class held_descriptors {
 public:
  explicit held_descriptors(std::size_t most) noexcept : most_(most) {}

  /// What one answer holds. Move-only.
  class part {
   public:
    part() = default;
    explicit operator bool() const noexcept { return of_ != nullptr; }

   private:
    friend class held_descriptors;
    part(held_descriptors& of, std::size_t count) noexcept : of_(&of, {count}) {}
    struct let_go {
      std::size_t count;
      void operator()(held_descriptors* of) const noexcept {
        of->now_.fetch_sub(count, std::memory_order_relaxed);
      }
    };
    std::unique_ptr<held_descriptors, let_go> of_;
  };

  /// Empty: there is no room.
  [[nodiscard]] bool has_room(std::size_t count) const noexcept {
    return now_.load(std::memory_order_relaxed) + count <= most_;
  }
  [[nodiscard]] part try_hold(std::size_t count) noexcept {
    if (now_.fetch_add(count, std::memory_order_relaxed) + count > most_) {
      now_.fetch_sub(count, std::memory_order_relaxed);
      return {};
    }
    return {*this, count};
  }

 private:
  std::size_t most_;
  std::atomic<std::size_t> now_{0};
};

/// An answer with its descriptors and the lease that it grants.
struct answer {
  wire::body body;
  std::vector<base::guarded_fd> descriptors = {};
  grant granted = {};
  held_descriptors::part held = {};
};

}  // namespace gpushm::detail
