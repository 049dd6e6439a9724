// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpu/driver/nvml.hpp"
#include "kubernetes/device_plugin/health/gpu_record.hpp"

namespace gpushm::device_plugin {

/// The state of all GPUs that NVML lists.
struct poll_result {
  struct gpu_state {
    std::string layout;       ///< MIG mode and instances, for comparison
    std::string pci_address;  ///< empty: not known
    gpu_status status;
  };
  std::map<std::string, gpu_state> gpus;  ///< by UUID
  std::string failure;                    ///< why NVML itself failed; else empty
};

/// An event of a GPU; without a UUID when NVML cannot report the GPU.
struct gpu_event {
  std::string uuid;
  std::string instance;  ///< UUID of the MIG instance that the event concerns; empty: the whole GPU
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
  ~gpu_watch() { unsubscribe(); }

  [[nodiscard]] poll_result poll() const;
  /// The state of a GPU that NVML does not list.
  [[nodiscard]] gpu_status status_of_absent(const std::string& uuid) const;
  /// Subscribes to events of these GPUs instead of the previous ones; events that those have
  /// already reported are not lost. False: no GPU supports events.
  bool subscribe(const std::vector<std::string>& uuids);
  enum class outcome { event, nothing, failed };
  /// Blocks for up to `timeout`. `failed`: NVML cannot wait now and returned immediately.
  [[nodiscard]] outcome wait(std::chrono::milliseconds timeout, gpu_event& event);

 private:
  void unsubscribe() noexcept;
  /// Moves the events in the set to `saved_events_`, for `wait`.
  void save_events();
  [[nodiscard]] outcome wait_in_event_set(unsigned int timeout_ms, gpu_event& event) const;
  /// Returns the GPUs that were registered, by handle.
  [[nodiscard]] std::map<nvml::nvmlDevice_t, std::string> register_gpus(
      nvml::nvmlEventSet_t events, const std::vector<std::string>& uuids) const;
  [[nodiscard]] std::string layout_of(nvml::nvmlDevice_t gpu) const;
  [[nodiscard]] std::string pci_address_of(nvml::nvmlDevice_t gpu) const;
  [[nodiscard]] gpu_status query_status(nvml::nvmlDevice_t gpu) const;
  [[nodiscard]] std::string uuid_of(nvml::nvmlDevice_t device) const;
  /// The UUID of the MIG instance with the event's two ids; empty if it has none, or there is no
  /// such instance.
  [[nodiscard]] std::string instance_of(const nvml::nvmlEventData_t& data) const;

  const driver::nvml_library& nvml_;
  nvml::nvmlEventSet_t events_ = nullptr;
  std::map<nvml::nvmlDevice_t, std::string> registered_;
  std::deque<gpu_event> saved_events_;  // from freed event sets
};

}  // namespace gpushm::device_plugin
