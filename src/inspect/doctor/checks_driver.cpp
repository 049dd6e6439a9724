// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "driver/cuda.hpp"
#include "inspect/doctor/rules.hpp"

namespace gpushm::inspect::rules {

namespace {

constexpr std::string_view give_driver =
    "start the container with the driver: --device nvidia.com/gpu=all (CDI), --gpus all, or a GPU "
    "in its resource limits";

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The minimum driver branch for a major version of CUDA (NVIDIA, CUDA Compatibility, "Minor Version
// Compatibility").
int minimum_branch(int cuda_major) {
  switch (cuda_major) {
    case 11:
      return 450;
    case 12:
      return 525;
    case 13:
      return 580;
    default:
      return 0;
  }
}

// The newest CUDA version of each driver branch (NVIDIA, CUDA Toolkit release notes), used where
// libcuda cannot report it.
int cuda_of_branch(int branch) {
  static constexpr auto table = std::to_array<std::pair<int, int>>(
      {{590, 13010}, {580, 13000}, {575, 12090}, {570, 12080}, {565, 12070}, {560, 12060},
       {555, 12050}, {550, 12040}, {545, 12030}, {535, 12020}, {530, 12010}, {525, 12000},
       {520, 11080}, {515, 11070}, {510, 11060}, {495, 11050}, {470, 11040}, {465, 11030},
       {460, 11020}, {455, 11010}, {450, 11000}});
  for (const auto& [from, version] : table) {
    if (branch >= from) {
      return version;
    }
  }
  return 0;
}

int branch_of(const std::string& driver_version) {
  return base::number<int>(driver_version.substr(0, driver_version.find('.'))).value_or(0);
}

}  // namespace

check libcuda(const facts& all) {
  check made;
  const cuda_view& cuda = all.driver.cuda;
  if (!cuda.library.empty()) {
    made.result = verdict::ok;
    made.seen = cuda.library;
    return made;
  }
  if (!all.libcuda_files.empty() && all.driver.failure.empty()) {
    const std::string& file = all.libcuda_files.front();
    made.result = verdict::problem;
    made.seen = file + " exists, but the loader does not find libcuda.so.1";
    made.why = "no program can use CUDA until the loader finds it";
    made.remedy =
        "run ldconfig as root, or export LD_LIBRARY_PATH=" + file.substr(0, file.rfind('/')) +
        ":$LD_LIBRARY_PATH";
    return made;
  }
  if (!all.libcuda_files.empty()) {
    made.seen = unknown(all.libcuda_files.front() + " was not loaded: see cuinit");
    return made;
  }
  if (!driver_expected(all)) {
    made.seen = "no NVIDIA driver";
    made.why = "segments in host memory work without a driver";
    return made;
  }
  made.result = verdict::problem;
  made.seen = "no libcuda.so.1, though the machine has NVIDIA's kernel module or device nodes";
  made.why = "without the driver's library no process can use a GPU";
  made.remedy = in_container(all.self) ? give_driver : "install the driver's libraries: libcuda1";
  return made;
}

check driver_match(const facts& all) {
  check made;
  if (all.module_version.empty() || all.libcuda_version.empty()) {
    made.seen = unknown(all.module_version.empty() ? "the kernel module's version is not visible"
                                                   : "the library's file name contains no version");
    return made;
  }
  made.seen = "kernel module " + all.module_version + (all.open_module ? " (open)" : "") +
              ", library " + all.libcuda_version;
  if (!all.compat_version.empty()) {
    made.result = verdict::ok;
    made.seen += " (forward compatibility package)";
  } else if (all.module_version == all.libcuda_version) {
    made.result = verdict::ok;
  } else {
    made.result = verdict::problem;
    made.why =
        "library and module must have the same version: cuInit fails with "
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803), NVML with \"Driver/library version mismatch\"";
    made.remedy = in_container(all.self)
                      ? "restart the container: the host's driver was updated after it started"
                      : "reboot, or stop all GPU users and reload: modprobe -r nvidia_uvm "
                        "nvidia_drm nvidia_modeset nvidia && modprobe nvidia";
  }
  return made;
}

check cuda_compat(const facts& all) {
  check made;
  const auto newest = std::max_element(
      all.toolkits.begin(), all.toolkits.end(), [](const toolkit_facts& a, const toolkit_facts& b) {
        return a.version < b.version;
      });
  const int branch = branch_of(all.module_version);
  const int driver =
      all.driver.cuda.version != 0 ? all.driver.cuda.version : cuda_of_branch(branch);
  if (newest == all.toolkits.end() || driver == 0) {
    made.seen = newest == all.toolkits.end()
                    ? "no CUDA toolkit or runtime found in the usual places"
                    : unknown("the driver's CUDA version is not visible");
    return made;
  }
  made.seen = "driver: CUDA " + version_text(driver) +
              "; newest here: " + version_text(newest->version) + " (" + newest->path + ")";
  if (newest->version <= driver) {
    made.result = verdict::ok;
  } else if (newest->version / 1000 == driver / 1000) {
    made.result = verdict::ok;
    made.why =
        "a newer minor version runs on this driver, without its new features and without PTX that "
        "must be compiled (minor version compatibility)";
  } else {
    const int major = newest->version / 1000;
    const int needed = minimum_branch(major);
    made.result = verdict::problem;
    made.why = "CUDA " + std::to_string(major) +
               " programs fail with "
               "cudaErrorInsufficientDriver (35)" +
               (needed == 0 ? std::string()
                            : ": they need driver " + std::to_string(needed) + " or newer");
    made.remedy =
        "update the driver, use an older toolkit, or on data centre GPUs install "
        "cuda-compat-" +
        std::to_string(major) + "-" + std::to_string(newest->version % 1000 / 10);
  }
  return made;
}

check nvml(const facts& all) {
  check made;
  const nvml_view& view = all.driver.nvml;
  if (!driver_expected(all) && view.library.empty()) {
    made.seen = "no NVIDIA driver";
    return made;
  }
  if (!all.driver.failure.empty()) {
    made.seen = unknown("NVML was not called: see cuinit");
    return made;
  }
  if (view.problem.empty()) {
    made.result = verdict::ok;
    made.seen = "NVML " + view.nvml_version + ", driver " + view.driver_version + ", " +
                std::to_string(view.gpus.size()) + (view.gpus.size() == 1 ? " GPU" : " GPUs");
    return made;
  }
  made.result = verdict::warning;
  made.seen = view.problem;
  made.why =
      "sharing works without NVML, but MIG, NVLink and modes cannot be read, and nvidia-smi fails";
  made.remedy =
      view.library.empty()
          ? "set NVIDIA_DRIVER_CAPABILITIES=compute,utility for the container, or "
            "install libnvidia-ml1"
          : "run nvidia-smi on the host: if it fails there too, repair the host's driver; if it "
            "works, restart this container (systemctl daemon-reload on the host can remove "
            "a container's devices)";
  return made;
}

check cuinit(const facts& all) {
  check made;
  const cuda_view& view = all.driver.cuda;
  if (!all.driver.failure.empty()) {
    made.result = verdict::problem;
    made.seen = "querying the driver: " + all.driver.failure;
    made.why = "every CUDA program will fail the same way here";
    made.remedy = "run nvidia-smi and dmesg on the host; a GPU that fell off the bus needs a reset";
    return made;
  }
  if (view.library.empty()) {
    made.seen = "no libcuda.so.1";
    return made;
  }
  if (view.problem.empty()) {
    made.result = verdict::ok;
    made.seen = "CUDA " + version_text(view.version) + ", " + std::to_string(view.gpus.size()) +
                (view.gpus.size() == 1 ? " device" : " devices");
    return made;
  }
  made.result = verdict::problem;
  made.seen = view.problem;
  switch (view.result) {
    case cuda::CUDA_ERROR_NO_DEVICE:
      made.why = "CUDA finds no GPU that this process may use";
      made.remedy = "see device-nodes, gpu-nodes and visible-devices below";
      break;
    case cuda::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      made.why = "library and kernel module have different versions";
      made.remedy = "see driver-match";
      break;
    case cuda::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      made.why = "only data centre GPUs support forward compatibility";
      made.remedy = "remove the cuda-compat directory from LD_LIBRARY_PATH";
      break;
    case cuda::CUDA_ERROR_SYSTEM_NOT_READY:
      made.why = "GPUs connected by NVSwitch need the fabric manager";
      made.remedy = "on the host: systemctl start nvidia-fabricmanager (the driver's version)";
      break;
    case cuda::CUDA_ERROR_STUB_LIBRARY:
      made.why = "the toolkit's stub library was loaded, which is for linking only";
      made.remedy = "remove /usr/local/cuda/lib64/stubs from LD_LIBRARY_PATH";
      break;
    default:
      made.why = "no program can use CUDA here";
      made.remedy = "see device-nodes and uvm-major; run nvidia-smi and dmesg on the host";
      break;
  }
  return made;
}

}  // namespace gpushm::inspect::rules
