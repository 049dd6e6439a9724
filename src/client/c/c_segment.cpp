// SPDX-License-Identifier: Apache-2.0
// The functions of gpushm.h for segments.
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/report/c_interface.hpp"
#include "client/c/c_handles.hpp"
#include "client/segment/suspend.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpu/memory/backends/device_bytes.hpp"
#include "gpu/streams/stream_operations.hpp"
#include "gpushm/gpushm.h"

using gpushm::base::bytes_in;
using gpushm::base::c_call;
using gpushm::base::c_text;
using gpushm::base::out;
using gpushm::client_detail::filled;

gpushm::client_detail::segment_lease& gpushm_segment::lease(std::string_view operation) const {
  if (mapping_->lease() == nullptr) {
    throw gpushm::error(gpushm::errc::invalid_argument,
                        operation,
                        info().name,
                        "this memory was imported without a broker",
                        "call it in the process that shares the memory");
  }
  return *mapping_->lease();
}

namespace gpushm::client_detail {

namespace {

void check_writable(std::string_view operation, const gpushm_segment& opened) {
  if (opened.mapped().access() == access::read) {
    throw error(errc::invalid_argument,
                operation,
                opened.info().name,
                "the segment is mapped for reading only",
                "open it with access::read_write");
  }
}

void check_range(std::string_view operation,
                 const gpushm_segment& opened,
                 std::uint64_t offset_bytes,
                 std::uint64_t size_bytes) {
  const std::uint64_t whole = opened.info().size_bytes;
  if (offset_bytes > whole || size_bytes > whole - offset_bytes) {
    throw error(errc::invalid_argument,
                operation,
                opened.info().name,
                std::to_string(size_bytes) + " bytes at offset " + std::to_string(offset_bytes) +
                    " are outside the segment's " + std::to_string(whole),
                "stay within size_bytes()");
  }
}

/// A child inherits mappings of host memory, but none of the driver's.
void check_reachable(std::string_view operation, const gpushm_segment& opened) {
  if (opened.region().suspended()) {
    throw error(errc::invalid_argument,
                operation,
                opened.info().name,
                "the segment is suspended: no memory is mapped at its address",
                "resume it first");
  }
  if (opened.info().device.kind != device_kind::host) {
    check_not_forked(opened.forks(), operation, opened.info().name);
  }
}

/// The stream that an operation comes after; nullopt: it has no order against streams.
using order = std::optional<void*>;

/// Blocks until the stream has done what was enqueued on it. `ordinal`: the GPU whose default
/// stream null is; -1: that of the current context.
void wait_for(const order& stream,
              std::string_view operation,
              const gpushm_segment& opened,
              std::int32_t ordinal) {
  if (!stream) {
    return;
  }
  const std::string& name = opened.info().name;
  const auto& cu = driver::cuda_driver::instance();
  std::optional<driver::context_scope> scope;
  if (ordinal >= 0) {
    cuda::CUdevice device = 0;
    driver::cuda_driver::check(cu->cuDeviceGet(&device, ordinal), operation, name, "cuDeviceGet");
    scope.emplace(driver::primary_context(device, operation, name), operation, name);
  }
  auto* const handle = static_cast<cuda::CUstream>(*stream);
  if (streams::is_capturing(handle)) {
    throw error(errc::invalid_argument,
                operation,
                name,
                "the stream is captured for a graph, and this call copies at once",
                "copy before or after the capture, or capture a copy of the driver to data()");
  }
  driver::cuda_driver::check(
      cu->cuStreamSynchronize(handle), operation, name, "cuStreamSynchronize");
}

const gpushm_segment& check_write(const gpushm_segment* segment,
                                  std::string_view operation,
                                  std::uint64_t offset_bytes,
                                  std::uint64_t size_bytes) {
  const gpushm_segment& opened = filled(segment);
  check_reachable(operation, opened);
  check_writable(operation, opened);
  check_range(operation, opened, offset_bytes, size_bytes);
  return opened;
}

void read(const gpushm_segment* segment,
          std::uint64_t offset_bytes,
          void* destination,
          std::size_t size,
          const order& stream) {
  const gpushm_segment& opened = filled(segment);
  static_cast<void>(bytes_in(destination, size, "read"));
  check_reachable("read", opened);
  check_range("read", opened, offset_bytes, size);
  wait_for(stream, "read", opened, gpushm_segment_ordinal(segment));
  opened.region().read(offset_bytes, {static_cast<std::byte*>(destination), size});
}

void write(const gpushm_segment* segment,
           std::uint64_t offset_bytes,
           const void* source,
           std::size_t size,
           const order& stream) {
  const auto bytes = bytes_in(source, size, "write");
  const gpushm_segment& opened = check_write(segment, "write", offset_bytes, size);
  wait_for(stream, "write", opened, gpushm_segment_ordinal(segment));
  opened.region().write(offset_bytes, bytes);
}

void fill(const gpushm_segment* segment, std::uint8_t value, const order& stream) {
  const gpushm_segment& opened = check_write(segment, "fill", 0, 0);
  wait_for(stream, "fill", opened, gpushm_segment_ordinal(segment));
  opened.region().fill(0, opened.info().size_bytes, std::byte{value});
}

void write_from_gpu(const gpushm_segment* segment,
                    std::uint64_t offset_bytes,
                    const void* source,
                    std::size_t size_bytes,
                    const order& stream) {
  static_cast<void>(bytes_in(source, size_bytes, "write"));
  const gpushm_segment& into = check_write(segment, "write", offset_bytes, size_bytes);
  if (size_bytes == 0) {
    return;
  }
  const std::string& name = into.info().name;
  const memory::gpu_source from = memory::find_gpu_source(source, name);
  wait_for(stream, "write", into, from.ordinal);
  auto* const target = static_cast<std::byte*>(into.region().data()) + offset_bytes;
  if (into.info().device.kind == device_kind::host) {
    memory::copy_to_host(from, 0, {target, size_bytes}, name);
    return;
  }
  if (from.ordinal == gpushm_segment_ordinal(segment)) {
    memory::copy_on_gpu(from, target, size_bytes, name);
    return;
  }
  // Neither GPU may use the other's memory: measured on 2x H200, a direct copy is refused.
  constexpr std::uint64_t step_bytes = std::uint64_t{8} << 20U;
  std::vector<std::byte> step(std::min(size_bytes, step_bytes));
  for (std::uint64_t at = 0; at != size_bytes;) {
    const std::uint64_t count = std::min<std::uint64_t>(step.size(), size_bytes - at);
    memory::copy_to_host(from, at, {step.data(), count}, name);
    into.region().write(offset_bytes + at, {step.data(), count});
    at += count;
  }
}

}  // namespace

}  // namespace gpushm::client_detail

// ---- handles ----

gpushm_segment* gpushm_segment_dup(const gpushm_segment* segment) {
  if (segment != nullptr) {
    segment->take_handle();
  }
  return const_cast<gpushm_segment*>(segment);
}

void gpushm_segment_close(gpushm_segment* segment) {
  if (segment != nullptr) {
    segment->end_handle();
  }
}

// ---- properties: these functions neither block nor fail ----

const void* gpushm_segment_data(const gpushm_segment* segment) {
  return segment == nullptr ? nullptr : segment->region().data();
}
void* gpushm_segment_mutable_data(const gpushm_segment* segment) {
  return segment == nullptr || segment->mapped().access() == gpushm::access::read
             ? nullptr
             : segment->region().data();
}
uint64_t gpushm_segment_size_bytes(const gpushm_segment* segment) {
  return segment == nullptr ? 0 : segment->info().size_bytes;
}
gpushm_string gpushm_segment_name(const gpushm_segment* segment) {
  return segment == nullptr ? gpushm_string{} : c_text(segment->info().name);
}
int32_t gpushm_segment_ordinal(const gpushm_segment* segment) {
  return segment == nullptr ? 0 : segment->mapped().ordinal();
}
gpushm_backend gpushm_segment_backend(const gpushm_segment* segment) {
  return segment == nullptr ? GPUSHM_BACKEND_HOST
                            : static_cast<gpushm_backend>(segment->info().backend);
}
gpushm_access gpushm_segment_access(const gpushm_segment* segment) {
  return segment == nullptr ? GPUSHM_ACCESS_READ
                            : static_cast<gpushm_access>(segment->mapped().access());
}
gpushm_lifetime gpushm_segment_lifetime(const gpushm_segment* segment) {
  return segment == nullptr ? GPUSHM_LIFETIME_LEASED
                            : static_cast<gpushm_lifetime>(segment->info().lifetime);
}
uint64_t gpushm_segment_generation(const gpushm_segment* segment) {
  return segment == nullptr ? 0 : segment->mapped().generation();
}
gpushm_segment_state gpushm_segment_current_state(const gpushm_segment* segment) {
  return segment == nullptr ? GPUSHM_SEGMENT_LIVE
                            : static_cast<gpushm_segment_state>(segment->mapped().state());
}

gpushm_errc gpushm_segment_device(const gpushm_segment* segment, gpushm_device* device) {
  return c_call([&] {
    out(device, "device") = gpushm::client_detail::device_out(filled(segment).info().device);
  });
}

gpushm_errc gpushm_segment_epoch(const gpushm_segment* segment, gpushm_epoch* epoch) {
  return c_call([&] {
    gpushm_epoch result{};
    if (const auto* lease = filled(segment).mapped().lease(); lease != nullptr) {
      const gpushm::epoch from = lease->broker()->broker().epoch;
      std::copy(from.begin(), from.end(), std::begin(result.bytes));
    }
    out(epoch, "epoch") = result;
  });
}

gpushm_errc gpushm_segment_metadata(const gpushm_segment* segment,
                                    const void** data,
                                    size_t* size) {
  return c_call([&] {
    const gpushm_segment& opened = filled(segment);
    gpushm::client_detail::check_not_forked(opened.forks(), "metadata", opened.info().name);
    const void*& where = out(data, "metadata");
    std::size_t& length = out(size, "metadata");
    const auto* lease = opened.mapped().lease();
    const auto bytes = lease == nullptr ? std::span<const std::byte>() : lease->metadata();
    where = bytes.data();
    length = bytes.size();
  });
}

// ---- operations ----

gpushm_errc gpushm_segment_publish(gpushm_segment* segment,
                                   const void* metadata,
                                   size_t metadata_size) {
  return c_call([&] {
    const gpushm_segment& opened = filled(segment);
    gpushm::client_detail::check_not_forked(opened.forks(), "publish", opened.info().name);
    opened.lease("publish").publish(bytes_in(metadata, metadata_size, "publish"),
                                    "publish",
                                    gpushm::base::deadline_after(opened.request_limit()));
  });
}

gpushm_errc gpushm_segment_unshare(gpushm_segment* segment) {
  return c_call([&] {
    const gpushm_segment& opened = filled(segment);
    gpushm::client_detail::check_not_forked(opened.forks(), "unshare", opened.info().name);
    opened.lease("unshare").unshare(gpushm::base::deadline_after(opened.request_limit()));
  });
}

gpushm_errc gpushm_segment_suspend(gpushm_segment* segment, gpushm_suspend_mode mode) {
  return c_call([&] {
    gpushm::client_detail::suspend(
        filled(segment), gpushm::base::enum_in(mode, gpushm::suspend_mode::discard, "suspend"));
  });
}

gpushm_errc gpushm_segment_resume(gpushm_segment* segment) {
  return c_call([&] { gpushm::client_detail::resume(filled(segment)); });
}

gpushm_errc gpushm_segment_read(const gpushm_segment* segment,
                                uint64_t offset_bytes,
                                void* destination,
                                size_t size) {
  return c_call(
      [&] { gpushm::client_detail::read(segment, offset_bytes, destination, size, std::nullopt); });
}

gpushm_errc gpushm_segment_read_on(const gpushm_segment* segment,
                                   uint64_t offset_bytes,
                                   void* destination,
                                   size_t size,
                                   void* stream) {
  return c_call(
      [&] { gpushm::client_detail::read(segment, offset_bytes, destination, size, stream); });
}

gpushm_errc gpushm_segment_write(gpushm_segment* segment,
                                 uint64_t offset_bytes,
                                 const void* source,
                                 size_t size) {
  return c_call(
      [&] { gpushm::client_detail::write(segment, offset_bytes, source, size, std::nullopt); });
}

gpushm_errc gpushm_segment_write_on(
    gpushm_segment* segment, uint64_t offset_bytes, const void* source, size_t size, void* stream) {
  return c_call([&] { gpushm::client_detail::write(segment, offset_bytes, source, size, stream); });
}

gpushm_errc gpushm_segment_write_from_gpu(gpushm_segment* segment,
                                          uint64_t offset_bytes,
                                          const void* source,
                                          size_t size) {
  return c_call([&] {
    gpushm::client_detail::write_from_gpu(segment, offset_bytes, source, size, std::nullopt);
  });
}

gpushm_errc gpushm_segment_write_from_gpu_on(
    gpushm_segment* segment, uint64_t offset_bytes, const void* source, size_t size, void* stream) {
  return c_call(
      [&] { gpushm::client_detail::write_from_gpu(segment, offset_bytes, source, size, stream); });
}

gpushm_errc gpushm_segment_fill(gpushm_segment* segment, uint8_t value) {
  return c_call([&] { gpushm::client_detail::fill(segment, value, std::nullopt); });
}

gpushm_errc gpushm_segment_fill_on(gpushm_segment* segment, uint8_t value, void* stream) {
  return c_call([&] { gpushm::client_detail::fill(segment, value, stream); });
}
