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

class mapping;
/// Its memory is still there.
[[nodiscard]] bool is_usable(const mapping& of) noexcept;

/// This process's lease on one generation, shared by all its users here; ends with the last of
/// them.
///
/// Distinct objects: safe. Shared objects: safe.
class attachment {
 public:
  /// Takes over what one answer of the broker granted.
  attachment(std::shared_ptr<connection> broker,
             wire::segment info,
             std::vector<std::byte> metadata,
             std::vector<std::byte> descriptor);
  attachment(const attachment&) = delete;
  attachment& operator=(const attachment&) = delete;
  ~attachment();

  [[nodiscard]] const wire::segment& info() const noexcept { return info_; }
  /// The connection that has the lease: another one once the broker has ended the first.
  [[nodiscard]] connection& broker() const noexcept { return broker_->current(); }
  [[nodiscard]] segment_state state() const noexcept {
    return broker().state(info_.slot, info_.generation);
  }

  /// As the creator gave it to the broker; empty for what travels as descriptors.
  [[nodiscard]] const std::vector<std::byte>& descriptor() const noexcept { return descriptor_; }

  /// Empty until published; what it shows stays until the lease ends.
  [[nodiscard]] std::span<const std::byte> metadata() const;
  [[nodiscard]] bool published() const noexcept {
    return published_.load(std::memory_order_acquire);
  }
  /// The creator's process learns it twice: from the answer to `Publish`, and from an answer to
  /// `Open` that may come first. The first one counts.
  void set_published(std::vector<std::byte> metadata);

  /// One more answer of the broker granted this lease.
  void add_grant();
  [[nodiscard]] std::uint32_t grants() const;
  /// After its connection has got a successor: the broker's questions go there.
  void answer_again();

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

  /// This process's memory that the segment stands for: the broker's questions about it are
  /// answered as long as this lease lives, or until `stop_sharing`.
  void share(std::shared_ptr<const memory::source> memory);
  void stop_sharing() noexcept;
  /// Null for segments that are not shared from here.
  [[nodiscard]] std::shared_ptr<const memory::source> shared_memory() const;

 private:
  std::shared_ptr<connection> broker_;
  wire::segment info_;
  std::vector<std::byte> descriptor_;
  mutable std::mutex mutex_;
  std::uint32_t grants_ = 1;
  std::vector<std::byte> metadata_;  ///< does not change once `published_` is true
  std::atomic<bool> published_;
  std::atomic<bool> mapped_{false};  ///< was, at least once
  std::shared_ptr<const memory::source> shared_;
  std::mutex map_mutex_;  // held while the driver maps
  std::map<std::pair<std::string, gpushm::access>, std::weak_ptr<mapping>> mappings_;
};

}  // namespace gpushm::detail
