// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/driver_setup.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "apps/gpushm/output.hpp"
#include "apps/support/program_path.hpp"
#include "base/files/file.hpp"
#include "base/process/child_process.hpp"
#include "base/text/text.hpp"
#include "containers/discover/gpus/missing_nodes.hpp"
#include "containers/discover/gpus/nodes.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

constexpr const char* module = "nvidia-uvm";
constexpr std::chrono::seconds modprobe_timeout{30};
constexpr std::chrono::minutes load_pause{1};

// Its last line says why a load failed.
std::string last_line(std::string_view output) {
  const auto lines = base::lines_of(output);
  return lines.empty() ? std::string() : std::string(base::trim(lines.back()));
}

// Why the module could not be loaded; empty: it is loaded.
std::string run_modprobe() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread sets variables
  const char* const path = std::getenv("PATH");
  const auto program = app::find_executable(
      std::string(path == nullptr ? "" : path).append(":/usr/sbin:/sbin"), "modprobe");
  if (!program) {
    return "modprobe is not installed";
  }
  try {
    const auto until = base::deadline_in(modprobe_timeout);
    base::child_options options;
    options.argv = {*program, module};
    options.merge_stderr = true;
    auto child = base::child_process::start(options);
    std::string output;
    const auto status = child.read_all(output, until) ? child.wait(until) : std::nullopt;
    if (!status) {
      child.kill(SIGKILL);
      child.abandon();  // it may be stuck in the kernel
      return "modprobe did not end in time";
    }
    if (*status != 0) {
      const std::string line = last_line(output);
      return line.empty() ? "modprobe: " + base::status_text(*status) : line;
    }
    return {};
  } catch (const error& failure) {
    return failure.cause();
  }
}

}  // namespace

bool driver_setup::load_uvm() {
  std::error_code failed;
  const std::string devices =
      base::read_small_file(options_.proc_root + "/devices").value_or(std::string());
  if (!std::filesystem::exists(options_.proc_root + "/driver/nvidia/version", failed) ||
      discover::major_of(devices, module)) {
    last_load_.reset();
    load_failure_.clear();
    return false;
  }
  const auto now = std::chrono::steady_clock::now();
  if (last_load_ && now - *last_load_ < load_pause) {
    return false;
  }
  last_load_ = now;
  load_failure_ = run_modprobe();
  if (!load_failure_.empty()) {
    return false;
  }
  note(fmt::format("loaded the module {}", module));
  return true;
}

bool driver_setup::complete() {
  failures_.clear();
  if (::geteuid() != 0) {
    return false;
  }
  const bool loaded = load_uvm();
  if (!load_failure_.empty()) {
    failures_.push_back(fmt::format("load the module {}: {}", module, load_failure_));
  }
  const auto nodes =
      discover::create_missing_nodes(discover::find_dev_root(options_), options_.proc_root);
  for (const std::string& path : nodes.created) {
    note("created " + path);
  }
  failures_.insert(failures_.end(), nodes.failed.begin(), nodes.failed.end());
  return loaded || !nodes.created.empty();
}

}  // namespace gpushm::cli
