// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "driver/cuda_abi.hpp"

namespace gpushm::fake {

enum class range_kind { vmm, legacy, opened, pool, host };

/// Addresses that the driver knows, and what it knows of them.
struct range {
  cuda::CUdeviceptr base = 0;
  std::size_t size_bytes = 0;
  range_kind kind = range_kind::vmm;
  std::size_t gpu = 0;      ///< index into driver_state::gpus
  std::size_t context = 0;  ///< of which GPU, for what goes with a context: legacy, opened
  bool readable = false;
  bool writable = false;
  std::uint64_t buffer_id = 0;  ///< never given twice in a process
  std::shared_ptr<void> owner;  ///< what the memory belongs to; its type goes with `kind`
};

/// Every address range of this process that a copy may name. The caller locks.
class address_space {
 public:
  /// False when it overlaps another one.
  bool add(range added);
  void remove(cuda::CUdeviceptr base) { ranges_.erase(base); }
  /// The range that `pointer` is in, or null.
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
