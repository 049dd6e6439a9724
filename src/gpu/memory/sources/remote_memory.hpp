// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/files/guarded_fd.hpp"
#include "base/process/process.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/memory/backends/backend.hpp"

namespace gpushm::memory {

/// Exporter-bound memory: a legacy handle or an allocation of a pool, as described by a ticket.
struct remote_memory {
  gpushm::backend kind = gpushm::backend::cuda_ipc;  ///< cuda_ipc or cuda_pool
  std::uint64_t size_bytes = 0;                      ///< of the shared range
  std::uint64_t offset_bytes = 0;                    ///< of the shared range in the allocation
  std::uint64_t allocated_bytes = 0;
  device_id device;
  base::process_identity exporter;
  std::uint64_t address = 0;    ///< of the shared range, in the exporter
  std::uint64_t buffer_id = 0;  ///< in the exporter; distinguishes an allocation from a later one
  std::array<std::byte, 64> handle{};       ///< from cuIpcGetMemHandle or cuMemPoolExportPointer
  std::optional<std::uint16_t> pid_offset;  ///< of the exporter's PID in a legacy handle
  std::uint64_t pool = 0;                   ///< identifies the exporter's pool
};

/// Maps memory of another process for `user`. Mappings of one allocation are shared within this
/// process. `pool` is the pool's descriptor, required for pools; it is closed. Precondition: the
/// caller has checked that this process may use the memory's GPU (`gpu_for_open`): importing a pool
/// of another GPU crashes inside the driver. These kinds have no read-only access.
///
/// Throws `error`: peer_unreachable (another machine or boot), pid_collision, peer_died (the handle
/// is no longer valid), gone_or_replaced (the driver still maps the previous memory of the handle),
/// size_mismatch, forked, driver_unavailable, driver_error, out_of_memory.
[[nodiscard]] std::shared_ptr<region> open_remote(std::string_view name,
                                                  const remote_memory& memory,
                                                  base::guarded_fd pool,
                                                  const driver::gpu& user);

/// Throws `errc::peer_unreachable` if `exporter` is on another machine or of another boot.
void check_same_machine(std::string_view name, const base::process_identity& exporter);

/// Whether this process exported it.
[[nodiscard]] bool is_own(const remote_memory& memory);
/// The pointer itself, for memory that this process exported; no driver call. Throws
/// gone_or_replaced (no longer shared).
[[nodiscard]] std::shared_ptr<region> open_own(std::string_view name, const remote_memory& memory);

/// While it exists, tickets that name this process and this memory are accepted: without it,
/// untrusted bytes could point anywhere into this process. Thread-safe.
class own_export {
 public:
  explicit own_export(const remote_memory& memory);
  own_export(const own_export&) = delete;
  own_export& operator=(const own_export&) = delete;
  ~own_export();

 private:
  std::array<std::uint64_t, 3> key_;
};

/// Memory of this process as a region that does not own it: the exporter's own view. `device` is
/// the memory's device. Throws as `driver::visible_gpus`.
[[nodiscard]] std::shared_ptr<region> own_memory(std::string_view name,
                                                 std::uint64_t address,
                                                 std::uint64_t size_bytes,
                                                 const device_id& device);

/// The PID in a legacy handle at `offset`, which is at most 60. Pure.
[[nodiscard]] std::int32_t pid_in(const std::array<std::byte, 64>& handle, std::size_t offset);

/// The handle that this process must pass to the driver: rewritten if the driver would otherwise
/// mistake it for one of this process. Pure. Throws pid_collision.
[[nodiscard]] std::array<std::byte, 64> usable_handle(std::string_view name,
                                                      const remote_memory& memory,
                                                      std::int32_t own_pid);

}  // namespace gpushm::memory
