// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpushm_tests {

/// A MIG instance: its GPU instance and compute instance, as NVML numbers them.
struct mig_slice {
  int gpu_instance = 0;
  int compute_instance = 0;
  std::string profile;  ///< "1g.5gb"
};

struct recorded_gpu {
  std::string name = "NVIDIA H100 80GB HBM3";
  bool mig = false;
  std::vector<mig_slice> slices;
  bool graphics = false;  ///< has DRM nodes
};

/// GPUs that the fake NVML reports, always with the same UUIDs, and their kernel files:
/// <directory>/{gpus.conf, dev, proc, sys}. Nodes are character devices that can be opened.
class gpu_tree {
 public:
  /// `dev` is the directory of the nodes; empty: <directory>/dev. Throws std::runtime_error.
  gpu_tree(std::string directory,
           const std::vector<recorded_gpu>& gpus,
           const std::string& module_version,
           std::string dev = {});

  [[nodiscard]] const std::string& root() const noexcept { return directory_; }
  [[nodiscard]] std::string proc_root() const { return directory_ + "/proc"; }
  [[nodiscard]] std::string sys_root() const { return directory_ + "/sys"; }
  [[nodiscard]] const std::string& dev() const noexcept { return dev_; }
  /// The environment of a program that uses the fake NVML.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> environment() const;
  /// Replaces the GPUs, as after nvidia-smi mig.
  void replace(const std::vector<recorded_gpu>& gpus);
  void set_module(const std::string& version) const;

 private:
  void write_gpus(const std::vector<recorded_gpu>& gpus) const;
  void write_kernel_files(const std::vector<recorded_gpu>& gpus) const;

  std::string directory_;
  std::string dev_;
};

/// Whether character devices can be created and opened; otherwise tests skip.
[[nodiscard]] bool can_make_nodes(const std::string& directory);
/// Creates a node that can be opened.
void put_node(const std::string& path, unsigned mode = 0666, unsigned group = 0);

// Possible MIG layouts of these GPUs.
[[nodiscard]] std::vector<recorded_gpu> plain_gpus(int count);
[[nodiscard]] recorded_gpu a100_seven();   ///< 1g.5gb seven times
[[nodiscard]] recorded_gpu a100_three();   ///< 3g.20gb, 2g.10gb, 1g.5gb
[[nodiscard]] recorded_gpu h100_mixed();   ///< 3g.40gb, 1g.20gb, 1g.10gb
[[nodiscard]] recorded_gpu h100_halves();  ///< 4g.40gb in two compute instances, 3g.40gb

}  // namespace gpushm_tests
