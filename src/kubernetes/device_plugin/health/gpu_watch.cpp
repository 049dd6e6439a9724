// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/health/gpu_watch.hpp"

#include <array>
#include <utility>

#include "gpu/driver/device_text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::device_plugin {

namespace {

/// Bounds memory; a GPU that reports more events between two polls is unhealthy anyway.
constexpr std::size_t max_saved_events = 1'024;
constexpr unsigned long long subscribed_events =
    nvml::event_xid_critical | nvml::event_double_bit_ecc;

std::string text_of(nvml::nvmlReturn_t result, std::string_view call) {
  try {
    driver::nvml_library::check(result, {}, call);
  } catch (const error& failure) {
    return failure.cause();
  }
  return {};
}

}  // namespace

std::string gpu_watch::uuid_of(nvml::nvmlDevice_t device) const {
  std::array<char, 128> text{};
  const auto result =
      nvml_->nvmlDeviceGetUUID(device, text.data(), static_cast<unsigned int>(text.size()) - 1);
  return result == nvml::NVML_SUCCESS ? text.data() : std::string();
}

std::string gpu_watch::layout_of(nvml::nvmlDevice_t gpu) const {
  unsigned int current = 0;
  unsigned int pending = 0;
  if (nvml_->nvmlDeviceGetMigMode(gpu, &current, &pending) != nvml::NVML_SUCCESS || current == 0) {
    return "whole";
  }
  std::string layout = "partitioned";
  unsigned int max = 0;
  if (nvml_->nvmlDeviceGetMaxMigDeviceCount(gpu, &max) != nvml::NVML_SUCCESS) {
    return layout;
  }
  for (unsigned int index = 0; index < max; ++index) {
    nvml::nvmlDevice_t instance = nullptr;
    if (nvml_->nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, &instance) == nvml::NVML_SUCCESS) {
      layout.append(" ").append(std::to_string(index)).append("=").append(uuid_of(instance));
    }
  }
  return layout;
}

std::string gpu_watch::instance_of(const nvml::nvmlEventData_t& data) const {
  constexpr unsigned int no_instance = 0xffffffffU;
  unsigned int max = 0;
  if (data.gpuInstanceId == no_instance || data.computeInstanceId == no_instance ||
      nvml_->nvmlDeviceGetMaxMigDeviceCount(data.device, &max) != nvml::NVML_SUCCESS) {
    return {};
  }
  for (unsigned int index = 0; index < max; ++index) {
    nvml::nvmlDevice_t instance = nullptr;
    unsigned int gpu_instance = no_instance;
    unsigned int compute_instance = no_instance;
    if (nvml_->nvmlDeviceGetMigDeviceHandleByIndex(data.device, index, &instance) ==
            nvml::NVML_SUCCESS &&
        nvml_->nvmlDeviceGetGpuInstanceId(instance, &gpu_instance) == nvml::NVML_SUCCESS &&
        nvml_->nvmlDeviceGetComputeInstanceId(instance, &compute_instance) == nvml::NVML_SUCCESS &&
        gpu_instance == data.gpuInstanceId && compute_instance == data.computeInstanceId) {
      return uuid_of(instance);
    }
  }
  return {};
}

std::string gpu_watch::pci_address_of(nvml::nvmlDevice_t gpu) const {
  nvml::nvmlPciInfo_t pci{};
  if (nvml_->nvmlDeviceGetPciInfo_v3(gpu, &pci) != nvml::NVML_SUCCESS) {
    return {};
  }
  return driver::normal_pci_address(pci.busId).value_or(std::string());
}

gpu_status gpu_watch::query_status(nvml::nvmlDevice_t gpu) const {
  gpu_status seen;
  nvml::nvmlMemory_t memory{};
  // A query for which the library needs the GPU.
  const auto result = nvml_->nvmlDeviceGetMemoryInfo(gpu, &memory);
  if (result != nvml::NVML_SUCCESS && result != nvml::NVML_ERROR_NOT_SUPPORTED) {
    seen.responds = false;
    seen.reason = text_of(result, "nvmlDeviceGetMemoryInfo");
    seen.lost = result == nvml::NVML_ERROR_GPU_IS_LOST;
    seen.awaits_reset = result == nvml::NVML_ERROR_RESET_REQUIRED;
    return seen;
  }
  nvml::nvmlFieldValue_t action{};
  action.fieldId = nvml::field_gpu_recovery_action;
  if (nvml_->nvmlDeviceGetFieldValues(gpu, 1, &action) == nvml::NVML_SUCCESS &&
      action.nvmlReturn == nvml::NVML_SUCCESS) {
    seen.action = action.value.uiVal;
  }
  return seen;
}

poll_result gpu_watch::poll() const {
  poll_result seen;
  unsigned int count = 0;
  const auto counted = nvml_->nvmlDeviceGetCount_v2(&count);
  if (counted != nvml::NVML_SUCCESS) {
    seen.failure = text_of(counted, "nvmlDeviceGetCount");
    return seen;
  }
  for (unsigned int index = 0; index < count; ++index) {
    nvml::nvmlDevice_t gpu = nullptr;
    if (nvml_->nvmlDeviceGetHandleByIndex_v2(index, &gpu) != nvml::NVML_SUCCESS) {
      continue;
    }
    const std::string uuid = uuid_of(gpu);
    if (!uuid.empty()) {
      seen.gpus[uuid] = {layout_of(gpu), pci_address_of(gpu), query_status(gpu)};
    }
  }
  return seen;
}

gpu_status gpu_watch::status_of_absent(const std::string& uuid) const {
  nvml::nvmlDevice_t gpu = nullptr;
  const auto result = nvml_->nvmlDeviceGetHandleByUUID(uuid.c_str(), &gpu);
  gpu_status seen;
  seen.responds = false;
  seen.reason = result == nvml::NVML_SUCCESS ? "NVML does not list it"
                                             : text_of(result, "nvmlDeviceGetHandleByUUID");
  seen.lost = result == nvml::NVML_ERROR_GPU_IS_LOST;
  seen.awaits_reset =
      result == nvml::NVML_ERROR_NOT_FOUND || result == nvml::NVML_ERROR_RESET_REQUIRED;
  return seen;
}

void gpu_watch::unsubscribe() noexcept {
  if (events_ != nullptr) {
    nvml_->nvmlEventSetFree(events_);
    events_ = nullptr;
  }
  registered_.clear();
}

bool gpu_watch::subscribe(const std::vector<std::string>& uuids) {
  nvml::nvmlEventSet_t fresh = nullptr;
  std::map<nvml::nvmlDevice_t, std::string> registered;
  if (!uuids.empty() && nvml_->nvmlEventSetCreate(&fresh) == nvml::NVML_SUCCESS) {
    registered = register_gpus(fresh, uuids);
    if (registered.empty()) {
      nvml_->nvmlEventSetFree(fresh);
    }
  }
  // The new set receives events from here on, and the old one has the earlier ones; an event in
  // both is reported twice, which has no effect.
  save_events();
  unsubscribe();
  if (!registered.empty()) {
    events_ = fresh;
    registered_ = std::move(registered);
  }
  return events_ != nullptr;
}

std::map<nvml::nvmlDevice_t, std::string> gpu_watch::register_gpus(
    nvml::nvmlEventSet_t events, const std::vector<std::string>& uuids) const {
  std::map<nvml::nvmlDevice_t, std::string> registered;
  for (const std::string& uuid : uuids) {
    nvml::nvmlDevice_t gpu = nullptr;
    unsigned long long supported = 0;
    if (nvml_->nvmlDeviceGetHandleByUUID(uuid.c_str(), &gpu) == nvml::NVML_SUCCESS &&
        nvml_->nvmlDeviceGetSupportedEventTypes(gpu, &supported) == nvml::NVML_SUCCESS &&
        (supported & subscribed_events) != 0 &&
        nvml_->nvmlDeviceRegisterEvents(gpu, supported & subscribed_events, events) ==
            nvml::NVML_SUCCESS) {
      registered[gpu] = uuid;
    }
  }
  return registered;
}

void gpu_watch::save_events() {
  gpu_event event;
  while (events_ != nullptr && saved_events_.size() < max_saved_events &&
         wait_in_event_set(0, event) == outcome::event) {
    saved_events_.push_back(std::exchange(event, {}));
  }
}

gpu_watch::outcome gpu_watch::wait(std::chrono::milliseconds timeout, gpu_event& event) {
  if (!saved_events_.empty()) {
    event = std::move(saved_events_.front());
    saved_events_.pop_front();
    return outcome::event;
  }
  return wait_in_event_set(static_cast<unsigned int>(timeout.count()), event);
}

gpu_watch::outcome gpu_watch::wait_in_event_set(unsigned int timeout_ms, gpu_event& event) const {
  if (events_ == nullptr) {
    return outcome::failed;
  }
  nvml::nvmlEventData_t data{};
  const auto result = nvml_->nvmlEventSetWait_v2(events_, &data, timeout_ms);
  if (result == nvml::NVML_ERROR_TIMEOUT) {
    return outcome::nothing;
  }
  if (result != nvml::NVML_SUCCESS) {
    return outcome::failed;
  }
  // A lost GPU does not even report its UUID.
  const auto known = registered_.find(data.device);
  event.uuid = known != registered_.end() ? known->second : uuid_of(data.device);
  event.instance = instance_of(data);
  event.memory_error = (data.eventType & nvml::event_double_bit_ecc) != 0;
  event.xid = data.eventData;
  return outcome::event;
}

}  // namespace gpushm::device_plugin
