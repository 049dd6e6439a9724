// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/config_watch.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "apps/gpushmd/settings.hpp"
#include "base/log.hpp"

namespace gpushm::agent {

namespace {

using clock = std::chrono::steady_clock;

/// Delay until a file that is written in several steps is complete.
constexpr std::chrono::milliseconds settle{200};

}  // namespace

config_watch::config_watch(std::string path, std::string text)
    : path_(std::move(path)), text_(std::move(text)) {
  if (path_.empty()) {
    return;
  }
  try {
    const auto whole = std::filesystem::absolute(path_);
    watch_.emplace("watch the settings file");
    watch_->set_directories({whole.parent_path().string()});
    look_at_ = clock::now();  // it may have changed since it was read
  } catch (const std::exception& why) {
    stop_watching(why);
  }
}

void config_watch::stop_watching(const std::exception& why) {
  base::log(log_level::warning,
            std::string(why.what()) + "; send SIGHUP after changes to " + path_);
  watch_.reset();
  look_at_.reset();
}

std::chrono::milliseconds config_watch::next(std::chrono::milliseconds most) const {
  if (!look_at_) {
    return most;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*look_at_ - clock::now());
  return std::clamp(left, std::chrono::milliseconds(0), most);
}

bool config_watch::changed() {
  if (!watch_) {
    return false;
  }
  try {
    if (watch_->take([](const base::directory_watch::change& /*any*/) {})) {
      look_at_ = clock::now() + settle;
    }
  } catch (const std::exception& why) {
    stop_watching(why);
    return false;
  }
  if (!look_at_ || clock::now() < *look_at_) {
    return false;
  }
  look_at_.reset();
  std::string problem;
  std::string text = read_config_text(path_, problem);
  if (!problem.empty() || text == text_) {
    return false;
  }
  text_ = std::move(text);
  return true;
}

}  // namespace gpushm::agent
