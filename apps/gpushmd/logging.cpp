// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/logging.hpp"

#include <memory>

#include "base/report/log.hpp"
#include "base/text/text.hpp"

namespace gpushm::agent {

void start_log(const std::string& level, app::log_format format) {
  const auto log = std::make_shared<app::program_log>(
      "gpushmd", app::log_level_of(level).value_or(log_level::info), format);
  const bool by_lines = format == app::log_format::text;
  set_log_sink([log, by_lines](log_level line_level, std::string_view text) {
    if (!by_lines) {
      log->write(line_level, text);
      return;
    }
    for (const std::string_view line : base::lines_of(text)) {
      log->write(line_level, line);
    }
  });
  base::log(log_level::info, "version " GPUSHM_VERSION);
}

}  // namespace gpushm::agent
