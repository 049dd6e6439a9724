// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kubelet/plugin/configuration/configuration.hpp"
#include "kubelet/plugin/plan/inventory.hpp"
#include "kubelet/plugin/resources/counted_resource.hpp"

namespace gpushm::plugin {

/// The units of each resource, in the order that they are first met.
using named_units = std::vector<std::pair<std::string, std::vector<unit>>>;

/// Those of `name`, which are made when there are none.
[[nodiscard]] std::vector<unit>& units_named(named_units& all, const std::string& name);

/// Whether a pattern is in a text, '*' standing for any characters; with `whole`, is all of it.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view text, bool whole);

/// What boards and instances are called. Says in `warnings` which of them are left out, and why;
/// nothing at all is offered where the strategy "single" does not fit the boards.
[[nodiscard]] named_units name_devices(const configuration& settings,
                                       const std::string& gpu_resource_name,
                                       const inventory& found,
                                       std::vector<std::string>& warnings);

/// Gives the devices that are to be replicated their replicas and names. A device belongs to the
/// first entry that selects it. Selected devices that are not there are said in `warnings`.
[[nodiscard]] named_units replicate(const time_slicing& slicing,
                                    named_units all,
                                    std::vector<std::string>& warnings);

/// "mig-1g.10gb.me" of "1g.10gb+me".
[[nodiscard]] std::string mig_resource_name(const std::string& profile);

}  // namespace gpushm::plugin
