// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "client/segment_impl.hpp"
#include "gpushm/segment.hpp"

namespace gpushm::detail {

/// The inside of public segment objects, for functions of the library that are not members.
struct segment_access {
  [[nodiscard]] static segment make(std::shared_ptr<segment_impl> impl) {
    return segment(std::move(impl));
  }
  /// Throws invalid_argument for an empty segment.
  [[nodiscard]] static const segment_impl& impl(const segment& of) { return of.impl(); }
};

}  // namespace gpushm::detail
