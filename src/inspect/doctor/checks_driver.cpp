// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/text/text.hpp"
#include "gpu/driver/cuda.hpp"
#include "inspect/doctor/rules.hpp"

namespace gpushm::inspect::rules {

namespace {

constexpr const char* start_with_driver =
    "start the container with the driver: --device nvidia.com/gpu=all (CDI), --gpus all, or a GPU "
    "in its resource limits";

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
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

check libcuda(const facts& facts) {
  const cuda_view& cuda = facts.driver.cuda;
  if (!cuda.library.empty()) {
    return finding(verdict::ok, cuda.library);
  }
  if (!facts.libcuda_files.empty() && facts.driver.failure.empty()) {
    const std::string& file = facts.libcuda_files.front();
    return finding(
        verdict::problem,
        file + " exists, but the loader does not find libcuda.so.1",
        "no program can use CUDA until the loader finds it",
        fmt::format("run ldconfig as root, or export LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH",
                    file.substr(0, file.rfind('/'))));
  }
  if (!facts.libcuda_files.empty()) {
    return finding(verdict::not_applicable,
                   unknown(facts.libcuda_files.front() + " was not loaded: see cuinit"));
  }
  if (!driver_expected(facts)) {
    return finding(verdict::not_applicable,
                   "no NVIDIA driver",
                   "segments in host memory work without a driver");
  }
  return finding(
      verdict::problem,
      "no libcuda.so.1, though the machine has NVIDIA's kernel module or device nodes",
      "without the driver's library no process can use a GPU",
      in_container(facts.self) ? start_with_driver : "install the driver's libraries: libcuda1");
}

check driver_match(const facts& facts) {
  if (facts.module_version.empty() || facts.libcuda_version.empty()) {
    return finding(
        verdict::not_applicable,
        unknown(facts.module_version.empty() ? "the kernel module's version is not visible"
                                             : "the library's file name contains no version"));
  }
  const std::string versions = fmt::format("kernel module {}{}, library {}",
                                           facts.module_version,
                                           facts.open_module ? " (open)" : "",
                                           facts.libcuda_version);
  if (!facts.compat_version.empty()) {
    return finding(verdict::ok, versions + " (forward compatibility package)");
  }
  if (facts.module_version == facts.libcuda_version) {
    return finding(verdict::ok, versions);
  }
  return finding(
      verdict::problem,
      versions,
      "library and module must have the same version: cuInit fails with "
      "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803), NVML with \"Driver/library version mismatch\"",
      in_container(facts.self)
          ? "restart the container: the host's driver was updated after it started"
          : fmt::format("reboot; or {}, then modprobe -r nvidia_uvm nvidia_drm nvidia_modeset "
                        "nvidia && modprobe nvidia",
                        release_gpus(facts)));
}

check cuda_compat(const facts& facts) {
  const auto newest = std::max_element(
      facts.toolkits.begin(),
      facts.toolkits.end(),
      [](const toolkit_facts& a, const toolkit_facts& b) { return a.version < b.version; });
  const int branch = branch_of(facts.module_version);
  const int driver =
      facts.driver.cuda.version != 0 ? facts.driver.cuda.version : cuda_of_branch(branch);
  if (newest == facts.toolkits.end() || driver == 0) {
    return finding(verdict::not_applicable,
                   newest == facts.toolkits.end()
                       ? "no CUDA toolkit or runtime found in the usual places"
                       : unknown("the driver's CUDA version is not visible"));
  }
  const std::string versions = fmt::format("driver: CUDA {}; newest here: {} ({})",
                                           version_text(driver),
                                           version_text(newest->version),
                                           newest->path);
  if (newest->version <= driver) {
    return finding(verdict::ok, versions);
  }
  const int major = newest->version / 1000;
  if (major == driver / 1000) {
    return finding(
        verdict::ok,
        versions,
        "a newer minor version runs on this driver, without its new features and without PTX that "
        "must be compiled (minor version compatibility)");
  }
  const int needed = minimum_branch(major);
  return finding(
      verdict::problem,
      versions,
      fmt::format("CUDA {} programs fail with cudaErrorInsufficientDriver (35){}",
                  major,
                  needed == 0 ? "" : fmt::format(": they need driver {} or newer", needed)),
      fmt::format("update the driver, use an older toolkit, or on data centre GPUs install "
                  "cuda-compat-{}-{}",
                  major,
                  newest->version % 1000 / 10));
}

check nvml(const facts& facts) {
  const nvml_view& view = facts.driver.nvml;
  if (!driver_expected(facts) && view.library.empty()) {
    return finding(verdict::not_applicable, "no NVIDIA driver");
  }
  if (!facts.driver.failure.empty()) {
    return finding(verdict::not_applicable, unknown("NVML was not called: see cuinit"));
  }
  if (view.problem.empty()) {
    return finding(verdict::ok,
                   fmt::format("NVML {}, driver {}, {} {}",
                               view.nvml_version,
                               view.driver_version,
                               view.gpus.size(),
                               view.gpus.size() == 1 ? "GPU" : "GPUs"));
  }
  return finding(
      verdict::warning,
      view.problem,
      "sharing works without NVML, but MIG, NVLink and modes cannot be read, and nvidia-smi fails",
      view.library.empty()
          ? "set NVIDIA_DRIVER_CAPABILITIES=compute,utility for the container, or "
            "install libnvidia-ml1"
          : "run nvidia-smi on the host: if it fails there too, repair the host's driver; if it "
            "works, restart this container (systemctl daemon-reload on the host can remove "
            "a container's devices)");
}

check cuinit(const facts& facts) {
  const cuda_view& view = facts.driver.cuda;
  if (!facts.driver.failure.empty()) {
    return finding(
        verdict::problem,
        "querying the driver: " + facts.driver.failure,
        "every CUDA program will fail the same way here",
        "run nvidia-smi and dmesg on the host; a GPU that fell off the bus needs a reset");
  }
  if (view.library.empty()) {
    return finding(verdict::not_applicable, "no libcuda.so.1");
  }
  if (view.problem.empty()) {
    return finding(verdict::ok,
                   fmt::format("CUDA {}, {} {}",
                               version_text(view.version),
                               view.gpus.size(),
                               view.gpus.size() == 1 ? "device" : "devices"));
  }
  const auto problem = [&](const char* why, const char* remedy) {
    return finding(verdict::problem, view.problem, why, remedy);
  };
  switch (view.result) {
    case cuda::CUDA_ERROR_NO_DEVICE:
      return problem("CUDA finds no GPU that this process may use",
                     "see device-nodes, gpu-nodes and visible-devices below");
    case cuda::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return problem("library and kernel module have different versions", "see driver-match");
    case cuda::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return problem("only data centre GPUs support forward compatibility",
                     "remove the cuda-compat directory from LD_LIBRARY_PATH");
    case cuda::CUDA_ERROR_SYSTEM_NOT_READY:
      return problem("GPUs connected by NVSwitch need the fabric manager",
                     "on the host: systemctl start nvidia-fabricmanager (the driver's version)");
    case cuda::CUDA_ERROR_STUB_LIBRARY:
      return problem("the toolkit's stub library was loaded, which is for linking only",
                     "remove /usr/local/cuda/lib64/stubs from LD_LIBRARY_PATH");
    default:
      return problem("no program can use CUDA here",
                     "see device-nodes and uvm-major; run nvidia-smi and dmesg on the host");
  }
}

}  // namespace gpushm::inspect::rules
