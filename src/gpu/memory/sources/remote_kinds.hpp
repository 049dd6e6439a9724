// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "base/files/guarded_fd.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/memory/sources/remote_memory.hpp"

namespace gpushm::memory {

/// Opens a legacy handle; part of `open_remote`.
[[nodiscard]] std::shared_ptr<region> open_legacy_handle(std::string_view name,
                                                         const remote_memory& memory,
                                                         const driver::gpu& user);

/// Imports an allocation of a pool whose descriptor is `pool`.
[[nodiscard]] std::shared_ptr<region> import_from_pool(std::string_view name,
                                                       const remote_memory& memory,
                                                       base::guarded_fd pool,
                                                       const driver::gpu& user);

/// Number of bytes that the driver has mapped from `address` on. Throws driver_error.
[[nodiscard]] std::uint64_t mapped_bytes_from(std::string_view name, cuda::CUdeviceptr address);

/// Checks that the exporter's range is within the mapping. Throws size_mismatch.
void check_range(std::string_view name, const remote_memory& memory, std::uint64_t mapped_bytes);

}  // namespace gpushm::memory
