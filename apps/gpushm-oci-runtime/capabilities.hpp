// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm-oci-runtime/settings.hpp"
#include "containers/cdi/document/document.hpp"

namespace gpushm::oci_runtime {

/// The driver capabilities that a container can request in NVIDIA_DRIVER_CAPABILITIES.
enum class capability : std::uint8_t {
  compat32 = 1U << 0U,
  compute = 1U << 1U,
  display = 1U << 2U,
  graphics = 1U << 3U,
  ngx = 1U << 4U,
  utility = 1U << 5U,
  video = 1U << 6U,
};

/// A set of capabilities.
///
/// Thread-safety: distinct objects: safe; shared objects: const members safe.
class capability_set {
 public:
  constexpr capability_set() = default;
  template <typename... Each>
  constexpr explicit capability_set(Each... each)
      : bits_((0U | ... | static_cast<unsigned>(each))) {}

  constexpr void add(capability capability) { bits_ |= static_cast<unsigned>(capability); }
  [[nodiscard]] constexpr bool any_of(capability_set other) const {
    return (bits_ & other.bits_) != 0;
  }
  [[nodiscard]] constexpr bool has_all(capability_set other) const {
    return (bits_ & other.bits_) == other.bits_;
  }
  friend constexpr bool operator==(capability_set, capability_set) = default;

 private:
  unsigned bits_ = 0;
};

/// Returns the container's capabilities: those in `listed` ("all": all supported ones), else
/// the supported ones of the default. Throws `error` (invalid_argument) for a capability that is
/// unknown or not supported.
[[nodiscard]] capability_set read_capabilities(const std::optional<std::string>& listed,
                                               const settings& chosen);

/// Removes from `changes` the files and nodes that only other capabilities need. Files of no known
/// capability stay. Returns what was removed.
std::vector<std::string> keep_capable(cdi::edits& changes, capability_set capabilities);

}  // namespace gpushm::oci_runtime
