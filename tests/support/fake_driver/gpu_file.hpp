// SPDX-License-Identifier: Apache-2.0
#pragma once

// The files that store fake device memory: one header page, then the memory.

#include <cstdint>
#include <optional>
#include <string>

#include "base/files/page_size.hpp"
#include "base/files/unique_fd.hpp"
#include "tests/support/fake_driver/gpu_config.hpp"

namespace gpushm::fake {

enum class file_kind : std::uint32_t { chunk = 1, legacy = 2, pool = 3 };

struct file_header {
  char magic[16] = {};
  file_kind kind = file_kind::chunk;
  std::int32_t exporter_pid = 0;  ///< in the exporter's PID namespace
  std::uint64_t exporter = 0;     ///< random, per process, like the driver's client handle
  char uuid[48] = {};             ///< of the GPU
  std::uint64_t size_bytes = 0;   ///< of the memory after the header
};
/// Offset of the memory in the file.
[[nodiscard]] inline std::uint64_t header_bytes() noexcept {
  return base::host_page_bytes();
}

/// An unnamed file of `size_bytes` of allocated memory on `gpu`; empty when out of memory.
[[nodiscard]] base::unique_fd make_gpu_file(const gpu_view& gpu,
                                            file_kind kind,
                                            std::uint64_t size_bytes);
/// Allocates [offset, offset + size) of the memory in `fd`; false when out of memory.
[[nodiscard]] bool allocate_range(int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes);
/// The header of a writable file that `make_gpu_file` created; nullopt for any other descriptor.
[[nodiscard]] std::optional<file_header> read_header(int fd);
/// Whether `fd` is in the file system of `gpu`.
[[nodiscard]] bool is_on(int fd, const gpu_view& gpu);

/// Maps memory of `fd`, shared, at `address` (replacing existing mappings) or anywhere when that is
/// null; null on failure.
[[nodiscard]] void* map_gpu_file(
    int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes, int protection, void* address);

/// The same, anywhere at a multiple of `granularity_bytes`, which must be a power of two.
[[nodiscard]] void* map_gpu_file_aligned(int fd,
                                         std::uint64_t size_bytes,
                                         int protection,
                                         std::uint64_t granularity_bytes);

}  // namespace gpushm::fake
