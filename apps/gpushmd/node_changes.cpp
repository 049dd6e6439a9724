// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/node_changes.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <utility>

#include "apps/gpushmd/gpu_monitor.hpp"
#include "base/files/file.hpp"

namespace gpushm::agent {

namespace {

constexpr std::chrono::seconds reading_interval{1};
constexpr unsigned search_interval = 5;  // readings
constexpr std::size_t version_limit_bytes = 4'096;

/// Identifies a file and its content; empty: it does not exist.
std::string identity_of(const std::string& path) {
  struct stat status {};
  if (path.empty() || ::stat(path.c_str(), &status) != 0) {
    return {};
  }
  return S_ISDIR(status.st_mode) ? fmt::format("{}:{}", status.st_dev, status.st_ino)
                                 : fmt::format("{}:{}:{}:{}.{}",
                                               status.st_dev,
                                               status.st_ino,
                                               status.st_size,
                                               status.st_mtim.tv_sec,
                                               status.st_mtim.tv_nsec);
}

}  // namespace

std::string release_file(const settings& chosen) {
  return fmt::format("{}/{}", chosen.state_directory(), release_file_name);
}

node_changes::node_changes(const settings& start)
    : start_(start),
      watches_(start.plugin_watches_gpus() || start.broker),
      released_(watches_ && !identity_of(release_file(start)).empty()) {
  if (watches_ && !released_) {
    driver_ = last_ = read_driver();
  }
}

std::string node_changes::read_driver() {
  std::string places = fmt::format(
      "{}\n{}",
      identity_of(start_.driver_root),
      base::read_small_file(start_.proc_root + "/driver/nvidia/version", version_limit_bytes)
          .value_or(std::string()));
  std::string library = identity_of(library_);
  // The search reads many directories: without a driver, not each time.
  if (library.empty() && (places != places_ || ++readings_without_search_ >= search_interval)) {
    readings_without_search_ = 0;
    library_ = discover::find_nvml(driver_places(start_));
    library = identity_of(library_);
  }
  places_ = std::move(places);
  return fmt::format("{}\n{}\n{}", places_, library_, library);
}

std::string node_changes::next(std::chrono::steady_clock::time_point now) {
  if (!watches_ || now < next_reading_) {
    return {};
  }
  next_reading_ = now + reading_interval;
  const std::string file = release_file(start_);
  if (identity_of(file).empty() == released_) {
    return released_ ? fmt::format("the GPUs are used again: {} is gone", file)
                     : fmt::format("the GPUs are to be released: {} exists", file);
  }
  if (released_) {
    return {};
  }
  std::string reading = read_driver();
  const bool stable = reading == last_;
  last_ = std::move(reading);
  return stable && last_ != driver_ ? "the driver of this node has changed" : std::string();
}

}  // namespace gpushm::agent
