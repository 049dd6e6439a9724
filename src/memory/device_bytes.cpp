// SPDX-License-Identifier: Apache-2.0
#include "memory/device_bytes.hpp"

#include "driver/cuda.hpp"
#include "driver/owners.hpp"
#include "driver/primary_context.hpp"

namespace gpushm::memory {

namespace {

using driver::cuda_driver;

/// Copies from pageable memory and memsets may return before the device has finished.
void finish_work(const cuda_driver& cu, std::string_view operation, std::string_view name) {
  cuda_driver::check(cu->cuStreamSynchronize(nullptr), operation, name, "cuStreamSynchronize");
}

}  // namespace

void device_bytes::read(std::uint64_t offset_bytes, std::span<std::byte> destination) const {
  if (destination.empty()) {
    return;  // an address at the memory's end is not valid
  }
  const cuda_driver& cu = cuda_driver::instance();
  const driver::context_scope scope(driver::primary_context(device_, "read", name_), "read", name_);
  cuda_driver::check(
      cu->cuMemcpyDtoH_v2(destination.data(), first_ + offset_bytes, destination.size()),
      "read",
      name_,
      "cuMemcpyDtoH");
}

void device_bytes::write(std::uint64_t offset_bytes, std::span<const std::byte> source) const {
  if (source.empty()) {
    return;
  }
  const cuda_driver& cu = cuda_driver::instance();
  const driver::context_scope scope(
      driver::primary_context(device_, "write", name_), "write", name_);
  cuda_driver::check(cu->cuMemcpyHtoD_v2(first_ + offset_bytes, source.data(), source.size()),
                     "write",
                     name_,
                     "cuMemcpyHtoD");
  finish_work(cu, "write", name_);
}

void device_bytes::fill(std::uint64_t offset_bytes,
                        std::uint64_t size_bytes,
                        std::byte value) const {
  if (size_bytes == 0) {
    return;
  }
  const cuda_driver& cu = cuda_driver::instance();
  const driver::context_scope scope(driver::primary_context(device_, "fill", name_), "fill", name_);
  cuda_driver::check(
      cu->cuMemsetD8_v2(first_ + offset_bytes, std::to_integer<unsigned char>(value), size_bytes),
      "fill",
      name_,
      "cuMemsetD8");
  finish_work(cu, "fill", name_);
}

}  // namespace gpushm::memory
