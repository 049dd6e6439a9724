// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/memory/backends/backend.hpp"

namespace gpushm::memory {

/// Whether `fd` is a memfd of exactly this size that can neither shrink nor grow.
[[nodiscard]] bool is_sealed_memfd(int fd, std::uint64_t size_bytes) noexcept;

/// Sealed memfds. Every chunk is fully allocated, so that exhaustion is an error and not a SIGBUS;
/// and only if there seems to be room, so that it is an error and does not trigger the kernel's OOM
/// killer.
class host_backend final : public backend {
 public:
  explicit host_backend(bool huge_pages) : huge_pages_(huge_pages) {}

  [[nodiscard]] gpushm::backend kind() const noexcept override { return gpushm::backend::host; }
  [[nodiscard]] const device_id& device() const noexcept override { return device_; }
  [[nodiscard]] std::uint64_t granularity() const override;
  [[nodiscard]] std::unique_ptr<allocation> allocate(
      std::string_view name,
      const chunk_plan& plan,
      std::chrono::steady_clock::time_point deadline) const override;

 private:
  [[nodiscard]] std::unique_ptr<importer> begin_import(
      const import_request& request) const override;

  device_id device_;
  bool huge_pages_;
};

}  // namespace gpushm::memory
