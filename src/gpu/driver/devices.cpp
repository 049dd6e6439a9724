// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/devices.hpp"

#include <array>
#include <cstdlib>

#include "base/files/file.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/device_text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::driver {

namespace {

constexpr std::string_view operation = "list GPUs";

std::string environment_or(const char* variable, const char* fallback) {
  const char* const value =
      std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): tests set it before any thread
  return value == nullptr || *value == '\0' ? fallback : value;
}

gpu describe(const cuda_driver& cu, int ordinal) {
  const std::string object = "device " + std::to_string(ordinal);
  const auto check = [&](cuda::CUresult result, std::string_view call) {
    cuda_driver::check(result, operation, object, call);
  };
  gpu gpu;
  gpu.ordinal = ordinal;
  check(cu->cuDeviceGet(&gpu.handle, ordinal), "cuDeviceGet");

  std::array<char, 256> text{};
  check(cu->cuDeviceGetName(text.data(), static_cast<int>(text.size()) - 1, gpu.handle),
        "cuDeviceGetName");
  gpu.name = text.data();

  text.fill('\0');
  check(cu->cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()) - 1, gpu.handle),
        "cuDeviceGetPCIBusId");
  gpu.id.pci_address = normal_pci_address(text.data()).value_or(std::string());

  std::size_t total = 0;
  check(cu->cuDeviceTotalMem_v2(&total, gpu.handle), "cuDeviceTotalMem");
  gpu.total_bytes = total;

  cuda::CUuuid uuid{};
  check(cu->cuDeviceGetUuid_v2(&uuid, gpu.handle), "cuDeviceGetUuid");

  gpu_information information;
  if (!gpu.id.pci_address.empty()) {
    const auto content = base::read_small_file(proc_root() + "/driver/nvidia/gpus/" +
                                               gpu.id.pci_address + "/information");
    information = parse_gpu_information(content.value_or(std::string()));
  }
  gpu.id.minor = information.minor;

  // CUDA has no attribute for MIG instances. A MIG instance's UUID differs from its GPU's, and its
  // name contains "MIG".
  const std::string as_gpu = uuid_text("GPU-", uuid.bytes);
  const bool mig = gpu.name.find(" MIG ") != std::string::npos ||
                   (!information.uuid.empty() && information.uuid != as_gpu);
  gpu.id.kind = mig ? device_kind::mig : device_kind::gpu;
  gpu.id.uuid = mig ? uuid_text("MIG-", uuid.bytes) : as_gpu;
  return gpu;
}

std::vector<gpu> list() {
  const cuda_driver& cu = cuda_driver::instance();
  int count = 0;
  cuda_driver::check(cu->cuDeviceGetCount(&count), operation, {}, "cuDeviceGetCount");
  std::vector<gpu> gpus;
  gpus.reserve(static_cast<std::size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    gpus.push_back(describe(cu, ordinal));
  }
  return gpus;
}

constexpr std::string_view notations =
    "use an ordinal (1, cuda:1), the UUID of a GPU or MIG instance, host (cpu) or auto";

[[noreturn]] void throw_not_a_device(std::string_view text, const std::string& available = {}) {
  throw error(errc::device_not_found,
              "find device",
              text,
              "not an ordinal, nor GPU- or MIG- with at least 8 characters of a UUID" + available,
              notations);
}

std::string list_of(std::span<const gpu> gpus) {
  std::string available;
  for (const gpu& each : gpus) {
    available +=
        (available.empty() ? "" : ", ") + std::to_string(each.ordinal) + " = " + each.id.uuid;
  }
  return available.empty() ? "; no GPU is available" : "; available: " + available;
}

[[noreturn]] void throw_not_found(std::string_view text,
                                  std::string_view cause,
                                  std::span<const gpu> gpus) {
  throw error(
      errc::device_not_found, "find device", text, std::string(cause) + list_of(gpus), notations);
}

}  // namespace

std::string proc_root() {
  return environment_or("GPUSHM_PROC_ROOT", "/proc");
}

std::string dev_root() {
  return environment_or("GPUSHM_DEV_ROOT", "/dev");
}

const std::vector<gpu>& visible_gpus() {
  // Queried again in a forked child, so that it gets `forked` and not a list that it cannot use.
  static_cast<void>(cuda_driver::instance());
  static const std::vector<gpu> found = list();
  return found;
}

const gpu& find_device(std::string_view text, std::span<const gpu> gpus) {
  const auto request = parse_device_request(text);
  if (!request) {
    throw_not_a_device(text, list_of(gpus));
  }
  const gpu* match = nullptr;
  for (const gpu& each : gpus) {
    const bool same = request->ordinal ? each.ordinal == *request->ordinal
                                       : each.id.uuid.starts_with(request->uuid_prefix);
    if (same && match != nullptr) {
      throw_not_found(text, "several devices have this prefix", gpus);
    }
    if (same) {
      match = &each;
    }
  }
  if (match == nullptr) {
    throw_not_found(text, "no such device", gpus);
  }
  return *match;
}

const gpu& find_device(std::string_view text) {
  if (!parse_device_request(text)) {
    throw_not_a_device(text);
  }
  return find_device(text, visible_gpus());
}

const gpu* find_visible(const device_id& id) {
  for (const gpu& each : visible_gpus()) {
    if (each.id.uuid == id.uuid) {
      return &each;
    }
  }
  return nullptr;
}

}  // namespace gpushm::driver
