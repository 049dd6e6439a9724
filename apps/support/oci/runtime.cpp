// SPDX-License-Identifier: Apache-2.0
#include "apps/support/oci/runtime.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "gpushm/error.hpp"

namespace gpushm::app::oci {

namespace {

namespace fs = std::filesystem;

std::optional<std::string> find_program(const std::string& name) {
  std::vector<fs::path> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.emplace_back(name);
  } else {
    const char* path =
        std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): no code sets variables
    std::istringstream directories(path == nullptr ? "" : path);
    for (std::string directory; std::getline(directories, directory, ':');) {
      if (!directory.empty()) {
        candidates.push_back(fs::path(directory) / name);
      }
    }
    for (const char* usual : {"/usr/local/sbin", "/usr/sbin", "/usr/bin", "/sbin"}) {
      candidates.push_back(fs::path(usual) / name);
    }
  }
  for (const fs::path& candidate : candidates) {
    std::error_code failed;
    if (fs::is_regular_file(candidate, failed) && ::access(candidate.c_str(), X_OK) == 0) {
      return fs::absolute(candidate).lexically_normal().string();
    }
  }
  return std::nullopt;
}

// With cgroup v1 and v2 both mounted, crun uses the v2 tree, which has no controllers. It works if
// that mount is hidden.
bool needs_v1_alone(const std::string& path) {
  return fs::path(path).filename() == "crun" && fs::exists("/sys/fs/cgroup/unified/cgroup.procs");
}

}  // namespace

std::optional<runtime> find_runtime(const std::string& name) {
  const auto path = find_program(name);
  if (!path) {
    return std::nullopt;
  }
  runtime found{*path, {}};
  if (needs_v1_alone(*path)) {
    found.command = {"/usr/bin/unshare",
                     "--mount",
                     "--propagation",
                     "private",
                     "/bin/sh",
                     "-c",
                     R"(umount /sys/fs/cgroup/unified && exec "$0" "$@")"};
  }
  found.command.push_back(*path);
  return found;
}

std::string version_of(const runtime& with, base::deadline until) {
  base::child_options options;
  options.argv = {with.path, "--version"};
  options.merge_stderr = true;
  base::child_process child = base::child_process::start(options);
  child.close_input();
  const auto line = child.read_line(until);
  if (!line) {
    throw error(errc::system_error, "get version", with.path, "it printed nothing");
  }
  return *line;
}

}  // namespace gpushm::app::oci
