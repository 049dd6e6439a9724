// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iterator>
#include <utility>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "succession/records/records.hpp"

namespace gpushm::succession {

/// A descriptor, and its number in the keeper; 0: the keeper does not have it.
struct kept_fd {
  kept_fd() noexcept = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a descriptor that is not kept
  kept_fd(base::guarded_fd owned, records::descriptor_id number = 0) noexcept
      : file(std::move(owned)), id(number) {}

  [[nodiscard]] int get() const noexcept { return file.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(file); }

  base::guarded_fd file;
  records::descriptor_id id = 0;
};

[[nodiscard]] inline std::vector<kept_fd> not_kept(std::vector<base::guarded_fd> files) {
  return {std::make_move_iterator(files.begin()), std::make_move_iterator(files.end())};
}

}  // namespace gpushm::succession
