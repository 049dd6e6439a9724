// SPDX-License-Identifier: Apache-2.0
#include "demo/demo_size.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <string>

#include "base/file.hpp"
#include "driver/devices.hpp"
#include "driver/nvml.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

std::optional<std::uint64_t> leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  std::uint64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failed == std::errc() ? std::optional(value) : std::nullopt;
}

// This process's cgroup v2, for instance "/user.slice/session.scope"; empty when there is none.
std::string own_cgroup() {
  const std::string text = base::read_small_file("/proc/self/cgroup").value_or("");
  const std::size_t start = text.rfind("0::");
  return start == std::string::npos ? ""
                                    : text.substr(start + 3, text.find('\n', start) - start - 3);
}

demo_place place_of(const driver::gpu& gpu) {
  return {gpu.id.uuid, gpu.name, {}, gpu.id.kind};
}

}  // namespace

demo_place find_place(const std::string& device) {
  if (device == "host") {
    return {"host", {}, {}, device_kind::host};
  }
  if (device != "auto") {
    return place_of(driver::find_device(device));
  }
  try {
    const auto& gpus = driver::visible_gpus();
    if (!gpus.empty()) {
      return place_of(gpus.front());
    }
    return {"host", {}, "no GPU is visible to this process", device_kind::host};
  } catch (const error& failure) {
    // The usual machine without GPUs. Anything else that is wrong with a driver is worth stopping
    // for.
    if (failure.code() != errc::driver_unavailable) {
      throw;
    }
    return {"host", {}, failure.cause(), device_kind::host};
  }
}

std::optional<std::uint64_t> free_host_bytes(std::string_view meminfo,
                                             std::string_view cgroup_max,
                                             std::string_view cgroup_current) {
  constexpr std::string_view key = "MemAvailable:";
  const std::size_t start = meminfo.find(key);
  if (start == std::string_view::npos) {
    return std::nullopt;
  }
  const auto kibibytes = leading_number(meminfo.substr(start + key.size()));
  if (!kibibytes) {
    return std::nullopt;
  }
  std::uint64_t free = *kibibytes * 1024;
  const auto limit = leading_number(cgroup_max);  // or "max"
  const auto used = leading_number(cgroup_current);
  if (limit && used) {
    free = std::min(free, *limit - std::min(*limit, *used));
  }
  return free;
}

std::optional<std::uint64_t> free_bytes(const demo_place& place) {
  if (place.kind == device_kind::host) {
    const std::string group = "/sys/fs/cgroup" + own_cgroup();
    return free_host_bytes(base::read_small_file("/proc/meminfo").value_or(""),
                           base::read_small_file(group + "/memory.max").value_or(""),
                           base::read_small_file(group + "/memory.current").value_or(""));
  }
  const driver::nvml_library* nvml = driver::nvml_library::try_instance();
  if (nvml == nullptr) {
    return std::nullopt;
  }
  for (const driver::nvml_gpu& gpu : nvml->gpus()) {
    if (gpu.id.uuid == place.device) {
      return gpu.free_bytes;
    }
  }
  return std::nullopt;  // a MIG instance: NVML lists boards
}

std::uint64_t fitting_size(std::uint64_t wanted, std::uint64_t free_bytes) {
  const std::uint64_t most = free_bytes / 5 * 3;
  if (wanted <= most) {
    return wanted;
  }
  return std::max<std::uint64_t>(std::bit_floor(most), 1U << 20U);
}

}  // namespace gpushm::cli
