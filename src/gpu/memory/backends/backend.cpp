// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/backends/backend.hpp"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/report/log.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/device_text.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/visibility.hpp"
#include "gpu/memory/backends/cuda_vmm_backend.hpp"
#include "gpu/memory/backends/host_backend.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

std::shared_ptr<const backend> host(bool huge_pages) {
  static const auto plain = std::make_shared<const host_backend>(false);
  static const auto huge = std::make_shared<const host_backend>(true);
  return huge_pages ? huge : plain;
}

/// One backend per GPU: querying granularities and attributes from the driver is not free.
std::shared_ptr<const backend> cuda_vmm(const driver::gpu& gpu) {
  static std::mutex mutex;
  static std::map<int, std::shared_ptr<const backend>> backends;
  const std::lock_guard lock(mutex);
  auto& slot = backends[gpu.ordinal];
  if (!slot) {
    slot = std::make_shared<const cuda_vmm_backend>(gpu);
  }
  return slot;
}

std::shared_ptr<const backend> first_gpu_or_host() {
  try {
    if (!driver::visible_gpus().empty()) {
      return cuda_vmm(driver::visible_gpus().front());
    }
    base::log(log_level::warning, "device auto: CUDA reports no GPU, using host memory");
  } catch (const error& why) {
    if (why.code() != errc::driver_unavailable) {
      throw;
    }
    base::log(log_level::warning, "device auto: " + why.cause() + ", using host memory");
  }
  return host(false);
}

}  // namespace

std::shared_ptr<const backend> backend_for_create(std::string_view text, bool huge_pages) {
  const std::string device = driver::normal_device(text);
  if (device == "host") {
    return host(huge_pages);
  }
  if (huge_pages) {
    throw error(errc::invalid_argument,
                "create",
                device,
                "huge pages are for host segments only",
                "disable huge pages, or create on device host");
  }
  if (device == "auto") {
    return first_gpu_or_host();
  }
  return cuda_vmm(driver::find_device(device));
}

const driver::gpu& gpu_for_open(const device_id& home, std::string_view text) {
  const std::string device = driver::normal_device(text);
  driver::check_visible(home);
  if (!device.empty() && device != "auto") {
    if (device == "host") {
      throw error(errc::invalid_argument,
                  "open",
                  device,
                  "the segment is in the memory of " + home.uuid,
                  "open it without a device, or for a GPU");
    }
    return driver::find_device(device);
  }
  if (const driver::gpu* same = driver::find_visible(home)) {
    return *same;
  }
  if (driver::visible_gpus().empty()) {
    throw error(errc::device_not_found,
                "open",
                home.uuid,
                "CUDA reports no GPU in this process",
                "give this container a GPU, or check CUDA_VISIBLE_DEVICES");
  }
  // Hidden only by CUDA_VISIBLE_DEVICES: its memory can be used anyway (peer access).
  return driver::visible_gpus().front();
}

std::shared_ptr<const backend> backend_for_open(gpushm::backend kind,
                                                const device_id& home,
                                                std::string_view text) {
  const std::string device = driver::normal_device(text);
  if (kind != gpushm::backend::host) {
    return cuda_vmm(gpu_for_open(home, device));
  }
  if (!device.empty() && device != "host" && device != "auto") {
    throw error(errc::invalid_argument,
                "open",
                device,
                "the segment is in host memory",
                "open it without a device; register it with CUDA to use it from a GPU");
  }
  return host(false);
}

int local_ordinal(const device_id& device) noexcept {
  if (device.kind == device_kind::host) {
    return -1;
  }
  try {
    const driver::gpu* const here = driver::find_visible(device);
    return here == nullptr ? -1 : here->ordinal;
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
    return -1;
  }
}

// ---- imports ----

namespace {

/// Passes all chunks to `add`. Throws protocol_error unless their sizes add up to the announced
/// one.
template <typename Add>
void add_all(std::string_view name, std::uint64_t total_bytes, chunk_source& chunks, Add&& add) {
  const auto mismatch = [&](std::string_view cause) {
    return error(errc::protocol_error, "open", name, cause, "report this as a bug");
  };
  std::uint64_t missing_bytes = total_bytes;
  while (auto next = chunks.next()) {
    // Sizes come from other processes: addresses after the announced total do not belong to the
    // importer.
    if (next->size_bytes == 0 || next->size_bytes > missing_bytes) {
      throw mismatch("the chunks are larger than the segment");
    }
    missing_bytes -= next->size_bytes;
    add(std::move(next->file), next->size_bytes);
  }
  if (missing_bytes != 0) {
    throw mismatch("the chunks are smaller than the segment");
  }
}

}  // namespace

std::unique_ptr<region> backend::import(const import_request& request, chunk_source& chunks) const {
  const auto pending = begin_import(request);
  add_all(request.name,
          request.total_bytes,
          chunks,
          [&](base::guarded_fd file, std::uint64_t chunk_bytes) {
            pending->add(std::move(file), chunk_bytes);
          });
  return pending->finish();
}

// ---- regions that are suspended ----

void region::suspend() {
  address_range* const addresses = range();
  if (addresses == nullptr) {
    throw error(errc::not_supported,
                "suspend",
                {},
                "memory of this kind cannot be unmapped and mapped again at its address",
                "suspend segments of the backends cuda-vmm and host only");
  }
  if (suspended()) {
    return;
  }
  suspended_.store(true, std::memory_order_release);  // before anything is unmapped
  try {
    addresses->unmap();
  } catch (const error& why) {
    if (addresses->mapped_bytes() == addresses->total_bytes()) {
      suspended_.store(false, std::memory_order_release);
    }
    throw why.in("suspend", addresses->name());
  }
}

void region::resume(chunk_source& chunks) {
  address_range* const addresses = range();
  if (addresses == nullptr || !suspended()) {
    throw error(errc::invalid_argument,
                "resume",
                addresses == nullptr ? std::string_view() : addresses->name(),
                "the memory is not suspended",
                "call resume once after suspend");
  }
  try {
    addresses->unmap();  // what a failed call has left
    add_all(addresses->name(),
            addresses->total_bytes(),
            chunks,
            [&](base::guarded_fd file, std::uint64_t chunk_bytes) {
              addresses->add(std::move(file), chunk_bytes);
            });
    addresses->allow_access();
  } catch (const error& why) {
    try {
      addresses->unmap();
    } catch (const error& other) {
      base::log(log_level::warning, other.what());  // the next call tries again
    }
    throw why.in("resume", addresses->name());
  }
  suspended_.store(false, std::memory_order_release);
}

}  // namespace gpushm::memory
