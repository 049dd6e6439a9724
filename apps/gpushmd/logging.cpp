// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/logging.hpp"

#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/support/stderr_sink.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace gpushm::agent {

namespace {

// A message as a JSON string, including the quotes.
class json_text final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message,
              const std::tm& /*when*/,
              spdlog::memory_buf_t& out) override {
    const std::string text(message.payload.data(), message.payload.size());
    // Invalid UTF-8 must not drop the line.
    const std::string quoted =
        nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    out.append(quoted.data(), quoted.data() + quoted.size());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<json_text>();
  }
};

}  // namespace

void start_log(const std::string& level, log_format as) {
  auto sink = std::make_shared<app::stderr_sink>("gpushmd");
  auto logger = std::make_shared<spdlog::logger>("gpushmd", sink);
  if (as == log_format::json) {
    auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
    formatter->add_flag<json_text>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","message":%*})");
    logger->set_formatter(std::move(formatter));
  } else {
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%-7l%$ %v", spdlog::pattern_time_type::utc);
  }
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::debug);
  const bool by_lines = as == log_format::text;
  set_log_sink([logger, by_lines](log_level line_level, std::string_view text) {
    constexpr std::array levels{
        spdlog::level::debug, spdlog::level::info, spdlog::level::warn, spdlog::level::err};
    const auto at = levels.at(static_cast<std::size_t>(line_level));
    if (!by_lines) {
      logger->log(at, spdlog::string_view_t(text.data(), text.size()));
      return;
    }
    for (const std::string_view line : base::lines_of(text)) {
      logger->log(at, spdlog::string_view_t(line.data(), line.size()));
    }
  });
}

}  // namespace gpushm::agent
