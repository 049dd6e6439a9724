// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/text/text.hpp"
#include "inspect/facts/gather_parts.hpp"

namespace gpushm::inspect {

namespace {

// Directories in which distributions, container toolkits and WSL install the driver's libraries.
constexpr std::array library_directories{"/usr/lib/x86_64-linux-gnu",
                                         "/usr/lib/aarch64-linux-gnu",
                                         "/usr/lib64",
                                         "/usr/lib",
                                         "/usr/local/nvidia/lib64",
                                         "/usr/local/nvidia/lib",
                                         "/usr/local/cuda/compat",
                                         "/usr/lib/wsl/lib",
                                         "/run/opengl-driver/lib"};

/// "580.159.04" from ".../libcuda.so.580.159.04"; empty for another name.
std::string version_in_name(std::string_view path) {
  constexpr std::string_view stem = "libcuda.so.";
  const std::size_t at = path.rfind(stem);
  const std::string_view rest =
      at == std::string_view::npos ? std::string_view() : path.substr(at + stem.size());
  return rest.find('.') == std::string_view::npos ? std::string() : std::string(rest);
}

/// 12040 from "12.4" or "12.4.1"; 12000 from "12"; 0 for other text.
int cuda_version(std::string_view text) {
  const auto parts = base::split(text, ".");
  const int major = parts.empty() ? 0 : base::number<int>(parts[0]).value_or(0);
  const int minor = parts.size() < 2 ? 0 : base::number<int>(parts[1]).value_or(0);
  return major * 1000 + minor * 10;
}

void add_toolkits(system& machine, std::vector<toolkit_facts>& toolkits) {
  for (const std::string& name : machine.list("/usr/local")) {
    const std::string path = "/usr/local/" + name;
    if (!name.starts_with("cuda") || machine.link(path)) {
      continue;
    }
    // {"cuda" : {"name" : "CUDA SDK", "version" : "13.0.1"}, …}: the first version is the
    // toolkit's.
    const std::string text = machine.read(path + "/version.json").value_or(std::string());
    const std::size_t whole = text.find("\"cuda\"");
    std::string version = whole == std::string::npos
                              ? std::string()
                              : base::first_version(std::string_view(text).substr(whole));
    if (version.empty() && name.starts_with("cuda-")) {
      version = name.substr(5);
    }
    if (const int value = cuda_version(version)) {
      toolkits.push_back({path, value});
    }
  }
}

/// CUDA runtimes in Python environments, where frameworks install them.
void add_python_runtimes(system& machine,
                         const std::map<std::string, std::string>& variables,
                         std::vector<toolkit_facts>& toolkits) {
  std::vector<std::string> roots{"/usr/local/lib", "/usr/lib", "/opt/conda/lib", "/opt/venv/lib"};
  const auto environment = variables.find("VIRTUAL_ENV");
  if (environment != variables.end() && environment->second.starts_with('/')) {
    roots.push_back(environment->second + "/lib");
  }
  for (const std::string& root : roots) {
    for (int minor = 8; minor <= 16; ++minor) {
      for (const char* packages : {"/site-packages/nvidia", "/dist-packages/nvidia"}) {
        const std::string path = fmt::format("{}/python3.{}{}", root, minor, packages);
        if (!machine.status(path)) {
          continue;
        }
        for (const std::string& folder :
             {path + "/cuda_runtime/lib", path + "/cu12/lib", path + "/cu13/lib"}) {
          for (const std::string& name : machine.list(folder)) {
            constexpr std::string_view stem = "libcudart.so.";
            const int value = name.starts_with(stem)
                                  ? cuda_version(std::string_view(name).substr(stem.size()))
                                  : 0;
            if (value != 0) {
              toolkits.push_back({fmt::format("{}/{}", folder, name), value});
            }
          }
        }
      }
    }
  }
}

}  // namespace

void gather_software(system& machine, facts& facts) {
  const std::string module = machine.read("/proc/driver/nvidia/version").value_or(std::string());
  facts.module_version = base::first_version(module);
  facts.open_module = module.find("Open Kernel Module") != std::string::npos;
  if (facts.module_version.empty()) {
    facts.module_version =
        std::string(base::trim(machine.read("/sys/module/nvidia/version").value_or("")));
  }
  std::vector<std::string> directories(std::begin(library_directories),
                                       std::end(library_directories));
  const auto searched = facts.self.variables.find("LD_LIBRARY_PATH");
  if (searched != facts.self.variables.end()) {
    for (const std::string_view each : base::split(searched->second, ":")) {
      directories.emplace_back(each);
    }
  }
  std::set<std::string> seen;
  for (const std::string& directory : directories) {
    const std::string path = directory + "/libcuda.so.1";
    if (seen.insert(path).second && machine.status(path)) {
      const std::string target = machine.link(path).value_or(path);
      facts.libcuda_files.push_back(
          target.starts_with('/') ? target : fmt::format("{}/{}", directory, target));
    }
  }
  const std::string& loaded = facts.driver.cuda.library;
  facts.libcuda_version = version_in_name(loaded);
  if (facts.libcuda_version.empty() && loaded.empty() && !facts.libcuda_files.empty()) {
    facts.libcuda_version = version_in_name(facts.libcuda_files.front());
  }
  if (loaded.find("/compat/") != std::string::npos) {
    facts.compat_version = facts.libcuda_version;
  }
  add_toolkits(machine, facts.toolkits);
  add_python_runtimes(machine, facts.self.variables, facts.toolkits);
}

}  // namespace gpushm::inspect
