// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hook/root.hpp"

namespace gpushm::hook {

/// Options of a hook: "--link VALUE" or "--link=VALUE", any number of times. What a hook does not
/// know it leaves alone, so that documents newer than the program still work.
///
/// Distinct objects: safe. Shared objects: safe (immutable).
class hook_options {
 public:
  explicit hook_options(std::vector<std::string> words) : words_(std::move(words)) {}
  [[nodiscard]] std::vector<std::string> all(std::string_view name) const;
  /// The last one given; empty when there is none.
  [[nodiscard]] std::string last(std::string_view name) const;

 private:
  std::vector<std::string> words_;
};

/// Prepares this process to work in a container whose image may be hostile: SIGALRM ends it after a
/// minute, descriptors above 2 are closed, the environment is empty, "/" is the current directory,
/// the umask is 022. `hook` is named in errors. Call it first. Throws `error`.
void confine_process(std::string_view hook);

/// Runs one hook in the container `root`. Throws `error`.
using hook_function = void(const container_root& root, const hook_options& options);
/// The hook `name`; null when this version does not have it.
[[nodiscard]] hook_function* find(std::string_view name);

/// "gpushm: LINE" to standard error, through `base::printable`.
void warn(std::string_view line);

// The hooks. All throw `error`; each tells on standard error what it leaves undone.

/// `--link TARGET::LINK`: links in the container, in the place of files and links that are there. A
/// root that nobody can write is a warning.
void create_symlinks(const container_root& root, const hook_options& options);
/// `--folder DIR`: has the container's linker know directories, with the host's ldconfig
/// (`--ldconfig-path`).
void update_ldcache(const container_root& root, const hook_options& options);
/// `--host-driver-version V`: has the linker find the CUDA compatibility libraries of the image
/// first, if they are of a newer driver than the host's.
void enable_cuda_compat(const container_root& root, const hook_options& options);
/// Has the driver's libraries in the container make no device nodes. (`--params FILE`: instead of
/// /proc/driver/nvidia/params, for tests.)
void disable_device_node_modification(const container_root& root, const hook_options& options);

/// For the linker of the container; read in this order.
inline constexpr const char* linker_directory = "/etc/ld.so.conf.d";
inline constexpr const char* compat_file = "00-gpushm-1-cuda-compat.conf";
inline constexpr const char* driver_file = "00-gpushm-2-driver.conf";
inline constexpr const char* system_file = "zz-gpushm-system.conf";

}  // namespace gpushm::hook
