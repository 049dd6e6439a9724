// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_driver/gpu_config.hpp"

namespace gpushm::fake {

struct fake_gpus_options {
  int gpus = 1;
  std::uint64_t size_bytes = 256UL << 20U;  ///< of each GPU; with MIG, of each instance
  int mig_instances = 0;  ///< of the first GPU; CUDA then lists the instances instead of it
  bool peer = true;       ///< GPUs may access each other
  bool rdma = true;       ///< GPUDirect RDMA may use their memory
  bool rdma_vmm = true;   ///< and also the memory of cuMemCreate, where requested
  /// Where to create the root directory; empty: $TMPDIR or /tmp, or /dev/shm if tmpfs cannot be
  /// mounted.
  std::string parent_directory;
};

/// Fake GPUs for the fake driver, as a directory tree that is removed on destruction:
///   <root>/gpus.conf      their properties
///   <root>/gpu0, mig0 …   their memory: a tmpfs of the right size each; plain directories if this
///                         process may not mount, and then each process counts only its own use
///   <root>/proc           replaces /proc: driver/nvidia/gpus/<pci>/information
///   <root>/dev            replaces /dev: nvidia0 … (character devices if mknod is permitted,
///                         else files)
/// World-accessible, so that any uid and any container that mounts it can use it. Not copyable or
/// movable. The constructor throws std::runtime_error and then leaves no files.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class fake_gpus {
 public:
  explicit fake_gpus(const fake_gpus_options& options = {});
  fake_gpus(const fake_gpus&) = delete;
  fake_gpus& operator=(const fake_gpus&) = delete;
  ~fake_gpus();

  [[nodiscard]] const std::string& root() const noexcept { return root_; }
  [[nodiscard]] std::string dev_root() const { return root_ + "/dev"; }
  [[nodiscard]] std::string proc_root() const { return root_ + "/proc"; }
  /// GPUs and MIG instances, as in gpus.conf.
  [[nodiscard]] const std::vector<gpu_properties>& gpus() const noexcept { return gpus_; }
  /// Whether each GPU is a separate tmpfs, which limits memory over all processes.
  [[nodiscard]] bool mounted() const noexcept { return mounted_; }
  /// Bytes in use on GPU `index` of `gpus()`, over all processes; meaningful when `mounted`.
  [[nodiscard]] std::uint64_t used_bytes(std::size_t index) const;

  /// The variables that a child needs: GPUSHM_FAKE_GPU_ROOT, GPUSHM_PROC_ROOT, GPUSHM_DEV_ROOT, and
  /// LD_LIBRARY_PATH with the fake libraries first.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> environment() const;
  /// Sets them in this process. LD_LIBRARY_PATH affects programs that this process starts, not this
  /// process.
  void set_environment() const;

  /// Creates another /dev for a process that may use only the GPUs with these minors; removed on
  /// destruction.
  [[nodiscard]] std::string make_dev_root(const std::string& name,
                                          const std::vector<int>& minors) const;

 private:
  void make(const fake_gpus_options& options);
  void make_memory(const gpu_properties& gpu);
  void remove() noexcept;

  std::string root_;
  std::vector<gpu_properties> gpus_;
  std::vector<std::string> mounts_;
  bool mounted_ = false;
};

/// The directory with the fake libcuda.so.1 and libnvidia-ml.so.1: $GPUSHM_FAKE_DRIVER_DIR if set;
/// else `lib/fake` or `lib` beside the running program or beside its parent directory, if the
/// libraries are there; else the build's output directory.
[[nodiscard]] std::string fake_driver_directory();

}  // namespace gpushm::fake
