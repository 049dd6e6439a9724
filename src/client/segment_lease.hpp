// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/file.hpp"
#include "base/guarded_fd.hpp"
#include "client/connection.hpp"
#include "gpushm/types.hpp"
#include "memory/backend.hpp"
#include "memory/source.hpp"
#include "wire/messages.hpp"

namespace gpushm::detail {

class lease_table;
class mapping;
/// Its memory is still there.
[[nodiscard]] bool is_usable(const mapping& of) noexcept;

/// This process's lease on one generation, shared by all its users here; ends with the last of
/// them. Made by `lease_table`.
///
/// Distinct objects: safe. Shared objects: safe.
class segment_lease {
 public:
  /// What an answer of the broker says of a segment.
  struct facts {
    wire::segment segment;
    std::vector<std::byte> metadata = {};
    std::vector<std::byte> ticket = {};
  };
  /// Takes over what one answer granted. `table`: that it leaves when it ends.
  segment_lease(std::weak_ptr<lease_table> table, std::shared_ptr<connection> broker, facts&& what);
  segment_lease(const segment_lease&) = delete;
  segment_lease& operator=(const segment_lease&) = delete;
  ~segment_lease();

  /// As the answer said it; does not change.
  [[nodiscard]] const wire::segment& info() const noexcept { return info_; }
  /// The connection that has the lease: another one once the broker has ended the first. Stays as
  /// long as this object.
  [[nodiscard]] connection& broker() const noexcept {
    return *broker_.load(std::memory_order_acquire);
  }
  [[nodiscard]] segment_state state() const noexcept {
    return broker().state(info_.slot, info_.generation);
  }

  /// As the creator gave it to the broker; empty for what travels as descriptors.
  [[nodiscard]] const std::vector<std::byte>& ticket() const noexcept { return ticket_; }

  /// Empty until published; what it shows stays until the lease ends.
  [[nodiscard]] std::span<const std::byte> metadata() const;
  [[nodiscard]] bool published() const noexcept {
    return published_.load(std::memory_order_acquire);
  }
  /// Tells the broker, and keeps the metadata. Blocks until it answers. Throws as a request.
  void publish(std::span<const std::byte> metadata,
               std::string_view operation,
               steady_time deadline);
  /// The creator's process learns it twice: from the answer to `Publish`, and from an answer to
  /// `Open` that may come first. The first one counts.
  void set_published(std::vector<std::byte> metadata);

  /// One more answer of the broker granted this lease.
  void add_grant();
  [[nodiscard]] std::uint32_t grants() const;
  /// `heir` has the lease from now on; the broker's questions come there.
  void move_to(std::shared_ptr<connection> heir);

  /// The mapping for this device and access that somebody here has, or what `make()` returns. While
  /// one thread makes one, others that want any of this segment's wait for it.
  template <typename Make>
  [[nodiscard]] std::shared_ptr<mapping> find_or_map(const std::string& device,
                                                     gpushm::access access,
                                                     Make&& make) {
    const std::lock_guard lock(map_mutex_);
    std::weak_ptr<mapping>& entry = mappings_[{device, access}];
    if (auto found = entry.lock(); found && is_usable(*found)) {
      return found;
    }
    auto made = make();
    entry = made;
    mapped_.store(true, std::memory_order_relaxed);
    return made;
  }

  /// A new lease's first mapping.
  void put(const std::shared_ptr<mapping>& made);

  /// This process's memory that the segment stands for: the broker's questions about it are
  /// answered as long as this lease lives, or until `unshare`.
  void share(std::shared_ptr<const memory::source> memory);
  /// Nobody new gets it, and nobody is asked about it any more. Blocks until the broker answers.
  /// Throws invalid_argument where this process does not share it, and as a request.
  void unshare(steady_time deadline);
  /// Null for segments that are not shared from here.
  [[nodiscard]] std::shared_ptr<const memory::source> shared_memory() const;

 private:
  void answer_for_it();  // with the lock held
  void stop_sharing() noexcept;

  std::weak_ptr<lease_table> table_;
  wire::segment info_;
  std::vector<std::byte> ticket_;
  std::atomic<connection*> broker_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<connection>> connections_;  ///< all that had it
  std::uint32_t grants_ = 1;
  std::vector<std::byte> metadata_;  ///< does not change once `published_` is true
  std::atomic<bool> published_;
  std::atomic<bool> mapped_{false};  ///< was, at least once
  std::shared_ptr<const memory::source> shared_;
  std::mutex map_mutex_;  // held while the driver maps
  std::map<std::pair<std::string, gpushm::access>, std::weak_ptr<mapping>> mappings_;
};

}  // namespace gpushm::detail
