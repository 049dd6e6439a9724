// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kubernetes/device_plugin/plan/naming.hpp"
#include "kubernetes/device_plugin/plan/plan.hpp"
#include "kubernetes/device_plugin/resources/gpu_resource.hpp"

namespace gpushm::device_plugin {

/// Describes the named devices for CDI, if `rules` use it: fills in `out.gpus`, the CDI names and
/// nodes of units, and the rules' common nodes. With CDI, removes devices that cannot be described
/// from `named` and adds the reason to `out.warnings`.
void describe_devices(const configuration& settings,
                      const plan_options& options,
                      const inventory& inventory,
                      gpu_rules& rules,
                      named_units& named,
                      planned& out);

/// Adds the devices that `gdsEnabled`, `mofedEnabled` and `gdrcopyEnabled` request to the document
/// of the GPUs, for each of them; without such devices, a warning. Does nothing without CDI.
void add_special_devices(const configuration& settings, const plan_options& options, planned& out);

/// The directory above /dev, without the last '/': "" for the root.
[[nodiscard]] std::string dev_root_of(const discover::generate_options& places);

/// The id prefix of a domain's devices: its name or, if their ids would be too long, its beginning
/// followed by a checksum of the full name.
[[nodiscard]] std::string short_id(std::string_view domain, unsigned int replicas);

}  // namespace gpushm::device_plugin
