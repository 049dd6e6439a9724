// SPDX-License-Identifier: Apache-2.0
#include "measure.hpp"

#include <sys/wait.h>

#include "json_output.hpp"

namespace gpushm::cli {

namespace {

constexpr std::string_view operation = "measure GPUs";
constexpr std::string_view next_step =
    "nvidia-smi and the kernel log may tell more; gpushm doctor tries each GPU alone";

std::chrono::nanoseconds nanoseconds_in(const json& object, const char* key) {
  return std::chrono::nanoseconds(object.at(key).get<std::int64_t>());
}

measurement read(const json& document) {
  measurement made;
  for (const json& each : document.at("gpus")) {
    made.gpus.push_back({each.at("ordinal").get<int>(),
                         each.at("uuid").get<std::string>(),
                         each.at("name").get<std::string>()});
  }
  for (const json& each : document.at("pairs")) {
    measured_pair& pair = made.pairs.emplace_back();
    pair.reader = each.at("reader").get<std::string>();
    pair.owner = each.at("owner").get<std::string>();
    pair.problem = each.at("problem").get<std::string>();
    pair.bytes_per_second = each.at("bytes_per_second").get<double>();
    pair.copy_bytes = each.at("copy_bytes").get<std::uint64_t>();
    pair.latency = nanoseconds_in(each, "latency_ns");
    pair.mapping_time = nanoseconds_in(each, "mapping_ns");
    pair.mapped_bytes = each.at("mapped_bytes").get<std::uint64_t>();
  }
  return made;
}

[[noreturn]] void throw_told(const json& told) {
  const bool no_driver = told.value("code", "") == to_string(errc::driver_unavailable);
  throw error(no_driver ? errc::driver_unavailable : errc::driver_error,
              operation,
              {},
              told.value("message", "?"),
              no_driver ? std::string_view() : next_step);
}

}  // namespace

measurement measure_gpus(app::deadline until, const std::string& program) {
  app::child_options options;
  options.argv = {program.empty() ? app::executable_path() : program, "measure-worker"};
  auto worker = app::child_process::start(options);
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
    throw_told(document["error"]);
  }
  if (*status != 0 || !document.is_object()) {
    throw error(errc::peer_died,
                operation,
                {},
                "the measuring process ended with " + app::status_text(*status),
                next_step);
  }
  try {
    return read(document);
  } catch (const json::exception& failure) {
    throw error(errc::protocol_error, operation, {}, failure.what());
  }
}

}  // namespace gpushm::cli
