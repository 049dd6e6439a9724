// SPDX-License-Identifier: Apache-2.0
#include "apps/support/oci/runtime.hpp"

#include <cstdlib>
#include <filesystem>

#include "apps/support/program_path.hpp"
#include "gpushm/error.hpp"

namespace gpushm::app::oci {

namespace {

namespace fs = std::filesystem;

std::optional<std::string> find_program(const std::string& name) {
  const char* variable =
      std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): no code sets variables
  const std::string path = variable == nullptr ? "" : variable;
  std::optional<std::string> program;
  if (name.find('/') == std::string::npos) {
    program = find_executable(path + ":/usr/local/sbin:/usr/sbin:/usr/bin:/sbin", name);
  } else if (is_executable(name)) {
    program = name;
  }
  return program ? std::optional(fs::absolute(*program).lexically_normal().string()) : std::nullopt;
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
  runtime runtime{*path, {}};
  if (needs_v1_alone(*path)) {
    runtime.command = {"/usr/bin/unshare",
                       "--mount",
                       "--propagation",
                       "private",
                       "/bin/sh",
                       "-c",
                       R"(umount /sys/fs/cgroup/unified && exec "$0" "$@")"};
  }
  runtime.command.push_back(*path);
  return runtime;
}

std::string version_of(const runtime& runtime, base::deadline until) {
  base::child_options options;
  options.argv = {runtime.path, "--version"};
  options.merge_stderr = true;
  base::child_process child = base::child_process::start(options);
  child.close_input();
  const auto line = child.read_line(until);
  if (!line) {
    throw error(errc::system_error, "get version", runtime.path, "it printed nothing");
  }
  return *line;
}

}  // namespace gpushm::app::oci
