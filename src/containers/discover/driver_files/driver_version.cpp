// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/files/file.hpp"
#include "base/text/text.hpp"
#include "containers/discover/driver_files/driver_files.hpp"
#include "containers/elf/facts.hpp"
#include "containers/elf/ld_cache.hpp"
#include "gpushm/error.hpp"

namespace gpushm::discover {

namespace {

constexpr std::size_t max_ld_cache_bytes = std::size_t{16} << 20U;

#if defined(__x86_64__)
#define GPUSHM_MULTIARCH "x86_64-linux-gnu"
#else
#define GPUSHM_MULTIARCH "aarch64-linux-gnu"
#endif

// Debian and Ubuntu; RHEL and SUSE; Arch; NixOS; containers with a volume for the driver; COS.
constexpr std::array default_directories{
    "/usr/lib/" GPUSHM_MULTIARCH,
    "/usr/lib/" GPUSHM_MULTIARCH "/nvidia/current",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/lib/" GPUSHM_MULTIARCH,
    "/lib64",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/run/opengl-driver/lib",
    "/usr/local/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/opt/nvidia/lib64",
};

bool is_version(std::string_view text) {
  return text.find('.') != std::string_view::npos && text.front() >= '0' && text.front() <= '9' &&
         text.back() != '.' && text.find_first_not_of("0123456789.") == std::string_view::npos;
}

void add_once(std::vector<std::string>& texts, std::string text) {
  if (std::find(texts.begin(), texts.end(), text) == texts.end()) {
    texts.push_back(std::move(text));
  }
}

std::string read_ld_cache(const std::string& path) {
  std::string text = base::read_small_file(path, max_ld_cache_bytes + 1).value_or(std::string());
  return text.size() > max_ld_cache_bytes ? std::string() : text;
}

// Directories that may contain the driver; unique real paths.
std::vector<std::string> candidates(const root_view& root, const driver_places& places) {
  std::vector<std::string> paths;
  for (const std::string& path : places.search_paths) {
    if (auto real = root.resolve(path)) {
      add_once(paths, std::move(*real));
    }
  }
  for (const char* path : default_directories) {
    if (auto real = root.resolve(path)) {
      add_once(paths, std::move(*real));
    }
  }
  const std::string cache_path =
      places.ld_cache_path.empty()
          ? root.outside(root.resolve("/etc/ld.so.cache").value_or("/etc/ld.so.cache"))
          : places.ld_cache_path;
  const std::string cache = read_ld_cache(cache_path);
  for (const elf::ld_cache_entry& entry : elf::parse_ld_cache(std::as_bytes(std::span(cache)))
                                              .value_or(std::vector<elf::ld_cache_entry>())) {
    // The other libraries are in the same directories.
    if (entry.name == "libcuda.so.1" || entry.name == "libnvidia-ml.so.1" ||
        entry.name == "libGLX_nvidia.so.0") {
      if (const auto real = root.resolve(entry.path)) {
        add_once(paths, std::string(base::directory_of(*real)));
      }
    }
  }
  return paths;
}

struct version_place {
  std::string version;
  std::string directory;
};

// The STEM<version> files of this architecture, in the order of the directories. A link is replaced
// by its target.
std::vector<version_place> versions_of(const root_view& root,
                                       const std::vector<std::string>& directories,
                                       std::string_view stem) {
  std::vector<version_place> places;
  for (const std::string& directory : directories) {
    for (const std::string& name : root.names(directory)) {
      if (!name.starts_with(stem) || !is_version(std::string_view(name).substr(stem.size()))) {
        continue;
      }
      const auto real = root.resolve(join(directory, name));
      if (!real || !base::name_of(*real).starts_with(stem)) {
        continue;
      }
      // "libcuda.so.1.1" is a link to the versioned file on some machines.
      const std::string_view version = base::name_of(*real).substr(stem.size());
      const auto facts = elf::read_elf(root.outside(*real));
      if (is_version(version) && facts && facts->native) {
        places.push_back({std::string(version), std::string(base::directory_of(*real))});
      }
    }
  }
  return places;
}

bool contains_driver(const root_view& root,
                     const std::string& directory,
                     const std::string& suffix) {
  for (const std::string& name : root.names(directory)) {
    if (name.starts_with("lib") && name.ends_with(suffix)) {
      const auto facts = elf::read_elf(root.outside(join(directory, name)));
      if (facts && facts->native) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

std::string kernel_module_version(std::string_view proc_text) {
  return base::first_version(proc_text);
}

installed_driver find_driver(const root_view& root, const driver_places& places) {
  const std::vector<std::string> directories = candidates(root, places);
  std::vector<version_place> versions = versions_of(root, directories, "libcuda.so.");
  if (versions.empty()) {
    versions = versions_of(root, directories, "libnvidia-ml.so.");
  }
  if (versions.empty()) {
    throw error(errc::driver_unavailable,
                "find the driver's libraries",
                root.text(),
                "no 64-bit libcuda.so.<version> or libnvidia-ml.so.<version> was found in the "
                "driver's default directories or the ld cache",
                "set the driver's root with --driver-root, or its directory below that root with "
                "--library-search-path");
  }
  auto chosen = std::find_if(versions.begin(), versions.end(), [&](const version_place& each) {
    return each.version == places.kernel_version;
  });
  if (chosen == versions.end()) {
    chosen = versions.begin();
  }
  installed_driver driver;
  driver.version = chosen->version;
  // The directory of the selected libcuda comes first.
  driver.directories.push_back(chosen->directory);
  const std::string suffix = std::string(".so.").append(driver.version);
  for (const std::string& directory : directories) {
    if (directory != chosen->directory && contains_driver(root, directory, suffix)) {
      add_once(driver.directories, directory);
    }
  }
  for (const version_place& each : versions) {
    if (each.version != driver.version) {
      add_once(driver.others, fmt::format("{} in {}", each.version, each.directory));
    }
  }
  return driver;
}

}  // namespace gpushm::discover
