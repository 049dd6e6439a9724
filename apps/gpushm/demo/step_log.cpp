// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/demo/step_log.hpp"

#include <fmt/core.h>

#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/duration.hpp"

namespace gpushm::cli {

namespace {

std::string seconds_text(double seconds) {
  return app::duration_text(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds)));
}

}  // namespace

void step_log::step(const std::string& name, const std::string& text, double duration_s) {
  const double at =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  json entry{{"step", name},
             {"at_seconds", at},
             {"seconds", duration_s < 0 ? json(nullptr) : json(duration_s)}};
  steps_.push_back(std::move(entry));
  print(fmt::format("{:9.3f} s  {}{}",
                    at,
                    text,
                    duration_s < 0 ? "" : fmt::format(" ({})", seconds_text(duration_s))));
}

void step_log::print(const std::string& line) const {
  if (!as_json_) {
    print_line(line);
    flush_output();
  }
}

int finish_demo(bool as_json, json& document, const std::function<void()>& run) {
  json problem;
  try {
    run();
    document["result"] = "PASS";
  } catch (const error& failure) {
    problem = to_json(failure);
  } catch (const std::exception& failure) {
    problem = to_json(error(errc::system_error, "demo", {}, failure.what()));
  }
  document["error"] = problem;
  if (as_json) {
    print_json(document);
  }
  if (!problem.is_null()) {
    note(problem.at("message").get<std::string>());
  }
  if (!as_json) {
    print_line(document.at("result").get<std::string>());
  }
  return problem.is_null() ? exit_ok : exit_failed;
}

}  // namespace gpushm::cli
