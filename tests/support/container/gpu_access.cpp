// SPDX-License-Identifier: Apache-2.0
#include "tests/support/container/gpu_access.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "tests/support/process/harness_error.hpp"

namespace gpushm_testing {
namespace {

namespace fs = std::filesystem;

struct library_closer {
  void operator()(void* library) const noexcept { ::dlclose(library); }
};

}  // namespace

std::vector<int> nvidia_minors() {
  std::vector<int> minors;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("/dev", failed)) {
    const auto name = entry.path().filename().string();
    const auto digits = name.rfind("nvidia", 0) == 0 ? name.substr(6) : std::string();
    if (!digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos) {
      minors.push_back(std::stoi(digits));
    }
  }
  std::sort(minors.begin(), minors.end());
  return minors;
}

std::vector<std::string> nvidia_device_nodes(const std::vector<int>& minors) {
  std::vector<std::string> nodes{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"};
  for (const int minor : minors) {
    nodes.push_back("/dev/nvidia" + std::to_string(minor));
  }
  std::erase_if(nodes, [](const std::string& node) { return !fs::exists(node); });
  return nodes;
}

std::optional<std::string> libcuda_directory() {
  const std::unique_ptr<void, library_closer> library(::dlopen("libcuda.so.1", RTLD_LAZY));
  link_map* loaded = nullptr;
  if (!library || ::dlinfo(library.get(), RTLD_DI_LINKMAP, static_cast<void*>(&loaded)) != 0) {
    return std::nullopt;
  }
  return fs::path(loaded->l_name).parent_path().string();
}

void allow_real_gpus(container_options& options, const std::vector<int>& minors) {
  const auto directory = libcuda_directory();
  if (!directory) {
    throw harness_error("no libcuda.so.1 on this machine");
  }
  for (const auto& node : nvidia_device_nodes(minors)) {
    options.device_nodes.push_back({node, {}});
  }
  options.sysfs = true;
  if (directory->rfind("/usr/", 0) != 0 && directory->rfind("/lib", 0) != 0) {
    options.mounts.push_back({*directory, *directory, false, true});
  }
  options.env.emplace_back("LD_LIBRARY_PATH", *directory);
}

}  // namespace gpushm_testing
