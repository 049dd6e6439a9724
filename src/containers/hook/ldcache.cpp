// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <span>

#include "base/files/syscall.hpp"
#include "base/process/child_process.hpp"
#include "base/text/text.hpp"
#include "containers/elf/ld_cache.hpp"
#include "containers/hook/hook.hpp"
#include "containers/hook/sandbox.hpp"
#include "gpushm/error.hpp"

namespace gpushm::hook {

namespace {

constexpr std::string_view operation = "create the library cache";
constexpr std::chrono::seconds timeout{10};
constexpr std::size_t max_cache_bytes = std::size_t{32} << 20U;
constexpr const char* configuration = "/etc/ld.so.conf";

// System directories of other distributions: the host's ldconfig does not have them built in.
constexpr std::array system_directories{"/lib/x86_64-linux-gnu",
                                        "/usr/lib/x86_64-linux-gnu",
                                        "/lib/aarch64-linux-gnu",
                                        "/usr/lib/aarch64-linux-gnu",
                                        "/lib64",
                                        "/usr/lib64",
                                        "/lib",
                                        "/usr/lib"};

// Prefers the program: Ubuntu's /sbin/ldconfig is a script that needs a shell in the image.
base::unique_fd open_ldconfig(const std::string& asked) {
  for (const std::string& path : {std::string(asked).append(".real"), asked}) {
    base::unique_fd program(path.starts_with('/') ? ::open(path.c_str(), O_PATH | O_CLOEXEC) : -1);
    if (program) {
      return program;
    }
  }
  throw error(errc::system_error, operation, asked, "the host has no ldconfig");
}

std::string lines(const std::vector<std::string>& texts) {
  std::string text;
  for (const std::string& each : texts) {
    // Only paths: the file format has other statements.
    if (each.starts_with('/') && each.find_first_of("\n\r#") == std::string::npos) {
      text.append(each).append("\n");
    }
  }
  return text;
}

struct close_directory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

// Opening a pipe would block ldconfig until it has a writer.
void refuse_special_file(const container_root& root, const std::string& path) {
  const base::unique_fd file = root.open(path, O_PATH);
  struct stat about {};
  if (file && ::fstat(file.get(), &about) == 0 && !S_ISREG(about.st_mode) &&
      !S_ISDIR(about.st_mode)) {
    throw error(errc::invalid_argument, operation, path, "it is not a regular file");
  }
}

void refuse_special_files(const container_root& root) {
  refuse_special_file(root, configuration);
  base::unique_fd opened = root.open(linker_directory, O_RDONLY | O_DIRECTORY);
  const std::unique_ptr<DIR, close_directory> stream(opened ? ::fdopendir(opened.get()) : nullptr);
  if (stream == nullptr) {
    return;
  }
  static_cast<void>(opened.release());
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is local
  while (const dirent* entry = ::readdir(stream.get())) {
    refuse_special_file(
        root,
        std::string(linker_directory).append("/").append(static_cast<const char*>(entry->d_name)));
  }
}

// Writes the configuration for a later ldconfig in the container. Returns whether the container's
// existing configuration includes it.
bool configure(const container_root& root, const std::vector<std::string>& folders) {
  root.write(linker_directory, driver_file, lines(folders));
  std::vector<std::string> there;
  for (const char* directory : system_directories) {
    if (root.open(directory, O_PATH | O_DIRECTORY)) {
      there.emplace_back(directory);
    }
  }
  root.write(linker_directory, system_file, lines(there));
  const auto own = root.read(configuration);
  if (!own && !root.open(configuration, O_PATH | O_NOFOLLOW) && errno == ENOENT) {
    root.write("/etc", "ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
    return true;
  }
  return own && own->find("ld.so.conf.d") != std::string::npos;
}

// Returns the cache that the host's ldconfig, confined to the container's root, creates. Without
// -r, which would follow links of the image through procfs to the host. -X: create-symlinks creates
// the links; -i: glibc's auxiliary cache is also from the image.
std::string cache_of(const container_root& root,
                     const std::string& path,
                     const std::vector<std::string>& folders) {
  const base::unique_fd program = open_ldconfig(path);
  const root_sandbox sandbox(root);
  sandbox.put("conf", lines(folders).append("include ").append(configuration).append("\n"));
  const auto ending =
      sandbox.run(program.get(), {"ldconfig", "-i", "-X", "-f", "conf", "-C", "cache"}, timeout);
  if (!ending.ended || !WIFEXITED(ending.status) || WEXITSTATUS(ending.status) != 0) {
    const auto output_lines = base::lines_of(ending.output);
    std::string cause =
        ending.ended ? base::status_text(ending.status) : std::string("timed out after 10 seconds");
    if (!output_lines.empty()) {
      cause.append(": ").append(output_lines.back());
    }
    throw error(errc::system_error, operation, path, cause);
  }
  auto cache = sandbox.take("cache", max_cache_bytes);
  if (!cache || !elf::is_ld_cache(std::as_bytes(std::span(*cache)))) {
    throw error(errc::system_error, operation, path, "its output is not an ld.so.cache");
  }
  return std::move(*cache);
}

}  // namespace

void update_ldcache(const container_root& root, const hook_options& options) {
  const std::vector<std::string> folders = options.all("folder");
  const std::string asked = options.last("ldconfig-path");
  try {
    const bool included = configure(root, folders);
    refuse_special_files(root);
    root.write("/etc",
               "ld.so.cache",
               cache_of(root,
                        asked.empty() ? "/sbin/ldconfig" : asked,
                        included ? std::vector<std::string>() : folders));
  } catch (const error& failure) {
    // The container still starts, with the image's cache and the links.
    warn(std::string("warning: the container's library cache is not up to date: ")
             .append(failure.what()));
  }
}

}  // namespace gpushm::hook
