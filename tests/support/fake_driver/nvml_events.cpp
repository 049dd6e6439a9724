// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_driver/nvml_events.hpp"

#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace gpushm::fake {

namespace {

std::string path_of(const std::string& name) {
  const char* const root = std::getenv("GPUSHM_FAKE_GPU_ROOT");
  return root == nullptr ? std::string() : std::string(root) + "/" + name;
}

}  // namespace

config_stamp stamp_of_config() {
  config_stamp stamp;
  stamp.path = path_of("gpus.conf");
  struct stat about {};
  if (::stat(stamp.path.c_str(), &about) == 0) {
    stamp.inode = about.st_ino;
    stamp.changed_ns = about.st_ctim.tv_sec * 1'000'000'000LL + about.st_ctim.tv_nsec;
  }
  return stamp;
}

bool is_lost(const std::string& uuid) {
  std::ifstream file(path_of("lost"));
  for (std::string line; std::getline(file, line);) {
    if (line == uuid) {
      return true;
    }
  }
  return false;
}

void hang_if_requested() {
  struct stat about {};
  while (::stat(path_of("hang").c_str(), &about) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::optional<unsigned int> recovery_action(const std::string& uuid) {
  std::ifstream file(path_of("recovery"));
  if (!file) {
    return std::nullopt;
  }
  std::string name;
  unsigned int action = 0;
  while (file >> name >> action) {
    if (name == uuid) {
      return action;
    }
  }
  return 0;
}

event_set::event_set() {
  struct stat about {};
  if (::stat(path_of("events").c_str(), &about) == 0) {
    read_ = about.st_size;
  }
}

void event_set::watch(const std::string& uuid, unsigned long long types) {
  const std::lock_guard lock(mutex_);
  watched_[uuid] |= types;
}

std::optional<gpu_event> event_set::next() {
  const std::lock_guard lock(mutex_);
  std::ifstream file(path_of("events"));
  file.seekg(read_);
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) {
      break;  // without a line feed: not completely written yet
    }
    read_ += static_cast<off_t>(line.size() + 1);
    std::istringstream words(line);
    gpu_event event;
    std::string event_kind;
    words >> event.uuid >> event_kind;
    if (unsigned int gpu = 0, compute = 0; words >> gpu >> compute) {
      event.gpu_instance = gpu;
      event.compute_instance = compute;
    }
    event.type = event_kind == "ecc" ? nvml::event_double_bit_ecc : nvml::event_xid_critical;
    event.xid = event_kind == "ecc" ? 0 : std::strtoull(event_kind.c_str(), nullptr, 10);
    const auto found = watched_.find(event.uuid);
    if (found != watched_.end() && (found->second & event.type) != 0) {
      return event;
    }
  }
  return std::nullopt;
}

std::optional<gpu_event> event_set::wait(unsigned int timeout_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    if (auto event = next()) {
      return event;
    }
    if (std::chrono::steady_clock::now() >= end) {
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace gpushm::fake
