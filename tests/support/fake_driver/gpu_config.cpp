// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_driver/gpu_config.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/files/unique_fd.hpp"

namespace gpushm::fake {

namespace {

constexpr std::uint64_t granularity_bytes = 2UL << 20U;

std::string environment_or(const char* variable, const char* fallback) {
  const char* const value = std::getenv(variable);
  return value == nullptr || *value == '\0' ? fallback : value;
}

bool can_open(const std::string& path, int flags) {
  return static_cast<bool>(base::unique_fd(::open(path.c_str(), flags | O_CLOEXEC)));
}

void set(gpu_properties& gpu, const std::string& key, const std::string& value) {
  if (key == "uuid") {
    gpu.uuid = value;
  } else if (key == "name") {
    gpu.name = value;
  } else if (key == "pci") {
    gpu.pci = value;
  } else if (key == "minor") {
    gpu.minor = std::atoi(value.c_str());
  } else if (key == "numa") {
    gpu.numa = std::atoi(value.c_str());
  } else if (key == "size_bytes") {
    gpu.size_bytes = std::strtoull(value.c_str(), nullptr, 10);
  } else if (key == "mig_parent") {
    gpu.mig_parent = value;
  } else if (key == "peer") {
    gpu.peer = value != "0";
  } else if (key == "rdma") {
    gpu.rdma = value != "0";
  } else if (key == "rdma_vmm") {
    gpu.rdma_vmm = value != "0";
  } else if (key == "rdma_ignored") {
    gpu.rdma_ignored = value == "1";
  } else if (key == "mig_enabled") {
    gpu.mig_enabled = value == "1";
  } else if (key == "gpu_instance") {
    gpu.gpu_instance = std::atoi(value.c_str());
  } else if (key == "compute_instance") {
    gpu.compute_instance = std::atoi(value.c_str());
  }
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  if (c >= 'a' && c <= 'f') {
    return c - 'a' + 10;
  }
  return -1;
}

}  // namespace

std::string format_config(const std::vector<gpu_properties>& gpus) {
  std::ostringstream text;
  for (const gpu_properties& gpu : gpus) {
    text << '[' << gpu.section << "]\nuuid=" << gpu.uuid << "\nname=" << gpu.name
         << "\npci=" << gpu.pci << "\nminor=" << gpu.minor << "\nnuma=" << gpu.numa
         << "\nsize_bytes=" << gpu.size_bytes << "\npeer=" << (gpu.peer ? 1 : 0)
         << "\nrdma=" << (gpu.rdma ? 1 : 0) << "\nrdma_vmm=" << (gpu.rdma_vmm ? 1 : 0) << '\n';
    if (!gpu.mig_parent.empty()) {
      text << "mig_parent=" << gpu.mig_parent << "\ngpu_instance=" << gpu.gpu_instance
           << "\ncompute_instance=" << gpu.compute_instance << '\n';
    }
    if (gpu.rdma_ignored) {
      text << "rdma_ignored=1\n";
    }
    if (gpu.mig_enabled) {
      text << "mig_enabled=1\n";
    }
  }
  return text.str();
}

std::vector<gpu_properties> parse_config(std::string_view text) {
  std::vector<gpu_properties> gpus;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > 2 && line.front() == '[' && line.back() == ']') {
      gpus.emplace_back();
      gpus.back().section = line.substr(1, line.size() - 2);
      continue;
    }
    const auto equals = line.find('=');
    if (equals != std::string::npos && !gpus.empty()) {
      set(gpus.back(), line.substr(0, equals), line.substr(equals + 1));
    }
  }
  return gpus;
}

std::vector<gpu_properties> read_config(const std::string& root) {
  std::ifstream file(root + "/gpus.conf");
  std::ostringstream text;
  text << file.rdbuf();
  return file ? parse_config(text.str()) : std::vector<gpu_properties>{};
}

std::vector<gpu_view> read_gpus() {
  const std::string root = environment_or("GPUSHM_FAKE_GPU_ROOT", "");
  if (root.empty()) {
    return {};
  }
  const std::string nodes = environment_or("GPUSHM_DEV_ROOT", "/dev");
  std::vector<gpu_view> views;
  for (gpu_properties& gpu : read_config(root)) {
    gpu_view view{std::move(gpu), {}, false};
    view.directory = root + "/" + view.properties.section;
    view.openable = can_open(nodes + "/nvidia" + std::to_string(view.properties.minor), O_RDWR) &&
                    can_open(view.directory, O_RDONLY | O_DIRECTORY);
    views.push_back(std::move(view));
  }
  return views;
}

void uuid_bytes(std::string_view text, char (&bytes)[16]) {
  std::memset(bytes, 0, sizeof(bytes));
  std::string digits;
  std::copy_if(text.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(4, text.size())),
               text.end(),
               std::back_inserter(digits),
               [](char c) { return hex_digit(c) >= 0; });
  if (digits.size() != 2 * sizeof(bytes)) {
    return;
  }
  for (std::size_t i = 0; i < sizeof(bytes); ++i) {
    bytes[i] = static_cast<char>(hex_digit(digits[2 * i]) * 16 + hex_digit(digits[2 * i + 1]));
  }
}

memory_state read_memory_state(const gpu_view& gpu) {
  memory_state state;
  struct statvfs space {};
  struct stat own {};
  struct stat above {};
  if (::statvfs(gpu.directory.c_str(), &space) != 0 || ::stat(gpu.directory.c_str(), &own) != 0 ||
      ::stat((gpu.directory + "/..").c_str(), &above) != 0) {
    return state;
  }
  const std::uint64_t configured = gpu.properties.size_bytes;
  state.own_file_system = own.st_dev != above.st_dev;
  state.total_bytes = configured != 0 ? configured : space.f_blocks * space.f_frsize;
  if (!state.own_file_system) {
    state.free_bytes = state.total_bytes;
    return state;
  }
  const std::uint64_t used =
      (space.f_blocks - space.f_bfree) * space.f_frsize / granularity_bytes * granularity_bytes;
  state.free_bytes = state.total_bytes - std::min(state.total_bytes, used);
  return state;
}

}  // namespace gpushm::fake
