// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_driver/fake_gpus.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>

namespace gpushm::fake {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(const std::string& step) {
  throw std::runtime_error(step + ": " + std::strerror(errno));
}

void make_directory(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), 0700) != 0 || ::chmod(path.c_str(), mode) != 0) {
    fail("mkdir " + path);
  }
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path);
  file << content;
  file.close();
  if (!file) {
    fail("write " + path);
  }
}

// A character device that every user can open: the same numbers as /dev/null. A regular file where
// mknod is not permitted.
void make_node(const std::string& path) {
  if (::mknod(path.c_str(), S_IFCHR | 0666, ::makedev(1, 3)) == 0) {
    // In a user namespace or on a nodev mount the node exists but cannot be opened.
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
      ::close(fd);
      if (::chmod(path.c_str(), 0666) != 0) {
        fail("chmod " + path);
      }
      return;
    }
    ::unlink(path.c_str());
  }
  write_file(path, "");
  if (::chmod(path.c_str(), 0666) != 0) {
    fail("chmod " + path);
  }
}

std::string fake_uuid(const char* prefix, int number) {
  char text[64];
  // The random part keeps GPUs of different roots distinct, like real UUIDs.
  static const unsigned int seed = std::random_device()();
  static unsigned int count = 0;
  std::snprintf(text,
                sizeof(text),
                "%s%08x-fa4e-4000-8000-%08x%04x",
                prefix,
                0xfa4e0000U + static_cast<unsigned int>(number),
                seed,
                count++ & 0xffffU);
  return text;
}

std::string fake_pci(int number) {
  char text[16];
  std::snprintf(
      text, sizeof(text), "0000:%02x:00.0", static_cast<unsigned int>(0x10 + number) & 0xffU);
  return text;
}

bool can_mount(const std::string& directory) {
  if (::mount("gpushm-fake-gpu", directory.c_str(), "tmpfs", 0, "size=4096") != 0) {
    return false;
  }
  ::umount2(directory.c_str(), MNT_DETACH);
  return true;
}

std::string make_root(std::string parent) {
  if (parent.empty()) {
    const char* const temporary = std::getenv("TMPDIR");
    parent = temporary == nullptr ? "/tmp" : temporary;
  }
  std::string pattern = parent + "/gpushm-fake-gpus-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    fail("mkdtemp " + pattern);
  }
  ::chmod(pattern.c_str(), 0755);
  return pattern;
}

}  // namespace

fake_gpus::fake_gpus(const fake_gpus_options& options) {
  try {
    make(options);
  } catch (...) {
    remove();
    throw;
  }
}

fake_gpus::~fake_gpus() {
  remove();
}

void fake_gpus::make(const fake_gpus_options& options) {
  root_ = make_root(options.parent_directory);
  mounted_ = can_mount(root_);
  if (!mounted_ && options.parent_directory.empty()) {
    // Chunks must still be files of a tmpfs: that is how they are recognised.
    ::rmdir(root_.c_str());
    root_ = make_root("/dev/shm");
  }
  for (int number = 0; number < options.gpus; ++number) {
    gpu_properties gpu;
    gpu.section = "gpu" + std::to_string(number);
    gpu.uuid = fake_uuid("GPU-", number);
    gpu.name = "Fake GPU";
    gpu.pci = fake_pci(number);
    gpu.minor = number;
    gpu.size_bytes = options.size_bytes;
    gpu.peer = options.peer;
    gpu.rdma = options.rdma;
    gpu.rdma_vmm = options.rdma && options.rdma_vmm;
    gpus_.push_back(gpu);
  }
  for (int number = 0; number < options.mig_instances && !gpus_.empty(); ++number) {
    gpu_properties instance = gpus_.front();
    instance.section = "mig" + std::to_string(number);
    instance.uuid = fake_uuid("MIG-", number);
    instance.name = "Fake GPU MIG 1g.1gb";
    instance.mig_parent = gpus_.front().section;
    instance.peer = false;
    gpus_.push_back(instance);
  }
  for (const gpu_properties& gpu : gpus_) {
    make_memory(gpu);
  }
  make_directory(proc_root(), 0755);
  std::vector<int> minors;
  for (const gpu_properties& gpu : gpus_) {
    if (!gpu.mig_parent.empty()) {
      continue;
    }
    minors.push_back(gpu.minor);
    const std::string directory = proc_root() + "/driver/nvidia/gpus/" + gpu.pci;
    fs::create_directories(directory);
    write_file(directory + "/information",
               "Model: \t\t " + gpu.name + "\nIRQ:   \t\t 0\nGPU UUID: \t " + gpu.uuid +
                   "\nBus Location: \t " + gpu.pci + "\nDevice Minor: \t " +
                   std::to_string(gpu.minor) + "\nGPU Excluded:\t No\n");
  }
  static_cast<void>(make_dev_root("dev", minors));
  write_file(root_ + "/gpus.conf", format_config(gpus_));
}

void fake_gpus::make_memory(const gpu_properties& gpu) {
  const std::string directory = root_ + "/" + gpu.section;
  make_directory(directory, 01777);
  if (!mounted_) {
    return;
  }
  // Each allocation has a header page in addition to its 2 MiB, and the driver counts only whole 2
  // MiB.
  const std::uint64_t size = gpu.size_bytes + gpu.size_bytes / 256 + (1U << 20U);
  const std::string options = "mode=1777,nr_inodes=0,size=" + std::to_string(size);
  if (::mount("gpushm-fake-gpu", directory.c_str(), "tmpfs", 0, options.c_str()) != 0) {
    fail("mount " + directory);
  }
  mounts_.push_back(directory);
}

void fake_gpus::remove() noexcept {
  for (const std::string& directory : mounts_) {
    ::umount2(directory.c_str(), MNT_DETACH);
  }
  if (!root_.empty()) {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
}

std::uint64_t fake_gpus::used_bytes(std::size_t index) const {
  struct statvfs space {};
  const std::string directory = root_ + "/" + gpus_.at(index).section;
  if (::statvfs(directory.c_str(), &space) != 0) {
    fail("statvfs " + directory);
  }
  return (space.f_blocks - space.f_bfree) * space.f_frsize;
}

std::vector<std::pair<std::string, std::string>> fake_gpus::environment() const {
  std::string path = fake_driver_directory();
  if (const char* const others = std::getenv("LD_LIBRARY_PATH"); others != nullptr) {
    path += std::string(":") + others;
  }
  return {{"GPUSHM_FAKE_GPU_ROOT", root_},
          {"GPUSHM_PROC_ROOT", proc_root()},
          {"GPUSHM_DEV_ROOT", dev_root()},
          {"LD_LIBRARY_PATH", path}};
}

void fake_gpus::set_environment() const {
  for (const auto& [name, value] : environment()) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
}

std::string fake_gpus::make_dev_root(const std::string& name,
                                     const std::vector<int>& minors) const {
  const std::string directory = root_ + "/" + name;
  make_directory(directory, 0755);
  for (const int minor : minors) {
    make_node(directory + "/nvidia" + std::to_string(minor));
  }
  for (const char* control : {"/nvidiactl", "/nvidia-uvm"}) {
    make_node(directory + control);
  }
  return directory;
}

std::string fake_driver_directory() {
  if (const char* const named = std::getenv("GPUSHM_FAKE_DRIVER_DIR"); named != nullptr) {
    return named;
  }
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& place : {program / "lib/fake",
                                program / "lib",
                                program.parent_path() / "lib/fake",
                                program.parent_path() / "lib"}) {
    if (fs::exists(place / "libcuda.so.1", ignored) &&
        fs::exists(place / "libnvidia-ml.so.1", ignored)) {
      return place.string();
    }
  }
  return GPUSHM_FAKE_DRIVER_BUILD_DIR;
}

}  // namespace gpushm::fake
