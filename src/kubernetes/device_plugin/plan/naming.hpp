// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kubernetes/device_plugin/configuration/configuration.hpp"
#include "kubernetes/device_plugin/plan/inventory.hpp"
#include "kubernetes/device_plugin/resources/counted_resource.hpp"

namespace gpushm::device_plugin {

/// The units of each resource, in the order of first use.
using named_units = std::vector<std::pair<std::string, std::vector<unit>>>;

/// The entry of `name`, created when absent.
[[nodiscard]] std::vector<unit>& units_named(named_units& whole, const std::string& name);

/// Whether a pattern occurs in a text; '*' matches any characters. With `whole`, it must match the
/// entire text.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view text, bool whole);

/// Assigns resource names to GPUs and instances. Adds a warning, with the reason, for each that is
/// left out; returns nothing when the strategy "single" does not fit the GPUs.
[[nodiscard]] named_units name_devices(const configuration& settings,
                                       const std::string& gpu_resource_name,
                                       const inventory& inventory,
                                       std::vector<std::string>& warnings);

/// Sets replicas and names of the devices to be replicated. A device belongs to the first entry
/// that selects it. Adds a warning for each selected device that does not exist.
[[nodiscard]] named_units replicate(const time_slicing& slicing,
                                    named_units whole,
                                    std::vector<std::string>& warnings);

/// "mig-1g.10gb.me" for "1g.10gb+me".
[[nodiscard]] std::string mig_resource_name(const std::string& profile);

}  // namespace gpushm::device_plugin
