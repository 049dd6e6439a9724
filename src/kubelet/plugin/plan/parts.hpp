// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kubelet/plugin/plan/naming.hpp"
#include "kubelet/plugin/plan/plan.hpp"
#include "kubelet/plugin/resources/gpu_resource.hpp"

namespace gpushm::plugin {

/// Describes the devices that have names as CDI has it, where the rules want that: fills in
/// `out.gpus`, the CDI names and nodes of units, and the rules' common nodes. Devices that cannot
/// be described are taken out of `named` where they would be asked for by CDI, and `out.warnings`
/// says why.
void describe_devices(const configuration& settings,
                      const plan_options& options,
                      const inventory& found,
                      gpu_rules& rules,
                      named_units& named,
                      planned& out);

/// What devices of a domain are called: its name, or where their ids would become too long, its
/// beginning with a checksum of all of it.
[[nodiscard]] std::string short_id(std::string_view domain, unsigned int replicas);

}  // namespace gpushm::plugin
