// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tests write beside gpus.conf for the fake NVML: events, lost boards, recovery actions.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "driver/nvml_abi.hpp"

namespace gpushm::fake {

/// By what a changed gpus.conf is told from an unchanged one.
struct config_stamp {
  std::string path;
  ino_t inode = 0;
  std::int64_t changed_ns = 0;
  bool operator==(const config_stamp&) const = default;
};
[[nodiscard]] config_stamp stamp_of_config();

/// Whether <root>/lost names it.
[[nodiscard]] bool is_lost(const std::string& uuid);
/// Does not return while there is a file <root>/hang: as a driver whose GPU has stopped to answer.
void hang_if_told();
/// What <root>/recovery says of it; nothing when there is no such file.
[[nodiscard]] std::optional<unsigned int> recovery_action(const std::string& uuid);

struct gpu_event {
  std::string uuid;
  unsigned long long type = 0;
  unsigned long long xid = 0;
};

/// Lines appended to <root>/events since it was made. Shared objects: safe.
class event_set {
 public:
  event_set();
  void watch(const std::string& uuid, unsigned long long types);
  /// The next event of a watched board; nothing when there was none for so long.
  [[nodiscard]] std::optional<gpu_event> wait(unsigned int timeout_ms);

 private:
  [[nodiscard]] std::optional<gpu_event> next();

  std::mutex mutex_;
  std::map<std::string, unsigned long long> watched_;
  off_t read_ = 0;
};

[[nodiscard]] inline event_set& events_of(nvml::nvmlEventSet_t set) {
  return *reinterpret_cast<event_set*>(set);
}

}  // namespace gpushm::fake
