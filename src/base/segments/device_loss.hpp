// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/segments/xid.hpp"
#include "gpushm/types.hpp"

namespace gpushm::base {

using gpushm::loss_cause;  // its values are stored and sent

/// The loss of a GPU's memory, if any.
struct device_loss {
  loss_cause cause = loss_cause::none;
  std::uint32_t xid = 0;  ///< 0 unless `cause` is `xid`

  explicit operator bool() const noexcept { return cause != loss_cause::none; }
  friend bool operator==(const device_loss&, const device_loss&) = default;
};

/// A GPU whose memory is gone.
struct lost_device {
  std::string uuid;         ///< of the GPU or of a MIG instance
  std::string pci_address;  ///< for its MIG instances, which have other UUIDs; may be empty
  device_loss loss{loss_cause::reported};
};

/// The loss that a record or a message describes. `reported` if the cause is of a later version, is
/// missing (an earlier one), or does not fit the Xid.
[[nodiscard]] constexpr device_loss loss_of(std::uint8_t cause, std::uint32_t xid) noexcept {
  const auto known = static_cast<loss_cause>(cause);
  if (known == loss_cause::none || known > loss_cause::reset ||
      (known == loss_cause::xid) != (xid != 0)) {
    return {loss_cause::reported, 0};
  }
  return {known, xid};
}

/// "Xid 79 (the GPU has fallen off the bus)", "the GPU was reset"; empty if the cause is not known.
[[nodiscard]] inline std::string text_of(const device_loss& loss) {
  switch (loss.cause) {
    case loss_cause::none:
    case loss_cause::reported:
      break;
    case loss_cause::xid:
      return xid_text(loss.xid);
    case loss_cause::unreachable:
      return "the driver cannot reach it";
    case loss_cause::reset:
      return "it was reset";
  }
  return {};
}

}  // namespace gpushm::base
