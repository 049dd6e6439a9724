// SPDX-License-Identifier: Apache-2.0
#pragma once

// Files that tests write beside gpus.conf for the fake NVML: events, lost GPUs, recovery actions.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "gpu/driver/nvml_abi.hpp"

namespace gpushm::fake {

/// Distinguishes a changed gpus.conf from an unchanged one.
struct config_stamp {
  std::string path;
  ino_t inode = 0;
  std::int64_t changed_ns = 0;
  bool operator==(const config_stamp&) const = default;
};
[[nodiscard]] config_stamp stamp_of_config();

/// Whether <root>/lost contains the UUID.
[[nodiscard]] bool is_lost(const std::string& uuid);
/// Blocks while the file <root>/hang exists, like a driver whose GPU has stopped responding.
void hang_if_requested();
/// The recovery action of the GPU in <root>/recovery; nullopt when that file does not exist.
[[nodiscard]] std::optional<unsigned int> recovery_action(const std::string& uuid);

struct gpu_event {
  std::string uuid;
  unsigned long long type = 0;
  unsigned long long xid = 0;
  // Of a MIG instance; of the whole GPU as NVML reports that.
  unsigned int gpu_instance = 0xffffffffU;
  unsigned int compute_instance = 0xffffffffU;
};

/// Lines appended to <root>/events since its construction.
/// Thread-safety: shared objects: safe.
class event_set {
 public:
  event_set();
  void watch(const std::string& uuid, unsigned long long types);
  /// The next event of a watched GPU; nullopt if there is none within `timeout_ms`.
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
