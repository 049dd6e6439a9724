// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "base/files/syscall.hpp"
#include "base/text/text.hpp"
#include "containers/hook/hook.hpp"
#include "gpushm/error.hpp"

namespace gpushm::hook {

namespace {

struct close_directory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

// 550 of "550.54.15".
std::optional<int> major_version(std::string_view version) {
  return base::number<int>(version.substr(0, version.find('.')));
}

// The versions of libcuda.so.<version> in a directory of the container.
std::vector<std::string> versions_in(const container_root& root, const std::string& directory) {
  base::unique_fd opened = root.open(directory, O_RDONLY | O_DIRECTORY);
  const std::unique_ptr<DIR, close_directory> stream(opened ? ::fdopendir(opened.get()) : nullptr);
  std::vector<std::string> result;
  if (stream == nullptr) {
    return result;
  }
  static_cast<void>(opened.release());
  constexpr std::string_view stem = "libcuda.so.";
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is local
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = static_cast<const char*>(entry->d_name);
    if (name.starts_with(stem) && name.substr(stem.size()).find('.') != std::string_view::npos) {
      result.emplace_back(name.substr(stem.size()));
    }
  }
  return result;
}

// From an earlier start, or from an image made from a container.
void remove_old(const container_root& root) {
  const base::unique_fd place = root.open(linker_directory, O_PATH | O_DIRECTORY);
  if (place) {
    static_cast<void>(::unlinkat(place.get(), compat_file, 0));
  }
}

}  // namespace

void enable_cuda_compat(const container_root& root, const hook_options& options) {
  const std::string asked = options.last("cuda-compat-container-root");
  const std::string directory = asked.empty() ? "/usr/local/cuda/compat" : asked;
  const auto host = major_version(options.last("host-driver-version"));
  const std::vector<std::string> versions = versions_in(root, directory);
  if (versions.size() > 1) {
    warn(std::string("warning: ")
             .append(directory)
             .append(" contains several versions of libcuda; none is preferred"));
  }
  const auto image = versions.size() == 1 ? major_version(versions.front()) : std::nullopt;
  try {
    if (host && image && *image > *host) {
      root.write(linker_directory, compat_file, std::string(directory).append("\n"));
    } else {
      remove_old(root);
    }
  } catch (const error& failure) {
    warn(std::string("warning: the image's CUDA compatibility libraries are not preferred: ")
             .append(failure.what()));
  }
}

}  // namespace gpushm::hook
