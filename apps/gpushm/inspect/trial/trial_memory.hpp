// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

/// What both sides of a trial are told.
struct memory_request {
  inspect::way how = inspect::way::host;
  std::string device;         ///< the GPU to use; the importer's may be empty: the memory's own
  std::string memory_device;  ///< importer: UUID of the GPU that the memory is on
  std::string socket;
  std::string name;  ///< of the segment
  std::uint64_t size_bytes = 0;
  std::string handle;  ///< importer, raw_legacy: 64 bytes in hexadecimal digits
};

/// Memory that one side of a trial has and the other side gets. Distinct objects: safe. Shared
/// objects: unsafe. Bound to the thread that made it.
class trial_memory {
 public:
  trial_memory() = default;
  trial_memory(const trial_memory&) = delete;
  trial_memory& operator=(const trial_memory&) = delete;
  virtual ~trial_memory() = default;

  /// Copy between all of it and `size_bytes` of host memory. Throw `error`.
  virtual void write(std::span<const std::byte> source) = 0;
  virtual void read(std::span<std::byte> destination) const = 0;
  /// UUID of the GPU that it is on; "host".
  [[nodiscard]] virtual std::string device() const = 0;
  /// Whether the driver says that GPUDirect RDMA may use it, where it is mapped here; nothing for
  /// host memory and where the driver does not say.
  [[nodiscard]] virtual std::optional<bool> rdma() const { return std::nullopt; }
  /// Exporter, raw_legacy: what the importer is to be given.
  [[nodiscard]] virtual std::string handle() const { return {}; }
};

/// Allocates and shares. Throws `error`.
[[nodiscard]] std::unique_ptr<trial_memory> export_memory_for(const memory_request& request);

/// Opens what the other side shared; `open_time` gets how long the open itself took, loading the
/// driver and making a context excluded. Throws `error`.
[[nodiscard]] std::unique_ptr<trial_memory> import_memory_of(const memory_request& request,
                                                             std::chrono::nanoseconds& open_time);

}  // namespace gpushm::cli
