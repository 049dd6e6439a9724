// SPDX-License-Identifier: Apache-2.0
// Finds the process of a container by the container's name.

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "apps/gpushm/inspect/peer.hpp"
#include "base/process/child_process.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

std::optional<std::string> program_in_path(const std::string& name) {
  const char* const path =
      std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): no code sets variables
  std::istringstream directories(path == nullptr ? "/usr/sbin:/usr/bin:/sbin:/bin" : path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string file = fmt::format("{}/{}", directory, name);
    if (!directory.empty() && ::access(file.c_str(), X_OK) == 0) {
      return file;
    }
  }
  return std::nullopt;
}

/// The number after `"key":` in a runtime's output. Does not parse JSON, because warnings may
/// precede or follow it.
std::optional<pid_t> number_after(const std::string& text, std::string_view key) {
  const std::size_t at = text.find(fmt::format("\"{}\"", key));
  const std::size_t start =
      at == std::string::npos ? at : text.find_first_not_of(" :\t", at + key.size() + 2);
  if (start == std::string::npos) {
    return std::nullopt;
  }
  pid_t number = 0;
  const auto [end, failed] =
      std::from_chars(text.data() + start, text.data() + text.size(), number);
  return failed == std::errc() ? std::optional(number) : std::nullopt;
}

/// The container's PID as reported by a runtime; 0 if it is not running; nullopt if the runtime
/// does not have it.
std::optional<pid_t> query_runtime(const container_runtime& runtime, const std::string& name) {
  base::child_options options;
  options.argv = {runtime.program};
  options.merge_stderr = true;
  const bool oci = runtime.type == container_runtime::kind::oci;
  if (oci) {
    if (!runtime.root.empty()) {
      options.argv.insert(options.argv.end(), {"--root", runtime.root});
    }
    options.argv.insert(options.argv.end(), {"state", name});
  } else {
    options.argv.insert(options.argv.end(),
                        {"inspect", "--type", "container", "--format", "{\"pid\":{{.State.Pid}}}"});
    options.argv.push_back(name);
  }
  try {
    const base::deadline until = base::deadline_in(std::chrono::seconds(5));
    auto process = base::child_process::start(options);
    process.close_input();
    std::string text;
    if (!process.read_all(text, until)) {
      return std::nullopt;
    }
    const auto status = process.wait(until);
    return status == 0 ? number_after(text, "pid") : std::nullopt;
  } catch (const error&) {
    return std::nullopt;  // the runtime cannot be started
  }
}

}  // namespace

std::string container_runtime::text() const {
  return program + (root.empty() ? "" : " --root " + root);
}

std::vector<container_runtime> known_runtimes() {
  using kind = container_runtime::kind;
  constexpr std::array<const char*, 6> roots{"/run/containerd/runc/k8s.io",
                                             "/run/containerd/runc/moby",
                                             "/run/containerd/runc/default",
                                             "/run/docker/runtime-runc/moby",
                                             "/run/crio/runc",
                                             "/run/crio/crun"};
  std::vector<container_runtime> runtimes;
  for (const char* const name : {"runc", "crun"}) {
    if (const auto program = program_in_path(name)) {
      runtimes.push_back({kind::oci, *program, ""});
      for (const char* const root : roots) {
        struct stat status {};
        if (::stat(root, &status) == 0 && S_ISDIR(status.st_mode)) {
          runtimes.push_back({kind::oci, *program, root});
        }
      }
    }
  }
  for (const char* const name : {"podman", "docker"}) {
    if (const auto program = program_in_path(name)) {
      runtimes.push_back({kind::engine, *program, ""});
    }
  }
  return runtimes;
}

pid_t pid_of_container(const std::string& name, const std::vector<container_runtime>& runtimes) {
  constexpr std::string_view operation = "find container";
  constexpr std::string_view next_step =
      "use the name that its runtime lists (runc list, podman ps, crictl ps), or pass its process "
      "with --peer PID";
  // A runtime would parse this name as an option.
  if (name.empty() || name.front() == '-') {
    throw error(errc::invalid_argument, operation, name, "not a container's name", next_step);
  }
  ::signal(SIGPIPE, SIG_IGN);
  std::string tried;
  for (const container_runtime& runtime : runtimes) {
    if (const auto pid = query_runtime(runtime, name)) {
      if (*pid > 0) {
        return *pid;
      }
      throw error(errc::invalid_argument,
                  operation,
                  name,
                  runtime.text() + " reports that it is not running",
                  "start it, then try again");
    }
    tried += (tried.empty() ? "" : ", ") + runtime.text();
  }
  throw error(errc::invalid_argument,
              operation,
              name,
              tried.empty() ? "no runc, crun, podman or docker in $PATH"
                            : "no runtime here has this container; tried: " + tried,
              next_step);
}

}  // namespace gpushm::cli
