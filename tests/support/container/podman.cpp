// SPDX-License-Identifier: Apache-2.0
#include "tests/support/container/podman.hpp"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "tests/support/container/image_root.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* image = "localhost/gpushm-test";

// Hard limits must not be raised here, and cgroups must not need systemd.
constexpr const char* configuration =
    "[containers]\n"
    "default_ulimits = []\n"
    "[engine]\n"
    "cgroup_manager = \"cgroupfs\"\n"
    "events_logger = \"none\"\n"
    "runtime = \"runc\"\n";

// In a PID namespace, so that conmon and the container die with the process that started podman.
constexpr const char* in_own_namespaces =
    "mount -t tmpfs -o mode=755 none /run && mkdir -p /run/cdi /run/gpushm/d && "
    "mount --bind \"$1\" /run/cdi && mount --rbind \"$2\" /run/gpushm/d && "
    "{ [ ! -d /etc/cdi ] || mount -t tmpfs none /etc/cdi; } && shift 2 && exec \"$@\"";

std::string cgroup_parent() {
  return "gpushm-podman-" + std::to_string(::getpid());
}

std::optional<std::string> try_podman() {
  if (::geteuid() != 0) {
    return "containers need root";
  }
  for (const char* program : {"podman", "runc", "ldd", "tar"}) {
    if (!find_in_path(program)) {
      return std::string("no ") + program + " in $PATH";
    }
  }
  try {
    const podman engine;
    podman_options options;
    options.argv = {"/bin/sh", "-c", "exit 0"};
    const auto done = run_program(engine.run(options), scaled_timeout(std::chrono::seconds(60)));
    if (!done.status.success()) {
      return "podman cannot run a container here (" + done.status.text() + ")\n" + done.err;
    }
  } catch (const std::exception& problem) {
    return problem.what();
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_no_podman() {
  static const auto reason = try_podman();
  return reason;
}

podman::podman(const std::vector<std::string>& others) {
  for (const char* name : {"cdi", "domains", "store", "runroot"}) {
    fs::create_directory(directory_ / name);
  }
  std::ofstream(directory_ / "containers.conf") << configuration;
  make_image_root(directory_ / "root", others);
  std::ofstream((directory_ / "root") + command_inside());
  spawn_options pack;
  pack.argv = {"tar", "-C", directory_ / "root", "-cf", directory_ / "root.tar", "."};
  spawn_options import;
  import.argv = command({"import", "--quiet", directory_ / "root.tar", image});
  import.env = environment();
  for (const auto& step : {pack, import}) {
    const auto done = run_program(step, scaled_timeout(std::chrono::seconds(60)));
    if (!done.status.success()) {
      throw harness_error(step.argv[0] + ": " + done.status.text() + "\n" + done.err);
    }
  }
}

void podman::build_image(const std::string& name,
                         const std::string& changes,
                         const std::vector<std::string>& annotations) const {
  const temp_dir context{0755};
  std::ofstream(context / "Containerfile") << "FROM " << image << "\n" << changes;
  std::vector<std::string> arguments{"build", "--quiet", "--isolation", "chroot", "--pull=never"};
  for (const std::string& each : annotations) {
    arguments.insert(arguments.end(), {"--annotation", each});
  }
  arguments.insert(arguments.end(), {"--tag", name, context.path()});
  spawn_options build;
  build.argv = command(arguments);
  build.env = environment();
  const auto done = run_program(build, scaled_timeout(std::chrono::seconds(60)));
  if (!done.status.success()) {
    throw harness_error("podman build: " + done.status.text() + "\n" + done.err);
  }
}

podman::~podman() {
  const auto removed = [] {
    bool left = false;
    for (const std::string& cgroup : cgroups_named(cgroup_parent())) {
      std::error_code ignored;
      for (const auto& inner : fs::directory_iterator(cgroup, ignored)) {
        if (inner.is_directory(ignored)) {
          ::rmdir(inner.path().c_str());
        }
      }
      left = ::rmdir(cgroup.c_str()) != 0 || left;
    }
    return !left;
  };
  static_cast<void>(eventually(removed, std::chrono::seconds(5)));
}

std::vector<std::string> podman::command(const std::vector<std::string>& arguments) const {
  std::vector<std::string> whole{"unshare",
                                 "--mount",
                                 "--propagation",
                                 "private",
                                 "--pid",
                                 "--fork",
                                 "--kill-child",
                                 "--mount-proc",
                                 "sh",
                                 "-c",
                                 in_own_namespaces,
                                 "podman",
                                 cdi_directory(),
                                 domains_directory(),
                                 "podman",
                                 "--root",
                                 directory_ / "store",
                                 "--runroot",
                                 directory_ / "runroot",
                                 "--tmpdir",
                                 directory_ / "runroot",
                                 "--storage-driver",
                                 "vfs"};
  whole.insert(whole.end(), arguments.begin(), arguments.end());
  return whole;
}

std::vector<std::pair<std::string, std::string>> podman::environment() const {
  return {{"CONTAINERS_CONF", directory_ / "containers.conf"}, {"LD_LIBRARY_PATH", ""}};
}

spawn_options podman::run(const podman_options& options) const {
  static std::atomic<int> count{0};
  std::vector<std::string> arguments;
  if (!options.runtime.empty()) {
    arguments = {"--runtime", options.runtime};
  }
  arguments.insert(arguments.end(),
                   {"run",
                    "--rm",
                    "--interactive",
                    "--network",
                    "none",
                    "--cgroup-parent",
                    "/" + cgroup_parent(),
                    "--name",
                    "gpushm-" + std::to_string(++count),
                    "--volume",
                    own_program("gpushm") + ":" + command_inside() + ":ro"});
  for (const std::string& device : options.devices) {
    arguments.insert(arguments.end(), {"--device", device});
  }
  for (const bind_mount& mount : options.mounts) {
    arguments.insert(
        arguments.end(),
        {"--volume", mount.source + ":" + mount.destination + (mount.writable ? ":rw" : ":ro")});
  }
  for (const auto& [name, value] : options.env) {
    arguments.insert(arguments.end(), {"--env", name + "=" + value});
  }
  arguments.insert(arguments.end(), options.more.begin(), options.more.end());
  arguments.push_back(options.image.empty() ? image : options.image);
  arguments.insert(arguments.end(), options.argv.begin(), options.argv.end());
  spawn_options started;
  started.argv = command(arguments);
  started.env = environment();
  return started;
}

}  // namespace gpushm_testing
