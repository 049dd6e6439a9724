// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/text/text.hpp"
#include "containers/discover/driver_files/driver_files.hpp"
#include "containers/elf/facts.hpp"

namespace gpushm::discover {

namespace {

// Parts of the driver with separate version numbers.
constexpr std::array other_versions{"libnvidia-egl-gbm.so.",
                                    "libnvidia-egl-wayland.so.",
                                    "libnvidia-egl-wayland2.so.",
                                    "libnvidia-egl-xcb.so.",
                                    "libnvidia-egl-xlib.so.",
                                    "libnvidia-nvvm70.so."};

// Below a library directory.
constexpr std::array xorg_directories{"nvidia/xorg",
                                      "xorg/modules/drivers",
                                      "xorg/modules/extensions",
                                      "xorg/modules/updates/drivers",
                                      "xorg/modules/updates/extensions"};
constexpr std::array xorg_parents{"/usr/lib", "/usr/lib64", "/usr/X11R6/lib", "/usr/X11R6/lib64"};

class library_search {
 public:
  library_search(const root_view& root,
                 const installed_driver& driver,
                 std::vector<std::string>& folders)
      : root_(root), suffix_(std::string(".so.").append(driver.version)), folders_(folders) {}

  /// Adds the libraries of the driver's version (those of vdpau are in a separate directory).
  void add_versioned(const std::string& directory) {
    for (const std::string& name : root_.names(directory)) {
      if (name.ends_with(suffix_)) {
        add_library(join(directory, name));
      }
    }
  }
  void add_other_versions(const std::string& directory) {
    for (const std::string& name : root_.names(directory)) {
      for (const std::string_view stem : other_versions) {
        // One of libnvidia-egl-gbm.so.1 and libnvidia-egl-gbm.so.1.1.1 is a link to the other.
        if (name.starts_with(stem)) {
          add_library(join(directory, name));
          other_found_.insert(stem);
        }
      }
    }
  }
  void add_xorg(const std::string& directory) {
    // At the path that the X server opens, which may be a link.
    const std::string driver = "nvidia_drv.so";
    if (root_.has(directory, driver)) {
      const auto place = root_.resolve_parent(join(directory, driver));
      if (place && add_file(*place)) {
        result_.mounts.back().container_path = *place;
        xorg_found_ = true;
      }
    }
    const std::string extension = std::string("libglxserver_nvidia").append(suffix_);
    if (!root_.has(directory, extension)) {
      return;
    }
    if (const auto real = add_file(join(directory, extension))) {
      link(extension, base::directory_of(*real), "libglxserver_nvidia.so");
    }
  }

  findings take() && {
    std::vector<std::string> absent;
    for (const std::string_view stem : other_versions) {
      if (!other_found_.contains(stem)) {
        absent.emplace_back(stem.substr(0, stem.size() - 1));
      }
    }
    if (!xorg_found_) {
      absent.emplace_back("nvidia_drv.so");
    }
    if (!absent.empty()) {
      result_.missing.push_back({"libraries", std::move(absent)});
    }
    result_.found.push_back(fmt::format("{} in {}",
                                        count_text(result_.mounts.size(), "library", "libraries"),
                                        list_text(folders_)));
    return std::move(result_);
  }

 private:
  // Returns the real path; empty when it is missing, for another architecture, or already added.
  std::optional<std::string> add_file(const std::string& path) {
    auto real = root_.resolve(path);
    if (!real || !seen_.insert(*real).second) {
      return std::nullopt;
    }
    facts_ = elf::read_elf(root_.outside(*real)).value_or(elf::elf_facts());
    if (!facts_.native) {
      return std::nullopt;
    }
    result_.mounts.push_back({root_.outside(*real), *real, read_only_options(), {}});
    return real;
  }

  void add_library(const std::string& path) {
    const auto real = add_file(path);
    if (!real) {
      return;
    }
    const std::string_view directory = base::directory_of(*real);
    const std::string_view name = base::name_of(*real);
    if (name.starts_with("lib") &&
        std::find(folders_.begin(), folders_.end(), directory) == folders_.end()) {
      folders_.emplace_back(directory);
    }
    const std::string soname = facts_.soname.empty() ? std::string(name) : facts_.soname;
    if (soname != name) {
      link(name, directory, soname);
    }
    // The link without a version exists if the development files are installed.
    const std::size_t end = soname.find(".so.");
    if (end != std::string::npos && root_.has(directory, soname.substr(0, end + 3))) {
      link(soname, directory, soname.substr(0, end + 3));
    }
    add_special_links(name, directory);
  }

  // Links that programs open by name and driver installers create separately.
  void add_special_links(std::string_view name, std::string_view directory) {
    const std::string_view stem = name.substr(0, name.find(".so."));
    if (stem == "libcuda") {
      link("libcuda.so.1", directory, "libcuda.so");
    } else if (stem == "libGLX_nvidia") {
      link(name, directory, "libGLX_indirect.so.0");
    } else if (stem == "libnvidia-opticalflow") {
      link("libnvidia-opticalflow.so.1", directory, "libnvidia-opticalflow.so");
    } else if (stem == "libnvidia-allocator") {
      link("../libnvidia-allocator.so.1", join(directory, "gbm"), "nvidia-drm_gbm.so");
    } else if (stem == "libnvidia-vulkan-producer") {
      link(name, directory, "libnvidia-vulkan-producer.so");
    }
  }

  void link(std::string_view target, std::string_view directory, std::string_view name) {
    std::string text = fmt::format("{}::{}", target, join(directory, name));
    if (linked_.insert(text).second) {
      result_.links.push_back(std::move(text));
    }
  }

  const root_view& root_;
  std::string suffix_;
  std::vector<std::string>& folders_;
  findings result_;
  elf::elf_facts facts_;  ///< of the file added last
  std::set<std::string> seen_;
  std::set<std::string> linked_;
  std::set<std::string_view> other_found_;
  bool xorg_found_ = false;
};

}  // namespace

findings find_libraries(const root_view& root,
                        const installed_driver& driver,
                        std::vector<std::string>& folders) {
  library_search search(root, driver, folders);
  for (const std::string& directory : driver.directories) {
    search.add_versioned(directory);
    search.add_versioned(join(directory, "vdpau"));
  }
  for (const std::string& directory : driver.directories) {
    search.add_other_versions(directory);
    for (const char* below : xorg_directories) {
      search.add_xorg(join(directory, below));
    }
  }
  // Debian installs them with its system libraries, not with the driver's.
  for (const char* directory : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"}) {
    search.add_other_versions(directory);
  }
  for (const std::string_view parent : xorg_parents) {
    for (const std::string_view below : xorg_directories) {
      // "xorg/modules", but "modules" below X11R6.
      const bool x11r6 = parent.starts_with("/usr/X11R6") && below.starts_with("xorg/");
      search.add_xorg(join(parent, x11r6 ? below.substr(std::string_view("xorg/").size()) : below));
    }
  }
  return std::move(search).take();
}

}  // namespace gpushm::discover
