// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "gpu/driver/cuda_abi.hpp"
#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

/// The parameters of both sides of a trial.
struct memory_request {
  inspect::way how = inspect::way::host;
  std::string device;         ///< the GPU to use; empty for an importer: the memory's GPU
  std::string memory_device;  ///< importer: UUID of the memory's GPU
  std::string socket;
  std::string name;  ///< of the segment
  std::uint64_t size_bytes = 0;
  std::string handle;  ///< importer of a raw way: what the exporter's `handle` returned
};

/// One side's memory in a trial. Thread-safety: distinct objects: safe; shared objects: unsafe.
/// Bound to the thread that created it.
class trial_memory {
 public:
  trial_memory() = default;
  trial_memory(const trial_memory&) = delete;
  trial_memory& operator=(const trial_memory&) = delete;
  virtual ~trial_memory() = default;

  /// Copy between the whole memory and `size_bytes` of host memory. Throw `error`.
  virtual void write(std::span<const std::byte> source) = 0;
  virtual void read(std::span<std::byte> destination) const = 0;
  /// UUID of its GPU, or "host".
  [[nodiscard]] virtual std::string device() const = 0;
  /// Whether the driver reports that GPUDirect RDMA may use this mapping; nullopt for host memory
  /// or if the driver does not report it.
  [[nodiscard]] virtual std::optional<bool> rdma() const { return std::nullopt; }
  /// The bandwidth of copies of `size_bytes` out of it by the GPU that uses it, in bytes per
  /// second; nullopt for host memory. Throws `error`.
  [[nodiscard]] virtual std::optional<double> copy_rate(std::uint64_t /*size_bytes*/) const {
    return std::nullopt;
  }
  /// Exporter of a raw way: the handle for the importer.
  [[nodiscard]] virtual std::string handle() const { return {}; }
};

/// Whether the driver reports that GPUDirect RDMA may use the mapping at `address`.
[[nodiscard]] std::optional<bool> rdma_of(cuda::CUdeviceptr address);

/// Allocates and shares memory. Throws `error`.
[[nodiscard]] std::unique_ptr<trial_memory> export_memory_for(const memory_request& request);

/// Opens the memory that the other side shared. Sets `open_time` to the duration of the open
/// itself, without loading the driver and creating a context. Throws `error`.
[[nodiscard]] std::unique_ptr<trial_memory> import_memory_of(const memory_request& request,
                                                             std::chrono::nanoseconds& open_time);

}  // namespace gpushm::cli
