// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/file.hpp"
#include "base/unique_fd.hpp"
#include "client/connection.hpp"
#include "gpushm/types.hpp"
#include "memory/backend.hpp"
#include "wire/messages.hpp"

namespace gpushm::detail {

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
             base::unique_fd control_page);
  attachment(const attachment&) = delete;
  attachment& operator=(const attachment&) = delete;
  ~attachment();

  [[nodiscard]] const wire::segment& info() const noexcept { return info_; }
  [[nodiscard]] connection& broker() const noexcept { return *broker_; }
  [[nodiscard]] const std::shared_ptr<connection>& shared_broker() const noexcept {
    return broker_;
  }
  [[nodiscard]] segment_state state() const noexcept {
    return broker_->state(info_.slot, info_.generation);
  }
  /// Of `wire::control_page_bytes`; hostile, see wire/control_page.hpp.
  [[nodiscard]] void* control_page() const noexcept { return control_page_.get().address; }

  /// Empty until published.
  [[nodiscard]] std::span<const std::byte> metadata() const;
  /// Once, by the creator.
  void set_metadata(std::vector<std::byte> metadata);

  /// One more answer of the broker granted this lease.
  void add_grant();

  /// A mapping for this device and access that somebody here has; null when there is none.
  [[nodiscard]] std::shared_ptr<memory::region> find_region(const std::string& device,
                                                            gpushm::access access);
  void add_region(const std::string& device,
                  gpushm::access access,
                  const std::shared_ptr<memory::region>& region);

 private:
  std::shared_ptr<connection> broker_;
  wire::segment info_;
  base::unique_mapping control_page_;
  mutable std::mutex mutex_;
  std::uint32_t grants_ = 1;
  std::vector<std::byte> metadata_;
  std::map<std::pair<std::string, gpushm::access>, std::weak_ptr<memory::region>> regions_;
};

}  // namespace gpushm::detail
