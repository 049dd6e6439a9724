// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <sys/utsname.h>

#include <array>
#include <set>
#include <span>

#include "containers/discover/driver_files/driver_files.hpp"

namespace gpushm::discover {

namespace {

struct configuration {
  const char* path;       ///< below one of `configuration_directories`
  const char* directory;  ///< in the container
};

// glvnd and its platforms, the Vulkan and OpenCL loaders, OptiX, the X server.
constexpr std::array configurations {
  configuration{"glvnd/egl_vendor.d/10_nvidia.json", "/usr/share"},
      configuration{"egl/egl_external_platform.d/15_nvidia_gbm.json", "/usr/share"},
      configuration{"egl/egl_external_platform.d/10_nvidia_wayland.json", "/usr/share"},
      configuration{"egl/egl_external_platform.d/09_nvidia_wayland2.json", "/usr/share"},
      configuration{"egl/egl_external_platform.d/20_nvidia_xcb.json", "/usr/share"},
      configuration{"egl/egl_external_platform.d/20_nvidia_xlib.json", "/usr/share"},
      configuration{"nvidia/nvoptix.bin", "/usr/share"},
      configuration{"X11/xorg.conf.d/10-nvidia.conf", "/usr/share"},
      configuration{"X11/xorg.conf.d/nvidia-drm-outputclass.conf", "/usr/share"},
      configuration{"OpenCL/vendors/nvidia.icd", "/etc"},
      configuration{"vulkan/icd.d/nvidia_icd.json", "/etc"},
      configuration{"vulkan/icd.d/nvidia_layers.json", "/etc"},
      configuration{"vulkan/implicit_layer.d/nvidia_layers.json", "/etc"},
#if defined(__x86_64__)
      configuration{"vulkan/icd.d/nvidia_icd.x86_64.json", "/etc"},
#else
      configuration{"vulkan/icd.d/nvidia_icd.aarch64.json", "/etc"},
#endif
};
constexpr std::array configuration_directories{
    "/etc", "/usr/local/share", "/usr/share", "/run/opengl-driver/share", "/run/opengl-driver/etc"};

constexpr std::array programs{"nvidia-smi",
                              "nvidia-debugdump",
                              "nvidia-persistenced",
                              "nvidia-cuda-mps-control",
                              "nvidia-cuda-mps-server",
                              "nvidia-imex",
                              "nvidia-imex-ctl",
                              "nvidia-xconfig"};
// Also searched in containers.
constexpr std::array program_directories{
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"};
// Programs found only here are mounted in /usr/bin of the container.
constexpr std::array other_program_directories{"/run/current-system/sw/bin",
                                               "/run/opengl-driver/bin",
                                               "/usr/local/nvidia/bin",
                                               "/opt/nvidia/bin",
                                               "/home/kubernetes/bin/nvidia/bin"};

struct socket_place {
  const char* name;
  std::array<const char*, 2> paths;
};
constexpr std::array sockets{
    socket_place{"nvidia-persistenced",
                 {"/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket"}},
    socket_place{"nvidia-fabricmanager",
                 {"/run/nvidia-fabricmanager/socket", "/var/run/nvidia-fabricmanager/socket"}},
};

bool is_program(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode) &&
         (about.st_mode & 0111U) != 0;
}

void mount(findings& result,
           const root_view& root,
           const std::string& real,
           std::string where,
           const std::vector<std::string>& options) {
  result.mounts.push_back({root.outside(real), std::move(where), options, {}});
}

void report(findings& result,
            const char* singular,
            const char* many,
            std::vector<std::string> absent) {
  if (!result.mounts.empty()) {
    result.found.push_back(count_text(result.mounts.size(), singular, many));
  }
  if (!absent.empty()) {
    result.missing.push_back({many, std::move(absent)});
  }
}

std::optional<std::string> find_below(const root_view& root,
                                      std::span<const char* const> directories,
                                      std::string_view name) {
  for (const char* directory : directories) {
    if (auto real = root.resolve(join(directory, name))) {
      return real;
    }
  }
  return std::nullopt;
}

}  // namespace

findings find_configurations(const root_view& root) {
  findings result;
  std::vector<std::string> absent;
  for (const configuration& each : configurations) {
    if (const auto real = find_below(root, configuration_directories, each.path)) {
      mount(result, root, *real, join(each.directory, each.path), read_only_options());
    } else {
      absent.emplace_back(each.path);
    }
  }
  report(result, "configuration file", "configuration files", std::move(absent));
  return result;
}

findings find_firmware(const root_view& root,
                       const installed_driver& driver,
                       std::string_view firmware_path) {
  findings result;
  std::vector<std::string> directories;
  if (firmware_path.starts_with('/')) {
    directories.emplace_back(firmware_path);
  }
  struct utsname kernel {};
  const std::string release =
      ::uname(&kernel) == 0 ? static_cast<const char*>(kernel.release) : std::string();
  for (const std::string_view parent : {"/lib/firmware/updates", "/lib/firmware"}) {
    if (!release.empty()) {
      directories.push_back(join(parent, release));
    }
    directories.emplace_back(parent);
  }
  std::set<std::string> seen;
  const std::string below = std::string("nvidia/").append(driver.version);
  for (const std::string& directory : directories) {
    const std::string place = join(directory, below);
    for (const std::string& name : root.names(place)) {
      if (!name.starts_with("gsp") || !name.ends_with(".bin")) {
        continue;
      }
      const auto real = root.resolve(join(place, name));
      if (real && seen.insert(*real).second) {
        mount(result, root, *real, join(place, name), read_only_options());
      }
    }
  }
  std::vector<std::string> absent;
  if (result.mounts.empty()) {
    absent.push_back(std::string(below).append("/gsp*.bin"));
  }
  report(result, "firmware file", "firmware files", std::move(absent));
  return result;
}

findings find_programs(const root_view& root) {
  findings result;
  std::vector<std::string> absent;
  for (const char* name : programs) {
    bool is_there = false;
    const auto take = [&](const char* directory, const char* where) {
      const auto real = root.resolve(join(directory, name));
      is_there = real && is_program(root.outside(*real));
      if (is_there) {
        mount(result, root, *real, join(where, name), read_only_options());
      }
      return is_there;
    };
    for (const char* directory : program_directories) {
      if (take(directory, directory)) {
        break;
      }
    }
    for (const char* directory : other_program_directories) {
      if (is_there || take(directory, "/usr/bin")) {
        break;
      }
    }
    if (!is_there) {
      absent.emplace_back(name);
    }
  }
  report(result, "program", "programs", std::move(absent));
  return result;
}

findings find_sockets(const root_view& root) {
  findings result;
  std::vector<std::string> absent;
  for (const socket_place& each : sockets) {
    bool is_there = false;
    for (const char* path : each.paths) {
      if (const auto real = root.resolve(path)) {
        mount(result, root, *real, path, socket_options());
        is_there = true;
        break;
      }
    }
    if (!is_there) {
      absent.emplace_back(each.name);
    }
  }
  report(result, "socket", "sockets", std::move(absent));
  return result;
}

}  // namespace gpushm::discover
