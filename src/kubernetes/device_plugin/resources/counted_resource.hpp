// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kubernetes/device_plugin/resources/resource.hpp"

namespace gpushm::device_plugin {

/// The object that one or more devices of a resource represent: a GPU, a MIG instance, a domain.
struct unit {
  std::string id;                ///< the device id, or the prefix of device ids
  std::string index;             ///< "0", "0:1"; empty for a domain
  std::string gpu;               ///< UUID of the GPU, or of an instance's GPU; "domain/<name>"
  std::size_t gpu_position = 0;  ///< index in `inventory::gpus`
  bool is_instance = false;
  std::optional<std::int64_t> numa_node;
  /// 0: one device, with the id `id`; else this many, "<id>::0" and so on.
  unsigned int replicas = 0;
  std::string cdi_name = {};            ///< empty: not in a CDI document
  std::vector<device_node> nodes = {};  ///< of this unit only, for use without CDI
};

/// Device ids, health and selection, common to all resources.
///
/// Thread-safety: shared objects: safe.
class counted_resource : public resource {
 public:
  /// Precondition: ids of units are unique, and ids of devices have at most 63 characters.
  counted_resource(std::string name, std::vector<unit> units, bool one_replica_per_request);

  [[nodiscard]] const std::string& name() const noexcept override { return name_; }
  [[nodiscard]] std::vector<device> devices() const override;
  [[nodiscard]] std::vector<allocation> allocate(
      std::span<const std::vector<std::string>> containers) const override;
  [[nodiscard]] std::vector<std::string> prefer(std::span<const std::string> available,
                                                std::span<const std::string> must_include,
                                                std::size_t count) const override;
  void on_change(std::function<void()> changed) override;

  /// `uuid`: as `unit::gpu`, or `unit::id` for one MIG instance; a device is healthy if both are.
  /// Returns how many devices changed.
  std::size_t set_health(std::string_view uuid, bool healthy, const std::string& reason);
  [[nodiscard]] const std::vector<unit>& units() const noexcept { return units_; }
  [[nodiscard]] std::size_t device_count() const noexcept { return device_count_; }

 protected:
  /// The response for a container with devices of these units, each listed once.
  [[nodiscard]] virtual allocation response_for(const std::vector<const unit*>& selected) const = 0;
  /// Returns the `count` of `candidates` (ordinals of devices, ascending) to use in addition to
  /// `taken`, which `candidates` do not contain. Precondition: there are enough candidates.
  [[nodiscard]] virtual std::vector<std::size_t> choose(const std::vector<std::size_t>& candidates,
                                                        const std::vector<std::size_t>& taken,
                                                        std::size_t count) const = 0;

  /// `ordinal` identifies the device.
  [[nodiscard]] std::size_t unit_of(std::size_t ordinal) const { return unit_of_[ordinal]; }
  [[nodiscard]] std::string id_of(std::size_t ordinal) const;

 private:
  [[nodiscard]] std::optional<std::size_t> find(std::string_view id) const;
  [[nodiscard]] std::size_t usable(std::string_view id, std::string_view operation) const;
  [[noreturn]] void refuse(std::string_view operation,
                           const std::string& cause,
                           std::string_view next_step) const;

  const std::string name_;
  const std::vector<unit> units_;
  const bool one_replica_per_request_;
  std::vector<std::size_t> first_;    ///< ordinal of the first device of each unit
  std::vector<std::size_t> unit_of_;  ///< by ordinal
  std::size_t device_count_ = 0;
  std::unordered_map<std::string_view, std::size_t> by_id_;  ///< of units

  mutable std::mutex health_mutex_;
  struct unit_health {
    // Why it is unhealthy; empty: it is healthy.
    std::optional<std::string> of_gpu;
    std::optional<std::string> of_instance;
    [[nodiscard]] bool healthy() const { return !of_gpu && !of_instance; }
    [[nodiscard]] const std::string& reason() const { return of_gpu ? *of_gpu : *of_instance; }
  };
  std::vector<unit_health> health_;  ///< by unit
  std::mutex listener_mutex_;        ///< held while the listener is called
  std::function<void()> listener_;
};

}  // namespace gpushm::device_plugin
