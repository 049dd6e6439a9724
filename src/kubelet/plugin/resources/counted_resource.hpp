// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kubelet/plugin/resources/resource.hpp"

namespace gpushm::plugin {

/// What one or more devices of a resource stand for: a GPU, a MIG instance, a domain.
struct unit {
  std::string id;               ///< what the ids of its devices are or begin with
  std::string index;            ///< "0", "0:1"; empty for a domain
  std::string board;            ///< UUID of the board it is or lies on; empty for a domain
  std::size_t board_place = 0;  ///< of the board among the inventory's
  bool is_instance = false;
  std::optional<std::int64_t> numa_node;
  /// 0: one device, with `id` itself; else so many, "<id>::0" and so on.
  unsigned int replicas = 0;
  std::string cdi_name = {};            ///< empty: no CDI document has it
  std::vector<device_node> nodes = {};  ///< its own, for those who want no CDI
};

/// The ids, the health and the choice of devices, which all resources have in common.
///
/// Shared objects: safe.
class counted_resource : public resource {
 public:
  /// Ids of units are unique and at most so long that those of devices have 63 characters.
  counted_resource(std::string name, std::vector<unit> units, bool one_replica_a_request);

  [[nodiscard]] const std::string& name() const noexcept override { return name_; }
  [[nodiscard]] std::vector<device> devices() const override;
  [[nodiscard]] std::vector<allocation> allocate(
      std::span<const std::vector<std::string>> containers) const override;
  [[nodiscard]] std::vector<std::string> prefer(std::span<const std::string> available,
                                                std::span<const std::string> must_include,
                                                std::size_t count) const override;
  void on_change(std::function<void()> changed) override;

  /// How many devices changed. An empty `reason`: healthy.
  std::size_t set_health(std::string_view board, bool healthy, const std::string& reason);
  [[nodiscard]] const std::vector<unit>& units() const noexcept { return units_; }
  [[nodiscard]] std::size_t device_count() const noexcept { return device_count_; }

 protected:
  /// What a container gets that was given devices of these units, each named once.
  [[nodiscard]] virtual allocation answer(const std::vector<const unit*>& given) const = 0;
  /// Which `count` of `candidates` (ordinals of devices, ascending) to take, besides `taken`, which
  /// are not among them. There are enough.
  [[nodiscard]] virtual std::vector<std::size_t> choose(const std::vector<std::size_t>& candidates,
                                                        const std::vector<std::size_t>& taken,
                                                        std::size_t count) const = 0;

  /// By ordinal of the device.
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
  const bool one_replica_a_request_;
  std::vector<std::size_t> first_;    ///< ordinal of the first device of each unit
  std::vector<std::size_t> unit_of_;  ///< by ordinal
  std::size_t device_count_ = 0;
  std::unordered_map<std::string_view, std::size_t> by_id_;  ///< of units

  mutable std::mutex health_mutex_;
  std::vector<char> healthy_;         ///< by unit
  std::vector<std::string> reasons_;  ///< by unit
  std::mutex listener_mutex_;         ///< held while the listener is called
  std::function<void()> listener_;
};

}  // namespace gpushm::plugin
