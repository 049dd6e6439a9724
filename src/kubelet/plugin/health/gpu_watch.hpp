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

/// The state of all GPUs that NVML lists.
struct poll_result {
  struct one {
    std::string layout;  ///< MIG mode and instances, for comparison
    gpu_status look;
  };
  std::map<std::string, one> gpus;  ///< by UUID
  std::string failure;              ///< why NVML failed as a whole; else empty
};

/// An event of a GPU; without a UUID when NVML cannot report the GPU.
struct gpu_event {
  std::string uuid;
  bool memory_error = false;
  std::uint64_t xid = 0;
};

/// Polls GPUs and receives events through NVML.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class gpu_watch {
 public:
  explicit gpu_watch(const driver::nvml_library& nvml) : nvml_(nvml) {}
  gpu_watch(const gpu_watch&) = delete;
  gpu_watch& operator=(const gpu_watch&) = delete;
  ~gpu_watch() { end_events(); }

  [[nodiscard]] poll_result look() const;
  /// Why NVML does not list a GPU.
  [[nodiscard]] std::string why_absent(const std::string& uuid) const;
  /// Receives events of these GPUs from now on instead of the previous ones; events that those
  /// reported until now are not lost. False: no GPU supports events.
  bool begin_events(const std::vector<std::string>& uuids);
  enum class outcome { event, nothing, failed };
  /// Blocks for up to `patience`. `failed`: NVML cannot wait now and returned immediately.
  [[nodiscard]] outcome wait(std::chrono::milliseconds patience, gpu_event& event);

 private:
  void end_events() noexcept;
  /// Moves the events in the set to `kept_`, for `wait`.
  void keep_events();
  [[nodiscard]] outcome wait_in_set(unsigned int patience_ms, gpu_event& event) const;
  /// Returns the GPUs that were registered, by handle.
  [[nodiscard]] std::map<nvml::nvmlDevice_t, std::string> register_gpus(
      nvml::nvmlEventSet_t at, const std::vector<std::string>& uuids) const;
  [[nodiscard]] std::string layout_of(nvml::nvmlDevice_t gpu) const;
  [[nodiscard]] gpu_status look_at(nvml::nvmlDevice_t gpu) const;
  [[nodiscard]] std::string uuid_of(nvml::nvmlDevice_t device) const;

  const driver::nvml_library& nvml_;
  nvml::nvmlEventSet_t events_ = nullptr;
  std::map<nvml::nvmlDevice_t, std::string> registered_;
  std::deque<gpu_event> kept_;  // from freed event sets
};

}  // namespace gpushm::plugin
