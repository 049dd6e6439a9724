// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/files/file.hpp"
#include "base/files/unique_fd.hpp"
#include "gpu/driver/cuda_abi.hpp"

namespace gpushm_tests {

/// Memory as allocated by programs without gpushm. One allocation at a time.
class agent_memory {
 public:
  agent_memory() = default;
  agent_memory(const agent_memory&) = delete;
  agent_memory& operator=(const agent_memory&) = delete;
  ~agent_memory() = default;  // memory that a test does not free ends with the process

  /// Loads the driver and makes the primary context of `ordinal` current.
  void use_device(int ordinal);
  /// Calls cuDevicePrimaryCtxReset, and recreates the context as the runtime would.
  void reset_device();

  /// Kinds: malloc, vmm, vmm-plain (no handle type), pool, pool-plain, default-pool, pinned,
  /// pageable, memfd, memfd-unsealed, memfd-closed. `chunk_bytes` is for vmm; 0: one chunk.
  void allocate(const std::string& kind, std::uint64_t bytes, std::uint64_t chunk_bytes);
  void free();
  void fill(std::uint64_t offset, std::uint64_t bytes, std::uint8_t value) const;
  [[nodiscard]] std::uint64_t address() const noexcept { return address_; }

 private:
  void allocate_chunks(std::uint64_t bytes, std::uint64_t chunk_bytes, bool exportable);
  void allocate_memfd(std::uint64_t bytes, bool sealed);
  [[nodiscard]] bool on_host() const;

  int ordinal_ = 0;
  gpushm::cuda::CUdevice device_ = 0;
  gpushm::cuda::CUmemoryPool pool_ = nullptr;
  std::string kind_;
  std::uint64_t address_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t chunk_bytes_ = 0;
  gpushm::base::unique_fd file_;
};

}  // namespace gpushm_tests
