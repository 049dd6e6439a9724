// SPDX-License-Identifier: Apache-2.0
#include "container/container.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/file.hpp"
#include "base/syscall.hpp"
#include "container/oci_config.hpp"
#include "container/support.hpp"
#include "process/harness_error.hpp"
#include "process/programs.hpp"

namespace gpushm_testing {
namespace {

namespace fs = std::filesystem;

std::string new_id() {
  static std::atomic<unsigned> count{0};
  return "gpushm-test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

void make_directory(const std::string& path, mode_t mode) {
  fs::create_directories(path);
  if (::chmod(path.c_str(), mode) != 0) {
    throw harness_error("chmod " + path + ": " + gpushm::base::errno_text(errno));
  }
}

/// What runc mounts onto. It could make these itself, but not as root of a user namespace.
void make_mount_points(const temp_dir& directory, const nlohmann::json& config) {
  for (const auto& mount : config["mounts"]) {
    const fs::path point = (directory / "rootfs") + mount["destination"].get<std::string>();
    const auto source = mount["source"].get<std::string>();
    if (mount["type"] == "bind" && !fs::is_directory(source)) {
      fs::create_directories(point.parent_path());
      std::ofstream(point, std::ios::app).flush();
    } else {
      fs::create_directories(point);
    }
  }
}

void write_bundle(const temp_dir& directory,
                  const container_options& options,
                  const std::string& id) {
  make_directory(directory / "rootfs", 0755);
  // runc gives a mounted tmpfs the mode of the directory below it.
  make_directory(directory / "rootfs/tmp", 01777);
  make_directory(directory / "state", 0700);
  const auto config = oci_config(options, "/" + id);
  make_mount_points(directory, config);
  std::ofstream file(directory / "config.json");
  file << config.dump(2) << '\n';
  if (!file.flush()) {
    throw harness_error("cannot write " + (directory / "config.json"));
  }
}

std::vector<std::string> runc_command(const std::string& runc,
                                      const temp_dir& directory,
                                      std::vector<std::string> rest) {
  std::vector<std::string> argv{runc, "--root", directory / "state", "--log", directory / "log"};
  argv.insert(argv.end(), rest.begin(), rest.end());
  return argv;
}

/// Waits for its input to end (with this object, or with this process) and then deletes the
/// container.
child start_guard(const std::string& runc, const temp_dir& directory, const std::string& id) {
  spawn_options options;
  options.argv = {
      "/bin/sh",
      "-c",
      "trap '' INT TERM HUP; read -r _; exec \"$0\" --root \"$1\" delete --force \"$2\"",
      runc,
      directory / "state",
      id};
  options.dies_with_parent = false;
  return child::start(options);
}

}  // namespace

void use_own_program(container_options& options, const std::string& name) {
  const auto path = own_program(name);
  const auto tree = tree_of_program(path);
  options.argv.insert(options.argv.begin(), path);
  if (tree != "/" && tree != "/usr") {
    options.mounts.push_back({tree, tree, false, true});
  }
}

container container::start(const container_options& options) {
  const auto runc = find_runc();
  if (!runc) {
    throw harness_error("no runc (install it, or set GPUSHM_RUNC)");
  }
  auto directory = std::make_unique<temp_dir>(0755);  // root of a user namespace must get through
  auto id = new_id();
  write_bundle(*directory, options, id);
  auto guard = start_guard(*runc, *directory, id);
  spawn_options run;
  run.argv =
      runc_command(*runc,
                   *directory,
                   {"run", "--pid-file", *directory / "pid", "--bundle", directory->path(), id});
  auto runtime = child::start(run);
  return {std::move(directory), std::move(id), std::move(guard), std::move(runtime)};
}

container::container(std::unique_ptr<temp_dir> directory,
                     std::string id,
                     child guard,
                     child runtime)
    : directory_(std::move(directory)),
      id_(std::move(id)),
      guard_(std::move(guard)),
      runtime_(std::move(runtime)) {}

container::~container() {
  if (!directory_) {
    return;
  }
  try {
    guard_.close_stdin();
    guard_.wait_exit(std::chrono::seconds(10));
    runtime_.wait_exit(std::chrono::seconds(10));
  } catch (const std::exception& problem) {
    std::cerr << "container " << id_ << ": " << problem.what() << '\n';
  }
}

std::string container::log_text(const temp_dir& directory) {
  return gpushm::base::read_small_file(directory / "log").value_or("");
}

std::string container::everything() {
  return runtime_.output().everything() + "\n--- runc's log\n" + log_text(*directory_) + "---";
}

std::string container::wait_for_line(const std::string& pattern,
                                     std::chrono::milliseconds timeout,
                                     stream from) {
  try {
    return runtime_.wait_for_line(pattern, timeout, from);
  } catch (const harness_error& problem) {
    throw harness_error(std::string("container ") + id_ + ": " + problem.what() +
                        "\n--- runc's log\n" + log_text(*directory_) + "---");
  }
}

exit_status container::wait_exit(std::chrono::milliseconds timeout) {
  return runtime_.wait_exit(timeout);
}

void container::kill(int signal_number) {
  spawn_options options;
  options.argv = runc_command(
      find_runc().value_or("runc"), *directory_, {"kill", id_, std::to_string(signal_number)});
  const auto done = run_program(options);
  if (!done.status.success() && running()) {
    throw harness_error("runc kill: " + done.status.text() + "\n" + done.err);
  }
}

pid_t container::host_pid() const {
  // runc writes the file (and renames it into place) while the program already runs.
  std::optional<std::string> text;
  const auto written = [&] {
    text = gpushm::base::read_small_file(*directory_ / "pid");
    return text.has_value();
  };
  if (!eventually(written, std::chrono::seconds(5))) {
    throw harness_error("container " + id_ + " has not started");
  }
  return static_cast<pid_t>(std::stoi(*text));
}

}  // namespace gpushm_testing
