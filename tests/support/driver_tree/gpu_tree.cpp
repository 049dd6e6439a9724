// SPDX-License-Identifier: Apache-2.0
#include "tests/support/driver_tree/gpu_tree.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/fake_driver/gpu_config.hpp"

namespace gpushm_tests {

namespace fs = std::filesystem;
using gpushm::fake::gpu_properties;

namespace {

constexpr int first_card = 1;  // the machine's own display is card0
constexpr int first_render = 128;

// As the driver numbers them: config and monitor first, then 15 GPU instances of nine lines each.
constexpr int first_cap = 3;
constexpr int caps_per_instance = 9;
constexpr int instances_per_gpu = 15;

int cap_of(int gpu, int gpu_instance) {
  return first_cap + (gpu * instances_per_gpu + gpu_instance) * caps_per_instance;
}

std::string hexadecimal(std::size_t value, int digits) {
  std::array<char, 32> text{};
  static_cast<void>(std::snprintf(text.data(), text.size(), "%0*zx", digits, value));
  return text.data();
}

std::string pci_of(std::size_t gpu) {
  return "0000:" + hexadecimal(0x18 + 8 * gpu, 2) + ":00.0";
}

std::string text_of(std::size_t number) {
  return std::to_string(number);
}

}  // namespace

gpu_tree::gpu_tree(std::string directory,
                   const std::vector<recorded_gpu>& gpus,
                   const std::string& module_version,
                   std::string dev)
    : directory_(std::move(directory)), dev_(dev.empty() ? directory_ + "/dev" : std::move(dev)) {
  fs::create_directories(dev_);
  fs::create_directories(proc_root());
  fs::create_directories(sys_root());
  for (const char* name : {"/nvidiactl", "/nvidia-uvm", "/nvidia-uvm-tools", "/nvidia-modeset"}) {
    put_node(dev_ + name);
  }
  set_module(module_version);
  replace(gpus);
}

void gpu_tree::set_module(const std::string& version) const {
  const std::string path = proc_root() + "/driver/nvidia/version";
  if (version.empty()) {
    fs::remove(path);
    return;
  }
  put_file(path,
           "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " + version +
               "  Tue Jan 2 03:04:05 UTC 2024\nGCC version:  gcc version 12.2.0\n");
}

void gpu_tree::replace(const std::vector<recorded_gpu>& gpus) {
  write_kernel_files(gpus);
  write_gpus(gpus);
}

void gpu_tree::write_kernel_files(const std::vector<recorded_gpu>& gpus) const {
  fs::remove_all(proc_root() + "/driver/nvidia/capabilities");
  fs::remove_all(dev_ + "/nvidia-caps");
  std::string minors = "config 1\nmonitor 2\n";
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const std::string node = dev_ + "/nvidia" + text_of(i);
    if (!fs::exists(node)) {
      put_node(node);
    }
    for (int instance = 0; instance < instances_per_gpu; ++instance) {
      const std::string prefix = "gpu" + text_of(i) + "/gi" + std::to_string(instance);
      const int cap = cap_of(static_cast<int>(i), instance);
      minors += prefix + "/access " + std::to_string(cap) + "\n";
      for (int compute = 0; compute < caps_per_instance - 1; ++compute) {
        minors += prefix + "/ci" + std::to_string(compute) + "/access " +
                  std::to_string(cap + 1 + compute) + "\n";
      }
    }
    for (const mig_slice& slice : gpus[i].slices) {
      const int cap = cap_of(static_cast<int>(i), slice.gpu_instance);
      for (const int number : {cap, cap + 1 + slice.compute_instance}) {
        const std::string cap_node = dev_ + "/nvidia-caps/nvidia-cap" + std::to_string(number);
        if (!fs::exists(cap_node)) {
          put_node(cap_node);
        }
      }
      put_file(proc_root() + "/driver/nvidia/capabilities/gpu" + text_of(i) + "/mig/gi" +
                   std::to_string(slice.gpu_instance) + "/ci" +
                   std::to_string(slice.compute_instance) + "/access",
               "DeviceFileMinor: 1\n");
    }
    if (gpus[i].graphics) {
      const std::string card = "card" + text_of(first_card + i);
      const std::string render = "renderD" + text_of(first_render + i);
      for (const std::string& name : {card, render}) {
        // The group and mode that udev sets; 44 is video on Debian.
        put_node(dev_ + "/dri/" + name, 0660, 44);
        fs::create_directories(sys_root() + "/bus/pci/devices/" + pci_of(i) + "/drm/" + name);
      }
      put_link(dev_ + "/dri/by-path/pci-" + pci_of(i) + "-card", "../" + card);
      put_link(dev_ + "/dri/by-path/pci-" + pci_of(i) + "-render", "../" + render);
    }
  }
  put_file(proc_root() + "/driver/nvidia-caps/mig-minors", minors);
}

void gpu_tree::write_gpus(const std::vector<recorded_gpu>& gpus) const {
  std::vector<gpu_properties> properties;
  std::vector<gpu_properties> instances;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    gpu_properties gpu;
    gpu.section = "gpu" + text_of(i);
    gpu.uuid = "GPU-" + hexadecimal(i, 8) + "-1111-4222-8333-444455556666";
    gpu.name = gpus[i].name;
    gpu.pci = pci_of(i);
    gpu.minor = static_cast<int>(i);
    gpu.size_bytes = 64UL << 20U;
    gpu.mig_enabled = gpus[i].mig;
    properties.push_back(gpu);
    for (const mig_slice& slice : gpus[i].slices) {
      gpu_properties instance = gpu;
      instance.section = "mig" + text_of(instances.size());
      instance.uuid = "MIG-" + hexadecimal(i, 8) + "-" +
                      hexadecimal(static_cast<std::size_t>(slice.gpu_instance), 4) + "-4" +
                      hexadecimal(static_cast<std::size_t>(slice.compute_instance), 3) + "-8333-" +
                      hexadecimal(slice.profile.size(), 12);
      instance.name += " MIG " + slice.profile;
      instance.mig_parent = gpu.section;
      instance.mig_enabled = false;
      instance.gpu_instance = slice.gpu_instance;
      instance.compute_instance = slice.compute_instance;
      instances.push_back(std::move(instance));
    }
  }
  properties.insert(properties.end(), instances.begin(), instances.end());
  for (const gpu_properties& each : properties) {
    fs::create_directories(directory_ + "/" + each.section);
  }
  put_file(directory_ + "/gpus.conf.new", gpushm::fake::format_config(properties));
  fs::rename(directory_ + "/gpus.conf.new", directory_ + "/gpus.conf");
}

std::vector<std::pair<std::string, std::string>> gpu_tree::environment() const {
  return {{"GPUSHM_FAKE_GPU_ROOT", directory_},
          {"GPUSHM_DEV_ROOT", dev_},
          {"GPUSHM_PROC_ROOT", proc_root()},
          {"GPUSHM_SYS_ROOT", sys_root()},
          {"LD_LIBRARY_PATH", gpushm::fake::fake_driver_directory()}};
}

void put_node(const std::string& path, unsigned mode, unsigned group) {
  fs::create_directories(fs::path(path).parent_path());
  // The numbers of /dev/null, which every process can open.
  if (::mknod(path.c_str(), S_IFCHR | mode, ::makedev(1, 3)) != 0 ||
      ::chmod(path.c_str(), mode) != 0 ||
      ::chown(path.c_str(), static_cast<uid_t>(-1), group) != 0) {
    throw std::runtime_error("cannot create node " + path + ": " + std::strerror(errno));
  }
}

bool can_make_nodes(const std::string& directory) {
  const std::string path = directory + "/node-or-not";
  bool can = ::mknod(path.c_str(), S_IFCHR | 0600, ::makedev(1, 3)) == 0;
  if (can) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    can = fd >= 0 && ::chown(path.c_str(), static_cast<uid_t>(-1), 44) == 0;
    if (fd >= 0) {
      ::close(fd);
    }
  }
  ::unlink(path.c_str());
  return can;
}

std::vector<recorded_gpu> plain_gpus(int count) {
  return std::vector<recorded_gpu>(static_cast<std::size_t>(count));
}

recorded_gpu a100_seven() {
  recorded_gpu gpu{"NVIDIA A100-SXM4-40GB", true, {}, false};
  for (int instance = 7; instance <= 13; ++instance) {
    gpu.slices.push_back({instance, 0, "1g.5gb"});
  }
  return gpu;
}

recorded_gpu a100_three() {
  return {"NVIDIA A100-SXM4-40GB",
          true,
          {{2, 0, "3g.20gb"}, {3, 0, "2g.10gb"}, {9, 0, "1g.5gb"}},
          false};
}

recorded_gpu h100_mixed() {
  return {"NVIDIA H100 80GB HBM3",
          true,
          {{1, 0, "3g.40gb"}, {5, 0, "1g.20gb"}, {11, 0, "1g.10gb"}},
          false};
}

recorded_gpu h100_halves() {
  return {"NVIDIA H100 80GB HBM3",
          true,
          {{1, 0, "2c.4g.40gb"}, {1, 1, "2c.4g.40gb"}, {2, 0, "3g.40gb"}},
          false};
}

}  // namespace gpushm_tests
