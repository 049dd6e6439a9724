// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpushm/error.hpp"
#include "kubernetes/device_plugin/resources/resource.hpp"
#include "kubernetes/device_plugin/server/manager.hpp"
#include "tests/support/fake_kubelet/fake_kubelet.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {

/// A resource whose devices tests can change; allocations contain the requested ids.
class test_resource final : public gpushm::device_plugin::resource {
 public:
  test_resource(std::string name, std::size_t count, bool has_preferences = false)
      : name_(std::move(name)), has_preferences_(has_preferences) {
    for (std::size_t number = 0; number < count; ++number) {
      devices_.push_back({std::string("device-").append(std::to_string(number)), true, {}});
    }
  }

  [[nodiscard]] const std::string& name() const noexcept override { return name_; }
  [[nodiscard]] std::vector<gpushm::device_plugin::device> devices() const override {
    const std::lock_guard lock(mutex_);
    return devices_;
  }
  [[nodiscard]] std::vector<gpushm::device_plugin::allocation> allocate(
      std::span<const std::vector<std::string>> containers) const override {
    std::vector<gpushm::device_plugin::allocation> result;
    for (const auto& ids : containers) {
      auto& one = result.emplace_back();
      std::string list;
      for (const std::string& id : ids) {
        check(id);
        list.append(list.empty() ? "" : ",").append(id);
        one.cdi_devices.push_back(std::string("example.com/test=").append(id));
      }
      one.envs["TEST_DEVICES"] = list;
      one.annotations["example.com/test"] = list;
      one.mounts = {{"/in/container", "/on/host", true}};
      one.nodes = {{"/dev/test", "/dev/null", "rw"}};
    }
    return result;
  }
  /// Returns the last ones, which differ from a kubelet's default choice.
  [[nodiscard]] std::vector<std::string> prefer(std::span<const std::string> available,
                                                std::span<const std::string> /*must_include*/,
                                                std::size_t count) const override {
    if (available.size() < count) {
      throw gpushm::error(
          gpushm::errc::invalid_argument, "prefer devices of", name_, "too few", "");
    }
    return {available.end() - static_cast<std::ptrdiff_t>(count), available.end()};
  }
  [[nodiscard]] bool has_preferences() const noexcept override { return has_preferences_; }
  void on_change(std::function<void()> changed) override {
    const std::lock_guard lock(listener_mutex_);
    changed_ = std::move(changed);
  }

  void set_health(const std::string& id, bool healthy) {
    {
      const std::lock_guard lock(mutex_);
      for (auto& each : devices_) {
        each.healthy = each.id == id ? healthy : each.healthy;
      }
    }
    notify();
  }
  void set_numa_node(const std::string& id, std::int64_t node) {
    {
      const std::lock_guard lock(mutex_);
      for (auto& each : devices_) {
        each.numa_node = each.id == id ? std::optional(node) : each.numa_node;
      }
    }
    notify();
  }
  void notify() {
    const std::lock_guard lock(listener_mutex_);
    if (changed_) {
      changed_();
    }
  }
  [[nodiscard]] bool has_listener() const {
    const std::lock_guard lock(listener_mutex_);
    return static_cast<bool>(changed_);
  }

 private:
  void check(const std::string& id) const {
    const std::lock_guard lock(mutex_);
    const auto device = std::find_if(
        devices_.begin(), devices_.end(), [&](const auto& each) { return each.id == id; });
    if (device == devices_.end()) {
      throw gpushm::error(gpushm::errc::invalid_argument,
                          "allocate",
                          name_,
                          std::string("there is no device ").append(id),
                          "request a device that ListAndWatch listed");
    }
  }

  std::string name_;
  bool has_preferences_;
  mutable std::mutex mutex_;
  std::vector<gpushm::device_plugin::device> devices_;
  mutable std::mutex listener_mutex_;
  std::function<void()> changed_;
};

inline constexpr const char* gpu = "nvidia.com/gpu";

/// A directory for plugins, and a kubelet that tests start.
class server_test_base {
 protected:
  using seconds = std::chrono::seconds;
  using milliseconds = std::chrono::milliseconds;

  explicit server_test_base(gpushm_testing::fake_kubelet_options options = {})
      : kubelet_([&] {
          options.directory = directory();
          return std::move(options);
        }()) {}

  [[nodiscard]] std::string directory() const { return scratch_ / "device-plugins"; }
  /// Options with a short retry interval.
  [[nodiscard]] gpushm::device_plugin::manager_options options() const {
    gpushm::device_plugin::manager_options result;
    result.directory = directory();
    result.max_retry = milliseconds(400);
    return result;
  }
  [[nodiscard]] static gpushm::device_plugin::resource_status status_of(
      const gpushm::device_plugin::manager& manager, const std::string& name) {
    for (auto& each : manager.status()) {
      if (each.name == name) {
        return each;
      }
    }
    return {};
  }
  template <typename Predicate>
  [[nodiscard]] static bool eventually_status(const gpushm::device_plugin::manager& manager,
                                              const std::string& name,
                                              Predicate&& predicate,
                                              milliseconds timeout = seconds(20)) {
    return gpushm_testing::eventually([&] { return predicate(status_of(manager, name)); }, timeout);
  }
  [[nodiscard]] std::vector<std::string> sockets() const {
    std::vector<std::string> names;
    std::error_code failed;
    for (const auto& each : std::filesystem::directory_iterator(directory(), failed)) {
      names.push_back(each.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  gpushm_testing::temp_dir scratch_;
  gpushm_testing::fake_kubelet kubelet_;
};

}  // namespace gpushm_tests
