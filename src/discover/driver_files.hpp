// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "discover/findings.hpp"
#include "discover/root_view.hpp"

namespace gpushm::discover {

/// Where the driver's libraries are below a root.
struct installed_driver {
  std::string version;                   ///< "550.54.15"
  std::vector<std::string> directories;  ///< with a library of that version; real paths, inside
  /// Versions of libcuda that are there too and are not meant, with their directories.
  std::vector<std::string> others;
};

struct driver_places {
  std::vector<std::string> search_paths;  ///< asked before the usual directories
  std::string ld_cache_path;              ///< outside; empty: etc/ld.so.cache below the root
  std::string kernel_version;  ///< of the loaded module; decides between several versions
};

/// Finds the driver by its libcuda.so.<version>, else libnvidia-ml.so.<version>: in the directories
/// given, those of the distributions, and those that the ld cache names. Throws `error`
/// (driver_unavailable) when there is neither.
[[nodiscard]] installed_driver find_driver(const root_view& root, const driver_places& places);

/// "550.54.15" of /proc/driver/nvidia/version; empty when the text does not say.
[[nodiscard]] std::string kernel_module_version(std::string_view proc_text);

/// The libraries of the driver, those for displays and the Xorg modules included, with the links
/// that programs look for. Only of this machine's architecture: 32-bit ones are left alone.
/// `folders` receives the directories that the container's linker has to know.
[[nodiscard]] findings find_libraries(const root_view& root,
                                      const installed_driver& driver,
                                      std::vector<std::string>& folders);

/// Files that say where the driver's parts are (EGL, Vulkan, OpenCL, Xorg), firmware of the GPU's
/// own processor, and the programs. `firmware_path` is what the kernel was told to search first.
[[nodiscard]] findings find_configurations(const root_view& root);
[[nodiscard]] findings find_firmware(const root_view& root,
                                     const installed_driver& driver,
                                     std::string_view firmware_path);
[[nodiscard]] findings find_programs(const root_view& root);
/// Sockets of persistenced and the fabric manager.
[[nodiscard]] findings find_sockets(const root_view& root);

/// Where MPS has its pipes unless $CUDA_MPS_PIPE_DIRECTORY says otherwise, and where clients in the
/// container look.
inline constexpr const char* usual_mps_directory = "/tmp/nvidia-mps";

/// The directory of MPS, if its control daemon runs: containers get it writable, as clients connect
/// to sockets in it. It must be a directory and not a link, of the daemon's own user, who must be
/// root or this process's user, in a place where no other user can replace it: any user can make
/// /tmp/nvidia-mps first. `proc_root` is where processes are looked for.
[[nodiscard]] findings find_mps(const root_view& root,
                                const std::string& directory,
                                const std::string& proc_root);

}  // namespace gpushm::discover
