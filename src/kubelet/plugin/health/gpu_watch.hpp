// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "driver/nvml.hpp"
#include "kubelet/plugin/health/gpu_record.hpp"

namespace gpushm::plugin {

/// What NVML shows of the boards at one time.
struct boards_seen {
  struct one {
    std::string layout;  ///< MIG's state and instances, for comparison
    board_look look;
  };
  std::map<std::string, one> boards;  ///< by UUID
  std::string failure;                ///< why NVML said nothing at all; else empty
};

/// What happened to a board; without a UUID when NVML cannot say to which.
struct board_event {
  std::string uuid;
  bool memory_error = false;
  std::uint64_t xid = 0;
};

/// NVML's side of the health: looks and events. Distinct objects: safe. Shared objects: unsafe.
class board_watch {
 public:
  explicit board_watch(const driver::nvml_library& nvml) : nvml_(nvml) {}
  board_watch(const board_watch&) = delete;
  board_watch& operator=(const board_watch&) = delete;
  ~board_watch() { end_events(); }

  [[nodiscard]] boards_seen look() const;
  /// Why a board is not among those seen.
  [[nodiscard]] std::string why_absent(const std::string& uuid) const;
  /// Has events of these boards from now on, in place of those before; what the boards before
  /// reported until now is not lost. False: there can be none.
  bool begin_events(const std::vector<std::string>& uuids);
  enum class outcome { event, nothing, failed };
  /// Blocks for up to `patience`. `failed`: NVML cannot wait now, and returned at once.
  [[nodiscard]] outcome wait(std::chrono::milliseconds patience, board_event& event);

 private:
  void end_events() noexcept;
  /// Takes out of the set what is in it, for `wait`.
  void keep_events();
  [[nodiscard]] outcome wait_in_set(unsigned int patience_ms, board_event& event) const;
  /// By their handles: those that took part.
  [[nodiscard]] std::map<nvml::nvmlDevice_t, std::string> register_boards(
      nvml::nvmlEventSet_t at, const std::vector<std::string>& uuids) const;
  [[nodiscard]] std::string layout_of(nvml::nvmlDevice_t board) const;
  [[nodiscard]] board_look look_at(nvml::nvmlDevice_t board) const;
  [[nodiscard]] std::string uuid_of(nvml::nvmlDevice_t device) const;

  const driver::nvml_library& nvml_;
  nvml::nvmlEventSet_t events_ = nullptr;
  std::map<nvml::nvmlDevice_t, std::string> registered_;
  std::deque<board_event> kept_;  // of sets that ended
};

}  // namespace gpushm::plugin
