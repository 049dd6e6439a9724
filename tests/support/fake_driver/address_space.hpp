// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "gpu/driver/cuda_abi.hpp"

namespace gpushm::fake {

enum class range_kind { vmm, legacy, opened, pool, host };

/// A range of addresses that the driver manages, and its properties.
struct range {
  cuda::CUdeviceptr base = 0;
  std::size_t size_bytes = 0;
  range_kind kind = range_kind::vmm;
  std::size_t gpu = 0;      ///< index into driver_state::gpus
  std::size_t context = 0;  ///< of its GPU, for memory that a context owns: legacy, opened
  bool readable = false;
  bool writable = false;
  std::uint64_t buffer_id = 0;  ///< never reused in a process
  std::shared_ptr<void> owner;  ///< owner of the memory; its type depends on `kind`
};

/// Every address range of this process that a copy may use. The caller locks.
class address_space {
 public:
  /// Returns false if it overlaps another range.
  bool add(range added);
  void remove(cuda::CUdeviceptr base) { ranges_.erase(base); }
  /// The range that contains `pointer`, or null.
  [[nodiscard]] range* find(cuda::CUdeviceptr pointer);
  /// Whether all of [pointer, pointer + size) may be read, and written if `write`.
  [[nodiscard]] bool allows(cuda::CUdeviceptr pointer, std::size_t size_bytes, bool write);
  [[nodiscard]] bool overlaps(cuda::CUdeviceptr pointer, std::size_t size_bytes);
  [[nodiscard]] std::uint64_t next_buffer_id() { return ++last_buffer_id_; }
  [[nodiscard]] std::map<cuda::CUdeviceptr, range>& all() { return ranges_; }

 private:
  std::map<cuda::CUdeviceptr, range> ranges_;
  std::uint64_t last_buffer_id_ = 0;
};

}  // namespace gpushm::fake
