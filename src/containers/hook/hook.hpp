// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "containers/hook/root.hpp"

namespace gpushm::hook {

/// Options of a hook: "--link VALUE" or "--link=VALUE", any number of times. Hooks ignore unknown
/// options, so that documents newer than the program still work.
///
/// Thread-safety: distinct objects: safe; shared objects: safe (immutable).
class hook_options {
 public:
  explicit hook_options(std::vector<std::string> words) : words_(std::move(words)) {}
  [[nodiscard]] std::vector<std::string> all(std::string_view name) const;
  /// The last value; empty if there is none.
  [[nodiscard]] std::string last(std::string_view name) const;

 private:
  std::vector<std::string> words_;
};

/// Prepares this process to work in a container whose image may be hostile: SIGALRM terminates it
/// after a minute, descriptors above 2 are closed, the environment is empty, "/" is the current
/// directory, the umask is 022. `hook` is named in errors. Must be called first. Throws `error`.
void confine_process(std::string_view hook);

/// Runs one hook in the container `root`. Throws `error`.
using hook_function = void(const container_root& root, const hook_options& options);
/// The hook `name`; null if this version does not have it.
[[nodiscard]] hook_function* find(std::string_view name);

/// "gpushm: LINE" to standard error, through `base::printable`.
void warn(std::string_view line);

// The hooks. All throw `error`; each warns on standard error about skipped work.

/// `--link TARGET::LINK`: creates links in the container, replacing existing files and links. A
/// read-only root, and a mount at a link's place, are warnings.
void create_symlinks(const container_root& root, const hook_options& options);
/// `--folder DIR`: adds directories to the container's linker cache with the host's ldconfig
/// (`--ldconfig-path`).
void update_ldcache(const container_root& root, const hook_options& options);
/// `--host-driver-version V`: makes the linker prefer the image's CUDA compatibility libraries, if
/// they are from a newer driver than the host's.
void enable_cuda_compat(const container_root& root, const hook_options& options);
/// Prevents the driver's libraries in the container from creating device nodes. (`--params FILE`:
/// replaces /proc/driver/nvidia/params in tests.)
void disable_device_node_modification(const container_root& root, const hook_options& options);
/// `--library FILE`: makes the container's loader preload a library that is mounted there, before
/// those that /etc/ld.so.preload already lists. Covers that file with a copy, so that no file of an
/// image or volume changes. An image that cannot load the library stays as it is, with a warning.
void preload(const container_root& root, const hook_options& options);

/// The text of an ld.so.preload with `library` as its first entry and all others unchanged; empty
/// if it is the first entry already. Pure.
[[nodiscard]] std::optional<std::string> with_preloaded(std::string_view text,
                                                        std::string_view library);

/// Configuration files of the container's linker; read in this order.
inline constexpr const char* linker_directory = "/etc/ld.so.conf.d";
inline constexpr const char* compat_file = "00-gpushm-1-cuda-compat.conf";
inline constexpr const char* driver_file = "00-gpushm-2-driver.conf";
inline constexpr const char* system_file = "zz-gpushm-system.conf";

}  // namespace gpushm::hook
