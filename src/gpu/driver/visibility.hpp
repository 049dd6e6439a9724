// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "gpushm/error.hpp"
#include "gpushm/types.hpp"

namespace gpushm::driver {

/// Throws `errc::device_not_visible` if this process may not open the device node of `device`'s
/// GPU. Call before passing anything of that GPU to the driver: importing memory of a GPU that is
/// not allowed here fails with unclear errors, and in one case crashes inside the driver.
///
/// The host and a device whose minor is unknown pass, and so does a missing node that the driver
/// would create itself. Each minor is checked once per process; verdicts are kept. Opening the node
/// may block while the kernel wakes the GPU. Thread-safe.
void check_visible(const device_id& device);

/// The verdict for an open that failed with `number`; nullopt if the failure is unrelated to the
/// device (`can_make_node`: the driver would create a missing node). Pure.
[[nodiscard]] std::optional<error> visibility_verdict(const device_id& device,
                                                      const std::string& node,
                                                      int number,
                                                      bool can_make_node);

}  // namespace gpushm::driver
