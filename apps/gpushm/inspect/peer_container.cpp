// SPDX-License-Identifier: Apache-2.0
// From the name of a container to its process.

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "apps/gpushm/inspect/peer.hpp"
#include "base/child_process.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

std::optional<std::string> program_in_path(const std::string& name) {
  const char* const path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  std::istringstream directories(path == nullptr ? "/usr/sbin:/usr/bin:/sbin:/bin" : path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    std::string file = directory;
    file += '/';
    file += name;
    if (!directory.empty() && ::access(file.c_str(), X_OK) == 0) {
      return file;
    }
  }
  return std::nullopt;
}

/// The number after `"key":` in a runtime's JSON, without a parser: the text may have warnings
/// around it.
std::optional<pid_t> number_after(const std::string& text, std::string_view key) {
  const std::size_t at = text.find("\"" + std::string(key) + "\"");
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

/// The PID that a runtime names; 0 for a container that does not run; nothing when it knows none.
std::optional<pid_t> ask_runtime(const container_runtime& runtime, const std::string& name) {
  base::child_options options;
  options.argv = {runtime.program};
  options.merge_stderr = true;
  const bool oci = runtime.speaks == container_runtime::kind::oci;
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
    return std::nullopt;  // it cannot even be started
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
  std::vector<container_runtime> found;
  for (const char* const name : {"runc", "crun"}) {
    if (const auto program = program_in_path(name)) {
      found.push_back({kind::oci, *program, ""});
      for (const char* const root : roots) {
        struct stat status {};
        if (::stat(root, &status) == 0 && S_ISDIR(status.st_mode)) {
          found.push_back({kind::oci, *program, root});
        }
      }
    }
  }
  for (const char* const name : {"podman", "docker"}) {
    if (const auto program = program_in_path(name)) {
      found.push_back({kind::engine, *program, ""});
    }
  }
  return found;
}

pid_t pid_of_container(const std::string& name, const std::vector<container_runtime>& runtimes) {
  constexpr std::string_view operation = "find container";
  constexpr std::string_view next_step =
      "name it as its runtime lists it (runc list, podman ps, crictl ps), or give its process with "
      "--peer PID";
  // Else a runtime would take it for one of its options.
  if (name.empty() || name.front() == '-') {
    throw error(errc::invalid_argument, operation, name, "this is no container's name", next_step);
  }
  ::signal(SIGPIPE, SIG_IGN);
  std::string asked;
  for (const container_runtime& runtime : runtimes) {
    if (const auto pid = ask_runtime(runtime, name)) {
      if (*pid > 0) {
        return *pid;
      }
      throw error(errc::invalid_argument,
                  operation,
                  name,
                  runtime.text() + " says that it does not run",
                  "start it, then ask again");
    }
    asked += (asked.empty() ? "" : ", ") + runtime.text();
  }
  throw error(errc::invalid_argument,
              operation,
              name,
              asked.empty() ? "there is no runc, crun, podman or docker in $PATH to ask"
                            : "no runtime here knows it; asked: " + asked,
              next_step);
}

}  // namespace gpushm::cli
