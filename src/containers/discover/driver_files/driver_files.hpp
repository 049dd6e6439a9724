// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "containers/discover/driver_files/findings.hpp"
#include "containers/discover/driver_files/root_view.hpp"

namespace gpushm::discover {

/// The location of the driver's libraries below a root.
struct installed_driver {
  std::string version;  ///< "550.54.15"
  std::vector<std::string>
      directories;  ///< with a library of that version; real paths inside the root
  /// Other versions of libcuda that were found, with their directories.
  std::vector<std::string> others;
};

struct driver_places {
  std::vector<std::string> search_paths;  ///< searched before the default directories
  std::string ld_cache_path;   ///< path on the host; empty: etc/ld.so.cache below the root
  std::string kernel_version;  ///< of the loaded module; selects among several versions
};

/// Finds the driver by its libcuda.so.<version>, else libnvidia-ml.so.<version>, in the given
/// directories, those of the distributions, and those in the ld cache. Throws `error`
/// (driver_unavailable) when there is neither.
[[nodiscard]] installed_driver find_driver(const root_view& root, const driver_places& places);

/// "550.54.15" of /proc/driver/nvidia/version; empty when the text has no version.
[[nodiscard]] std::string kernel_module_version(std::string_view proc_text);

/// The driver's libraries, including display libraries and Xorg modules, with the links that
/// programs open. Only for this machine's architecture: ignores 32-bit ones. `folders` receives the
/// directories that the container's linker must search.
[[nodiscard]] findings find_libraries(const root_view& root,
                                      const installed_driver& driver,
                                      std::vector<std::string>& folders);

/// Configuration files that locate driver components (EGL, Vulkan, OpenCL, Xorg), firmware of the
/// GPU's system processor (GSP), and the programs. `firmware_path` is the path that the kernel
/// searches first.
[[nodiscard]] findings find_configurations(const root_view& root);
[[nodiscard]] findings find_firmware(const root_view& root,
                                     const installed_driver& driver,
                                     std::string_view firmware_path);
[[nodiscard]] findings find_programs(const root_view& root);
/// Sockets of persistenced and the fabric manager.
[[nodiscard]] findings find_sockets(const root_view& root);

/// The MPS pipe directory unless $CUDA_MPS_PIPE_DIRECTORY is set; clients in the container use it.
inline constexpr const char* default_mps_directory = "/tmp/nvidia-mps";

/// The directory of MPS, if its control daemon runs. Containers get it writable, because clients
/// connect to sockets in it. It must be a directory and not a link, owned by the daemon's user,
/// which must be root or this process's user, and not replaceable by other users: any user can
/// create /tmp/nvidia-mps first. `proc_root` is searched for processes.
[[nodiscard]] findings find_mps(const root_view& root,
                                const std::string& directory,
                                const std::string& proc_root);

}  // namespace gpushm::discover
