// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/measure.hpp"

#include <sys/wait.h>

#include "apps/gpushm/json_output.hpp"
#include "inspect/facts/json.hpp"
#include "inspect/topology/json.hpp"

namespace gpushm::cli {

namespace {

constexpr std::string_view operation = "measure GPUs";
constexpr std::string_view next_step =
    "check nvidia-smi and the kernel log; gpushm doctor tests each GPU separately";

[[noreturn]] void throw_reported(const json& reported) {
  const bool no_driver = reported.value("code", "") == to_string(errc::driver_unavailable);
  throw error(no_driver ? errc::driver_unavailable : errc::driver_error,
              operation,
              {},
              reported.value("message", "?"),
              no_driver ? std::string_view() : next_step);
}

}  // namespace

std::vector<inspect::measured_pair> measure_gpus(base::deadline until, const std::string& program) {
  base::child_options options;
  options.argv = {program.empty() ? base::executable_path() : program, "measure-worker"};
  auto worker = base::child_process::start(options);
  worker.close_input();
  std::string text;
  const bool whole = worker.read_all(text, until);
  const auto status = whole ? worker.wait(until) : std::nullopt;
  if (!status) {
    throw error(errc::timed_out,
                operation,
                {},
                "the measuring process did not finish in time and was killed",
                next_step);
  }
  const json document = json::parse(text, nullptr, false);
  if (document.is_object() && document.contains("error")) {
    throw_reported(document["error"]);
  }
  if (*status != 0 || !document.is_object()) {
    throw error(errc::peer_died,
                operation,
                {},
                "the measuring process ended: " + base::status_text(*status),
                next_step);
  }
  try {
    return nlohmann::json(document.at("measured")).get<std::vector<inspect::measured_pair>>();
  } catch (const json::exception& failure) {
    throw error(errc::protocol_error, operation, {}, failure.what());
  }
}

}  // namespace gpushm::cli
