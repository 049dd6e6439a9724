// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-selftest/machine_facts.hpp"

#include <fmt/core.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <set>
#include <thread>

#include "base/files/file.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/nvml.hpp"
#include "gpushm/error.hpp"

namespace gpushm::selftest {

namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

// The value of the first "KEY : VALUE" line in a file of /proc.
std::string value_of(const std::string& path, const std::string& key) {
  const std::string text = base::read_small_file(path).value_or("");
  const std::size_t line = text.find(key);
  const std::size_t colon = text.find(':', line);
  if (line == std::string::npos || colon == std::string::npos) {
    return {};
  }
  const std::size_t start = text.find_first_not_of(" \t", colon + 1);
  return start == std::string::npos ? "" : text.substr(start, text.find('\n', start) - start);
}

json cuda_facts() {
  json facts{{"version", nullptr}, {"problem", nullptr}, {"gpus", json::array()}};
  try {
    const int version = driver::cuda_driver::instance().version();
    facts["version"] = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
    for (const driver::gpu& gpu : driver::visible_gpus()) {
      json entry{{"ordinal", gpu.ordinal},
                 {"kind", to_string(gpu.id.kind)},
                 {"name", gpu.name},
                 {"total_bytes", gpu.total_bytes}};
      facts["gpus"].push_back(std::move(entry));
    }
  } catch (const error& failure) {
    facts["problem"] = failure.what();
  }
  return facts;
}

json nvml_facts() {
  json facts{{"driver_version", nullptr},
             {"problem", nullptr},
             {"gpus", json::array()},
             {"uuid_count", 0}};
  try {
    const driver::nvml_library& nvml = driver::nvml_library::instance();
    facts["driver_version"] = nvml.driver_version();
    // Only the number of UUIDs: the results are for publication.
    std::set<std::string> uuids;
    for (const driver::nvml_gpu& gpu : nvml.gpus()) {
      json entry{
          {"name", gpu.name}, {"total_bytes", gpu.total_bytes}, {"free_bytes", gpu.free_bytes}};
      facts["gpus"].push_back(std::move(entry));
      uuids.insert(gpu.id.uuid);
    }
    facts["uuid_count"] = uuids.size();
  } catch (const error& failure) {
    facts["problem"] = failure.what();
  }
  return facts;
}

}  // namespace

json machine_facts() {
  utsname system{};
  ::uname(&system);
  return json{{"date", utc_now()},
              {"kernel", system.release},
              {"architecture", system.machine},
              {"glibc", ::gnu_get_libc_version()},
              {"cpu", value_of("/proc/cpuinfo", "model name")},
              {"cpu_count", std::thread::hardware_concurrency()},
              {"memory", value_of("/proc/meminfo", "MemTotal")},
              {"uid", ::geteuid()},
              {"cuda", cuda_facts()},
              {"nvml", nvml_facts()}};
}

}  // namespace gpushm::selftest
