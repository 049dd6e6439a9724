// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/settings_watch.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "apps/gpushmd/settings.hpp"
#include "base/report/log.hpp"

namespace gpushm::agent {

namespace {

using clock = std::chrono::steady_clock;

/// Delay until a file that is written in several steps is complete.
constexpr std::chrono::milliseconds settle_time{200};

}  // namespace

settings_watch::settings_watch(std::string path, std::string text)
    : path_(std::move(path)), text_(std::move(text)) {
  if (path_.empty()) {
    return;
  }
  try {
    const auto whole = std::filesystem::absolute(path_);
    watch_.emplace("watch the settings file");
    watch_->set_directories({whole.parent_path().string()});
    check_at_ = clock::now();  // it may have changed since it was read
  } catch (const std::exception& why) {
    stop_watching(why);
  }
}

void settings_watch::stop_watching(const std::exception& why) {
  base::log(log_level::warning,
            fmt::format("{}; send SIGHUP after changes to {}", why.what(), path_));
  watch_.reset();
  check_at_.reset();
}

std::chrono::milliseconds settings_watch::next(std::chrono::milliseconds max) const {
  if (!check_at_) {
    return max;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*check_at_ - clock::now());
  return std::clamp(left, std::chrono::milliseconds(0), max);
}

bool settings_watch::changed() {
  if (!watch_) {
    return false;
  }
  try {
    if (watch_->take([](const base::directory_watch::change& /*any*/) {})) {
      check_at_ = clock::now() + settle_time;
    }
  } catch (const std::exception& why) {
    stop_watching(why);
    return false;
  }
  if (!check_at_ || clock::now() < *check_at_) {
    return false;
  }
  check_at_.reset();
  std::string problem;
  std::string text = read_settings_text(path_, problem);
  if (!problem.empty() || text == text_) {
    return false;
  }
  text_ = std::move(text);
  return true;
}

}  // namespace gpushm::agent
