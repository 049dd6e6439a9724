// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/resources/counted_resource.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/text/quoted.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::device_plugin {

namespace {

constexpr std::string_view separator = "::";
constexpr std::string_view stale_list =
    "the kubelet's list of devices is stale; the plugin sends the current one";

}  // namespace

counted_resource::counted_resource(std::string name,
                                   std::vector<unit> units,
                                   bool one_replica_per_request)
    : name_(std::move(name)),
      units_(std::move(units)),
      one_replica_per_request_(one_replica_per_request),
      health_(units_.size()) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const std::size_t count = std::max(units_[i].replicas, 1U);
    first_.push_back(device_count_);
    unit_of_.insert(unit_of_.end(), count, i);
    device_count_ += count;
    by_id_.emplace(units_[i].id, i);
  }
}

std::string counted_resource::id_of(std::size_t ordinal) const {
  const std::size_t index = unit_of_[ordinal];
  const unit& unit = units_[index];
  std::string id = unit.id;
  if (unit.replicas > 0) {
    id.append(separator).append(std::to_string(ordinal - first_[index]));
  }
  return id;
}

std::optional<std::size_t> counted_resource::find(std::string_view id) const {
  const std::size_t mark = id.rfind(separator);
  const auto unit = by_id_.find(id.substr(0, mark));
  if (unit == by_id_.end()) {
    return std::nullopt;
  }
  const unsigned int replicas = units_[unit->second].replicas;
  if (mark == std::string_view::npos) {
    return replicas == 0 ? std::optional(first_[unit->second]) : std::nullopt;
  }
  const std::string_view digits = id.substr(mark + separator.size());
  const auto number = base::number<unsigned int>(digits);
  // Each device has one id: "::07" is not an alias of "::7".
  if (!number || *number >= replicas || (digits.size() > 1 && digits.front() == '0')) {
    return std::nullopt;
  }
  return first_[unit->second] + *number;
}

void counted_resource::refuse(std::string_view operation,
                              const std::string& cause,
                              std::string_view next_step) const {
  throw error(errc::invalid_argument, operation, name_, cause, next_step);
}

// The caller holds health_mutex_.
std::size_t counted_resource::usable(std::string_view id, std::string_view operation) const {
  const auto place = find(id);
  if (!place) {
    refuse(operation, "there is no device " + base::in_quotes(id), stale_list);
  }
  const std::size_t index = unit_of_[*place];
  if (!health_[index].healthy()) {
    refuse(operation,
           fmt::format("device {} is unhealthy: {}", base::in_quotes(id), health_[index].reason()),
           stale_list);
  }
  return *place;
}

std::vector<device> counted_resource::devices() const {
  std::vector<device> devices;
  devices.reserve(device_count_);
  const std::lock_guard lock(health_mutex_);
  for (std::size_t ordinal = 0; ordinal < device_count_; ++ordinal) {
    const std::size_t index = unit_of_[ordinal];
    devices.push_back({id_of(ordinal), health_[index].healthy(), units_[index].numa_node});
  }
  return devices;
}

std::vector<allocation> counted_resource::allocate(
    std::span<const std::vector<std::string>> containers) const {
  constexpr std::string_view operation = "allocate";
  std::vector<std::vector<const unit*>> selected;
  selected.reserve(containers.size());
  std::vector<bool> seen(device_count_);
  {
    const std::lock_guard lock(health_mutex_);
    for (const std::vector<std::string>& ids : containers) {
      if (ids.empty()) {
        refuse(operation, "no device is named", "request at least one");
      }
      auto& units = selected.emplace_back();
      for (const std::string& id : ids) {
        const std::size_t ordinal = usable(id, operation);
        if (seen[ordinal]) {
          refuse(operation,
                 fmt::format("device {} is named twice", base::in_quotes(id)),
                 "name each device once");
        }
        seen[ordinal] = true;
        const unit* const unit = &units_[unit_of_[ordinal]];
        if (one_replica_per_request_ && unit->replicas > 0 && ids.size() > 1) {
          refuse(operation,
                 fmt::format("a container requests {} devices, but failRequestsGreaterThanOne "
                             "allows one: more replicas are not a larger share of a GPU",
                             ids.size()),
                 "request one, or set sharing.timeSlicing.failRequestsGreaterThanOne: false");
        }
        if (std::find(units.begin(), units.end(), unit) == units.end()) {
          units.push_back(unit);
        }
      }
    }
  }
  std::vector<allocation> responses;
  responses.reserve(selected.size());
  for (const auto& units : selected) {
    responses.push_back(response_for(units));
  }
  return responses;
}

std::vector<std::string> counted_resource::prefer(std::span<const std::string> available,
                                                  std::span<const std::string> must_include,
                                                  std::size_t count) const {
  constexpr std::string_view operation = "choose devices";
  enum class mark : char { absent, free, taken };
  std::vector<mark> marks(device_count_, mark::absent);
  std::vector<std::size_t> taken;
  std::size_t free_count = 0;
  {
    const std::lock_guard lock(health_mutex_);
    for (const std::string& id : available) {
      const auto place = find(id);
      if (place && health_[unit_of_[*place]].healthy() && marks[*place] == mark::absent) {
        marks[*place] = mark::free;
        ++free_count;
      }
    }
    for (const std::string& id : must_include) {
      const std::size_t ordinal = usable(id, operation);
      if (marks[ordinal] == mark::absent) {
        refuse(operation,
               fmt::format("device {} must be included but is not available", base::in_quotes(id)),
               "name it among the available ones");
      }
      if (marks[ordinal] == mark::free) {
        marks[ordinal] = mark::taken;
        taken.push_back(ordinal);
        --free_count;
      }
    }
  }
  if (taken.size() > count || free_count < count - taken.size()) {
    refuse(
        operation,
        fmt::format(
            "{} devices requested, {} of them required, and only {} other healthy ones available",
            count,
            taken.size(),
            free_count),
        {});
  }
  std::vector<std::size_t> candidates;
  candidates.reserve(free_count);
  for (std::size_t ordinal = 0; ordinal < device_count_; ++ordinal) {
    if (marks[ordinal] == mark::free) {
      candidates.push_back(ordinal);
    }
  }
  std::sort(taken.begin(), taken.end());
  std::vector<std::size_t> chosen = taken;
  if (taken.size() < count) {
    const auto more = choose(candidates, taken, count - taken.size());
    chosen.insert(chosen.end(), more.begin(), more.end());
  }
  std::sort(chosen.begin(), chosen.end());
  std::vector<std::string> ids;
  ids.reserve(chosen.size());
  for (const std::size_t ordinal : chosen) {
    ids.push_back(id_of(ordinal));
  }
  return ids;
}

void counted_resource::on_change(std::function<void()> changed) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(changed);
}

std::size_t counted_resource::set_health(std::string_view uuid,
                                         bool healthy,
                                         const std::string& reason) {
  std::size_t changed = 0;
  {
    const std::lock_guard lock(health_mutex_);
    for (std::size_t i = 0; i < units_.size(); ++i) {
      const bool whole = units_[i].gpu == uuid;
      if (!whole && !(units_[i].is_instance && units_[i].id == uuid)) {
        continue;
      }
      const bool before = health_[i].healthy();
      (whole ? health_[i].of_gpu : health_[i].of_instance) =
          healthy ? std::nullopt : std::optional(reason);
      if (health_[i].healthy() != before) {
        changed += std::max(units_[i].replicas, 1U);
      }
    }
  }
  if (changed > 0) {
    const std::lock_guard lock(listener_mutex_);
    if (listener_) {
      listener_();
    }
  }
  return changed;
}

}  // namespace gpushm::device_plugin
