// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "base/unique_fd.hpp"
#include "driver/devices.hpp"
#include "memory/remote_memory.hpp"

namespace gpushm::memory {

/// Opens a legacy handle; the parts of `open_remote`.
[[nodiscard]] std::shared_ptr<region> open_legacy_handle(std::string_view name,
                                                         const remote_memory& memory,
                                                         const driver::gpu& user);

/// Imports an allocation of a pool whose descriptor is `pool`.
[[nodiscard]] std::shared_ptr<region> import_from_pool(std::string_view name,
                                                       const remote_memory& memory,
                                                       base::unique_fd pool,
                                                       const driver::gpu& user);

}  // namespace gpushm::memory
