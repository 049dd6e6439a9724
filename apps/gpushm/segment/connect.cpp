// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/connect.hpp"

#include <fmt/core.h>

#include "apps/gpushm/output.hpp"

namespace gpushm::cli {

void print_warnings() {
  set_log_sink([](log_level level, std::string_view text) {
    if (level >= log_level::warning) {
      note(fmt::format("{}: {}", level == log_level::error ? "error" : "warning", text));
    }
  });
}

client connect(const connection_arguments& arguments, std::chrono::milliseconds wait) {
  print_warnings();
  connect_options options;
  options.socket_path = arguments.socket;
  options.timeout = arguments.connect_timeout.value_or(wait);
  return client::connect(options);
}

}  // namespace gpushm::cli
