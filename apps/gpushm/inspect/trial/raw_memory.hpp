// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device memory as programs share it that do not know gpushm: by the driver's own calls.

#include <string>
#include <string_view>

#include "apps/gpushm/inspect/trial/trial_memory.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/owners.hpp"

namespace gpushm::cli {

/// Device memory in a context that stays current. Thread-safety: distinct objects: safe; shared
/// objects: unsafe.
class raw_memory : public trial_memory {
 public:
  /// `object` is named in errors. Throws `error`.
  raw_memory(const driver::gpu& where, const char* object);

  void write(std::span<const std::byte> source) override;
  void read(std::span<std::byte> destination) const override;
  [[nodiscard]] std::string device() const override { return uuid_; }
  [[nodiscard]] std::optional<bool> rdma() const override;
  [[nodiscard]] std::optional<double> copy_rate(std::uint64_t size_bytes) const override;

 protected:
  /// Throws `error` unless `result` is CUDA_SUCCESS.
  void check(cuda::CUresult result, std::string_view operation, std::string_view call) const;

  cuda::CUdeviceptr address_ = 0;  ///< set by the derived classes

 private:
  cuda::CUcontext context_;
  driver::context_scope scope_;
  const char* object_;
  std::string uuid_;
};

/// Bytes of a handle in hexadecimal digits, and back. Throws `error` (protocol_error) if `text`
/// does not have exactly the digits of `bytes`.
void bytes_of(std::string_view text, std::span<char> bytes);

/// The bandwidth of copies from `source` into new memory of the current context's device, in bytes
/// per second; nullopt if it cannot be measured. `where` is that device.
[[nodiscard]] std::optional<double> measure_copies(const driver::gpu& where,
                                                   cuda::CUdeviceptr source,
                                                   std::uint64_t size_bytes);

/// The GPU whose context opens a handle: the requested one, else the memory's, else any. Throws
/// `error`.
[[nodiscard]] const driver::gpu& importing_gpu(const memory_request& request);

/// way::raw_legacy and way::unmodified: a legacy handle. Throw `error`.
[[nodiscard]] std::unique_ptr<trial_memory> export_handle(const memory_request& request);
[[nodiscard]] std::unique_ptr<trial_memory> import_handle(const memory_request& request,
                                                          std::chrono::nanoseconds& open_time);

/// way::unmodified_event: every use of the memory is ordered by one interprocess event, which each
/// side records after it has written. The handle is taken before the first record.
[[nodiscard]] std::unique_ptr<trial_memory> export_with_event(const memory_request& request);
[[nodiscard]] std::unique_ptr<trial_memory> import_with_event(const memory_request& request,
                                                              std::chrono::nanoseconds& open_time);

/// way::unmodified_descriptor: the handle is the exporter's PID and the number of its descriptor,
/// as PyTorch and UCX send them.
[[nodiscard]] std::unique_ptr<trial_memory> export_descriptor(const memory_request& request);
[[nodiscard]] std::unique_ptr<trial_memory> import_descriptor(const memory_request& request,
                                                              std::chrono::nanoseconds& open_time);

}  // namespace gpushm::cli
