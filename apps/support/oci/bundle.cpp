// SPDX-License-Identifier: Apache-2.0
#include "apps/support/oci/bundle.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/support/oci/config.hpp"
#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/report/log.hpp"

namespace gpushm::app::oci {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view operation = "create container";

std::string new_id(std::string_view prefix) {
  static std::atomic<unsigned> count{0};
  return fmt::format("{}-{}-{}", prefix, ::getpid(), ++count);
}

void make_directory(const std::string& path, mode_t mode) {
  base::checked(operation, path, "mkdir", [&] { return ::mkdir(path.c_str(), mode); });
  base::checked(operation, path, "chmod", [&] { return ::chmod(path.c_str(), mode); });
}

/// Creates the mount points. The runtime creates missing ones, but cannot as root of a user
/// namespace.
void make_mount_points(const std::string& root, const nlohmann::json& config) {
  for (const auto& mount : config["mounts"]) {
    const fs::path point = root + mount["destination"].get<std::string>();
    const auto source = mount["source"].get<std::string>();
    if (mount["type"] == "bind" && !fs::is_directory(source)) {
      fs::create_directories(point.parent_path());
      std::ofstream(point, std::ios::app).flush();
    } else {
      fs::create_directories(point);
    }
  }
}

void write_bundle(const std::string& path,
                  const container_options& options,
                  const std::string& id) {
  // Root of a user namespace must be able to enter it.
  base::checked(operation, path, "chmod", [&] { return ::chmod(path.c_str(), 0755); });
  make_directory(path + "/rootfs", 0755);
  // runc gives a mounted tmpfs the mode of the directory below it.
  make_directory(path + "/rootfs/tmp", 01777);
  make_directory(path + "/state", 0700);
  const auto document = config(options, "/" + id);
  make_mount_points(path + "/rootfs", document);
  std::ofstream file(path + "/config.json");
  file << document.dump(2) << '\n';
  if (!file.flush()) {
    throw error(errc::system_error, operation, path + "/config.json", "cannot write it");
  }
}

std::vector<std::string> runtime_command(const runtime& runtime, const std::string& directory) {
  auto command = runtime.command;
  for (const auto& argument :
       {std::string("--root"), directory + "/state", std::string("--log"), directory + "/log"}) {
    command.push_back(argument);
  }
  return command;
}

std::vector<std::string> joined(std::vector<std::string> left,
                                const std::vector<std::string>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace

bundle::bundle(const runtime& runtime, const container_options& options, std::string_view prefix)
    : id_(new_id(prefix)),
      guard_(prefix, runtime.command, id_),
      runtime_(runtime_command(runtime, guard_.directory())) {
  write_bundle(guard_.directory(), options, id_);
}

std::vector<std::string> bundle::run_command() const {
  const std::string& path = guard_.directory();
  return command({"run", "--pid-file", path + "/pid", "--bundle", path, id_});
}

std::vector<std::string> bundle::command(const std::vector<std::string>& arguments) const {
  return joined(runtime_, arguments);
}

std::optional<pid_t> bundle::host_pid() const {
  // The runtime renames it into place while the program is already running.
  const auto text = base::read_small_file(guard_.directory() + "/pid");
  pid_t pid = 0;
  if (!text || std::from_chars(text->data(), text->data() + text->size(), pid).ec != std::errc()) {
    return std::nullopt;
  }
  return pid;
}

std::string bundle::log_text() const {
  return base::read_small_file(guard_.directory() + "/log").value_or("");
}

void bundle::remove(const std::function<bool()>& running) noexcept {
  const auto wait_while = [&](const std::function<bool()>& condition) {
    try {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (condition() && std::chrono::steady_clock::now() < until) {
        base::pause_before_retry(std::chrono::milliseconds(5));
      }
    } catch (const std::exception& problem) {
      base::log(log_level::warning, fmt::format("container {}: {}", id_, problem.what()));
    }
  };
  wait_while([&] { return running() && !host_pid(); });
  guard_.finish();
  // crun ends after its container, and may then create its state directory again, also before the
  // guard has ended.
  wait_while(running);
  const std::filesystem::path directory = guard_.directory();
  if (directory.empty()) {
    return;  // moved from
  }
  // Only empty ones: something may be mounted there.
  std::error_code ignored;
  for (const auto& each : {directory / "state" / id_, directory / "state", directory}) {
    std::filesystem::remove(each, ignored);
  }
}

}  // namespace gpushm::app::oci
