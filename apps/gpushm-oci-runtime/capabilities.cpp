// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-oci-runtime/capabilities.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/text/text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::oci_runtime {

namespace {

using enum capability;

constexpr auto names = std::to_array<std::pair<std::string_view, capability>>({
    {"compat32", compat32},
    {"compute", compute},
    {"display", display},
    {"graphics", graphics},
    {"ngx", ngx},
    {"utility", utility},
    {"video", video},
});

struct file_use {
  std::string_view name;  ///< a library's up to ".so", otherwise the whole name
  capability_set of;      ///< any of these needs it
};

// The driver's files by capability, from NVIDIA's list of the driver's components and from the
// libraries' dependencies. Displays get the graphics libraries too: an X server is useless without
// them.
constexpr auto files = std::to_array<file_use>({
    {"libcuda", capability_set(compute)},
    {"libcudadebugger", capability_set(compute)},
    {"libnvidia-allocator", capability_set(compute, graphics, display)},
    {"libnvidia-compiler", capability_set(compute)},
    {"libnvidia-fatbinaryloader", capability_set(compute)},
    {"libnvidia-gpucomp", capability_set(compute, graphics, display)},
    {"libnvidia-nvvm", capability_set(compute)},
    {"libnvidia-nvvm70", capability_set(compute)},
    {"libnvidia-opencl", capability_set(compute)},
    {"libnvidia-pkcs11", capability_set(compute)},
    {"libnvidia-pkcs11-openssl3", capability_set(compute)},
    {"libnvidia-ptxjitcompiler", capability_set(compute)},
    {"libnvidia-tileiras", capability_set(compute)},
    {"nvidia-cuda-mps-control", capability_set(compute)},
    {"nvidia-cuda-mps-server", capability_set(compute)},
    {"nvidia.icd", capability_set(compute)},

    {"libnvidia-cfg", capability_set(utility, graphics, display)},
    {"libnvidia-ml", capability_set(utility)},
    {"libnvidia-nscq", capability_set(utility)},
    {"nv-fabricmanager", capability_set(utility)},
    {"nvidia-debugdump", capability_set(utility)},
    {"nvidia-imex", capability_set(utility)},
    {"nvidia-imex-ctl", capability_set(utility)},
    {"nvidia-persistenced", capability_set(utility)},
    {"nvidia-smi", capability_set(utility)},

    {"libnvcuvid", capability_set(video)},
    {"libnvidia-encode", capability_set(video)},
    {"libnvidia-opticalflow", capability_set(video)},
    {"libvdpau_nvidia", capability_set(video)},

    {"libnvidia-ngx", capability_set(ngx)},
    {"nvidia-ngx-updater", capability_set(ngx)},

    {"libEGL_nvidia", capability_set(graphics, display)},
    {"libGLESv1_CM_nvidia", capability_set(graphics, display)},
    {"libGLESv2_nvidia", capability_set(graphics, display)},
    {"libGLX_nvidia", capability_set(graphics, display)},
    {"libnvidia-cbl", capability_set(graphics, display)},
    {"libnvidia-egl-gbm", capability_set(graphics, display)},
    {"libnvidia-egl-wayland", capability_set(graphics, display)},
    {"libnvidia-egl-wayland2", capability_set(graphics, display)},
    {"libnvidia-egl-xcb", capability_set(graphics, display)},
    {"libnvidia-egl-xlib", capability_set(graphics, display)},
    {"libnvidia-eglcore", capability_set(graphics, display)},
    {"libnvidia-fbc", capability_set(graphics, display)},
    {"libnvidia-glcore", capability_set(graphics, display)},
    {"libnvidia-glsi", capability_set(graphics, display)},
    {"libnvidia-glvkspirv", capability_set(graphics, display)},
    {"libnvidia-ifr", capability_set(graphics, display)},
    {"libnvidia-rtcore", capability_set(graphics, display)},
    {"libnvidia-tls", capability_set(graphics, display)},
    {"libnvidia-vulkan-producer", capability_set(graphics, display)},
    {"libnvoptix", capability_set(graphics, display)},
    {"nvidia-drm_gbm", capability_set(graphics, display)},
    {"10_nvidia.json", capability_set(graphics, display)},
    {"15_nvidia_gbm.json", capability_set(graphics, display)},
    {"10_nvidia_wayland.json", capability_set(graphics, display)},
    {"09_nvidia_wayland2.json", capability_set(graphics, display)},
    {"20_nvidia_xcb.json", capability_set(graphics, display)},
    {"20_nvidia_xlib.json", capability_set(graphics, display)},
    {"nvidia_icd.json", capability_set(graphics, display)},
    {"nvidia_icd.x86_64.json", capability_set(graphics, display)},
    {"nvidia_icd.aarch64.json", capability_set(graphics, display)},
    {"nvidia_layers.json", capability_set(graphics, display)},
    {"nvoptix.bin", capability_set(graphics, display)},

    {"libglxserver_nvidia", capability_set(display)},
    {"nvidia_drv", capability_set(display)},
    {"nvidia-xconfig", capability_set(display)},
    {"10-nvidia.conf", capability_set(display)},
    {"nvidia-drm-outputclass.conf", capability_set(display)},
});

std::string_view last_part(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

bool is_32_bit(std::string_view path) {
  constexpr auto folders =
      std::to_array<std::string_view>({"/i386-linux-gnu/", "/i686-linux-gnu/", "/lib32/"});
  return std::any_of(folders.begin(), folders.end(), [&](std::string_view folder) {
    return path.find(folder) != std::string_view::npos;
  });
}

bool needs_file(std::string_view path, capability_set capabilities) {
  std::string_view name = last_part(path);
  if (const auto end = name.find(".so"); end != std::string_view::npos) {
    name = name.substr(0, end);
    if (is_32_bit(path) && !capabilities.any_of(capability_set(compat32))) {
      return false;
    }
  }
  const auto known = std::find_if(
      files.begin(), files.end(), [&](const file_use& each) { return each.name == name; });
  return known == files.end() || capabilities.any_of(known->of);
}

bool needs_node(std::string_view path, capability_set capabilities) {
  if (path.starts_with("/dev/nvidia-uvm")) {
    return capabilities.any_of(capability_set(compute));
  }
  if (path == "/dev/nvidia-modeset" || path.starts_with("/dev/dri/")) {
    return capabilities.any_of(capability_set(graphics, display));
  }
  return true;
}

const std::pair<std::string_view, capability>* named(std::string_view name) {
  const auto found = std::find_if(
      names.begin(), names.end(), [&](const auto& each) { return each.first == name; });
  return found == names.end() ? nullptr : &*found;
}

[[noreturn]] void refuse(std::string_view object, std::string_view word, std::string_view why) {
  std::string known = "use one of all";
  for (const auto& each : names) {
    known += ", ";
    known += each.first;
  }
  throw error(errc::invalid_argument,
              "read capabilities",
              object,
              fmt::format("\"{}\" {}", word, why),
              known);
}

capability_set configured(const std::vector<std::string>& words, std::string_view setting) {
  capability_set set;
  for (const std::string& word : words) {
    const auto* found = named(word);
    if (found == nullptr) {
      refuse(setting, word, "is not a capability");
    }
    set.add(found->second);
  }
  return set;
}

}  // namespace

capability_set read_capabilities(const std::optional<std::string>& listed, const settings& chosen) {
  constexpr std::string_view variable = "NVIDIA_DRIVER_CAPABILITIES";
  const capability_set supported =
      configured(chosen.supported_capabilities, "supported_capabilities");
  const capability_set usual = configured(chosen.default_capabilities, "default_capabilities");
  capability_set set;
  bool wants_all = false;
  for (const auto& [name, each] : names) {
    if (!listed && usual.any_of(capability_set(each)) && supported.any_of(capability_set(each))) {
      set.add(each);
    }
  }
  for (const std::string_view part :
       base::split(listed ? std::string_view(*listed) : std::string_view(), ",")) {
    const std::string_view word = base::trim(part);
    const auto* capability = named(word);
    if (word == "all") {
      wants_all = true;
    } else if (word.empty()) {
      continue;
    } else if (capability == nullptr) {
      refuse(variable, word, "is not a capability");
    } else if (!supported.any_of(capability_set(capability->second))) {
      refuse(variable, word, "is not among supported_capabilities");
    } else {
      set.add(capability->second);
    }
  }
  return wants_all ? supported : set;
}

std::vector<std::string> keep_capable(cdi::edits& changes, capability_set capabilities) {
  std::vector<std::string> gone;
  const auto drop = [&](auto& list, auto path_of, auto needed) {
    const auto end = std::stable_partition(list.begin(), list.end(), [&](const auto& each) {
      return needed(path_of(each), capabilities);
    });
    for (auto each = end; each != list.end(); ++each) {
      gone.push_back(path_of(*each));
    }
    list.erase(end, list.end());
  };
  drop(
      changes.mounts, [](const cdi::mount& each) { return each.container_path; }, needs_file);
  drop(
      changes.device_nodes, [](const cdi::device_node& each) { return each.path; }, needs_node);
  return gone;
}

}  // namespace gpushm::oci_runtime
