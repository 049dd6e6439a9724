// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/driver/devices.hpp"
#include "gpushm/types.hpp"

namespace gpushm::cli {

/// The bytes of slots for this process's CPU: in place on the host, copied from and to a GPU.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class slot_memory {
 public:
  /// `memory`: where the channel's slots are; `device`: the GPU that uses them, as in
  /// `open_options`, empty: the memory's. Throws `error`: device_not_found, device_not_visible,
  /// driver_unavailable, driver_error.
  slot_memory(std::string name, const device_id& memory, const std::string& device);

  /// Bytes to fill, of a slot of `bytes`; then `finish`.
  [[nodiscard]] std::span<std::byte> begin(void* slot, std::uint64_t bytes);
  /// Blocks until the first `bytes` of them are in the slot. Throws `error`: driver_error.
  void finish(void* slot, std::uint64_t bytes);
  /// The first `bytes` of a slot; valid until the next call. Throws `error`: driver_error.
  [[nodiscard]] std::span<const std::byte> read(const void* slot, std::uint64_t bytes);

 private:
  std::string name_;
  std::optional<cuda::CUdevice> gpu_;
  std::vector<std::byte> copy_;
};

}  // namespace gpushm::cli
