// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/refresh_child.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/files/syscall.hpp"
#include "base/process/child_process.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

constexpr const char* operation = "generate in a child process";

nlohmann::json result_of(const std::function<std::string()>& work) {
  try {
    return {{"text", work()}};
  } catch (const error& failure) {
    return {{"code", static_cast<int>(failure.code())},
            {"operation", failure.operation()},
            {"object", failure.object()},
            {"cause", failure.cause()},
            {"next_step", failure.next_step()}};
  } catch (const std::exception& failure) {
    return {{"code", static_cast<int>(errc::system_error)},
            {"operation", operation},
            {"object", ""},
            {"cause", failure.what()},
            {"next_step", ""}};
  }
}

void write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const auto wrote = base::checked(
        operation, {}, "write", [&] { return ::write(file, text.data(), text.size()); });
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

}  // namespace

std::string run_in_child(const std::function<std::string()>& work,
                         std::chrono::milliseconds timeout) {
  const auto until = base::deadline_in(timeout);
  auto child = base::child_process::fork([&](int output) {
    write_all(output,
              result_of(work).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  });
  std::string text;
  const auto status = child.read_all(text, until) ? child.wait(until) : std::nullopt;
  if (!status) {
    throw error(errc::timed_out,
                operation,
                {},
                "the driver did not answer in time",
                "check that nvidia-smi answers, and the kernel log for Xid lines");
  }
  const nlohmann::json reply = nlohmann::json::parse(text, nullptr, false);
  if (!reply.is_object()) {
    throw error(errc::driver_error,
                operation,
                {},
                "it ended early: " + base::status_text(*status),
                "check that nvidia-smi works on this machine");
  }
  if (reply.contains("code")) {
    throw error(static_cast<errc>(reply.at("code").get<int>()),
                reply.at("operation").get<std::string>(),
                reply.at("object").get<std::string>(),
                reply.at("cause").get<std::string>(),
                reply.at("next_step").get<std::string>());
  }
  return reply.at("text").get<std::string>();
}

}  // namespace gpushm::cli
