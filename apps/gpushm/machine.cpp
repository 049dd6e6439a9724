// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <csignal>
#include <iostream>

#include "base/file.hpp"
#include "gpushm/error.hpp"
#include "inspect/json.hpp"
#include "inspect/recording.hpp"
#include "output.hpp"
#include "support/child_process.hpp"
#include "support/duration.hpp"

namespace gpushm::cli {

namespace {

constexpr std::size_t recording_limit_bytes = 16UL << 20U;

std::string read_document(const std::string& from) {
  if (from == "-") {
    std::string text(recording_limit_bytes, '\0');
    std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(std::cin.gcount()));
    return text;
  }
  auto text = base::read_small_file(from, recording_limit_bytes);
  if (!text) {
    throw error(errc::invalid_argument,
                "read recording",
                from,
                "the file cannot be read",
                "make one with \"gpushm doctor --json\" on the machine in question");
  }
  return std::move(*text);
}

machine replay(const std::string& from, const inspect::gather_options& options) {
  const std::string text = read_document(from);
  const auto recorded =
      inspect::recorded_machine::parse(from == "-" ? "standard input" : from, text);
  inspect::recording_system again(*recorded.files);
  machine made;
  made.facts = inspect::gather(
      again, [&] { return recorded.driver; }, options);
  made.recording = again.document(recorded.driver);
  made.document = nlohmann::json::parse(text);
  return made;
}

/// A process that hangs in the driver may not end when it is killed.
void end(app::child_process& asking) {
  asking.kill(SIGKILL);
  if (!asking.wait(app::deadline_in(std::chrono::seconds(1)))) {
    asking.abandon();
  }
}

}  // namespace

inspect::driver_view ask_driver(std::chrono::milliseconds timeout) {
  constexpr std::chrono::seconds patience{2};
  inspect::driver_view view;
  const auto until = app::deadline_in(timeout);
  try {
    app::child_options options;
    options.argv = {app::executable_path(), "probe-driver"};
    auto child = app::child_process::start(options);
    std::string text;
    if (timeout > patience && !child.wait_output(app::deadline_in(patience))) {
      note("waiting for the driver, " + app::duration_text(timeout) +
           " at most (without persistence mode GPUs take seconds each)");
    }
    if (!child.read_all(text, until)) {
      view.failure = "no answer within " + app::duration_text(timeout) +
                     " (without persistence mode GPUs take longer the first time)";
      end(child);
      return view;
    }
    const auto status = child.wait(until);
    const auto document = nlohmann::json::parse(text, nullptr, false);
    if (document.is_discarded()) {
      view.failure = status ? app::status_text(*status) : "no answer";
      return view;
    }
    return document.get<inspect::driver_view>();
  } catch (const std::exception& failure) {
    view.failure = failure.what();
    return view;
  }
}

machine look_at_machine(const std::string& from,
                        std::chrono::milliseconds driver_timeout,
                        const inspect::gather_options& options) {
  if (!from.empty()) {
    return replay(from, options);
  }
  const auto files = inspect::this_system();
  inspect::recording_system recorded(*files);
  machine made;
  made.facts = inspect::gather(
      recorded, [&] { return ask_driver(driver_timeout); }, options);
  made.recording = recorded.document(made.facts.driver);
  return made;
}

}  // namespace gpushm::cli
