// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>

#include "base/files/guarded_fd.hpp"
#include "gpushm/types.hpp"

namespace gpushm::client_detail {

/// Descriptors by which a broker determines when this process can no longer write.
class fence_proof {
 public:
  /// Reads /proc if this process has the driver open, and children (base/files/device_files.hpp).
  /// Throws too_many_descriptors.
  fence_proof();

  [[nodiscard]] fence kind() const noexcept { return kind_; }
  /// Sent with the hello: a pidfd and the life pipe, or nothing. Valid as long as this object
  /// exists.
  [[nodiscard]] std::span<const int> descriptors() const noexcept {
    return kind_ == fence::none ? std::span<const int>() : std::span<const int>(numbers_);
  }

 private:
  fence kind_ = fence::none;
  base::guarded_fd pidfd_;
  std::array<int, 2> numbers_{-1, -1};
};

}  // namespace gpushm::client_detail
