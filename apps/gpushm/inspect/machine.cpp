// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/machine.hpp"

#include <fmt/core.h>

#include <csignal>
#include <iostream>

#include "apps/gpushm/output.hpp"
#include "apps/support/duration.hpp"
#include "base/files/file.hpp"
#include "base/process/child_process.hpp"
#include "gpushm/error.hpp"
#include "inspect/facts/json.hpp"
#include "inspect/facts/recording.hpp"

namespace gpushm::cli {

namespace {

constexpr std::size_t recording_limit_bytes = 16UL << 20U;

std::string read_document(const std::string& path) {
  if (path == "-") {
    std::string text(recording_limit_bytes, '\0');
    std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(std::cin.gcount()));
    return text;
  }
  auto text = base::read_small_file(path, recording_limit_bytes);
  if (!text) {
    throw error(errc::invalid_argument,
                "read recording",
                path,
                "the file cannot be read",
                "create one with \"gpushm doctor --json\" on that machine");
  }
  return std::move(*text);
}

machine replay(const std::string& path, const inspect::gather_options& options) {
  const std::string text = read_document(path);
  const auto recorded =
      inspect::recorded_machine::parse(path == "-" ? "standard input" : path, text);
  inspect::recording_system again(*recorded.files);
  machine result;
  result.facts = inspect::gather(
      again, [&] { return recorded.driver; }, options);
  result.recording = again.document(recorded.driver);
  result.document = nlohmann::json::parse(text);
  return result;
}

/// A process that hangs in the driver may not exit when killed.
void end(base::child_process& asking) {
  asking.kill(SIGKILL);
  if (!asking.wait(base::deadline_in(std::chrono::seconds(1)))) {
    asking.abandon();
  }
}

}  // namespace

inspect::driver_view probe_driver(std::chrono::milliseconds timeout) {
  constexpr std::chrono::seconds quiet_time{2};
  inspect::driver_view view;
  const auto until = base::deadline_in(timeout);
  try {
    base::child_options options;
    options.argv = {base::executable_path(), "probe-driver"};
    auto child = base::child_process::start(options);
    std::string text;
    if (timeout > quiet_time && !child.wait_output(base::deadline_in(quiet_time))) {
      note(fmt::format(
          "waiting for the driver, {} at most (without persistence mode GPUs take seconds each)",
          app::duration_text(timeout)));
    }
    if (!child.read_all(text, until)) {
      view.failure = fmt::format(
          "no answer within {} (without persistence mode GPUs take longer the first time)",
          app::duration_text(timeout));
      end(child);
      return view;
    }
    const auto status = child.wait(until);
    const auto document = nlohmann::json::parse(text, nullptr, false);
    if (document.is_discarded()) {
      view.failure = status ? base::status_text(*status) : "no answer";
      return view;
    }
    return document.get<inspect::driver_view>();
  } catch (const std::exception& failure) {
    view.failure = failure.what();
    return view;
  }
}

machine gather_machine(const std::string& path,
                       std::chrono::milliseconds driver_timeout,
                       const inspect::gather_options& options) {
  if (!path.empty()) {
    return replay(path, options);
  }
  const auto files = inspect::this_system();
  inspect::recording_system recorded(*files);
  machine result;
  result.facts = inspect::gather(
      recorded, [&] { return probe_driver(driver_timeout); }, options);
  result.recording = recorded.document(result.facts.driver);
  return result;
}

}  // namespace gpushm::cli
