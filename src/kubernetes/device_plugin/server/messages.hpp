// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kubernetes/device_plugin/resources/resource.hpp"
#include "kubernetes/kubelet_api/deviceplugin_v1beta1.pb.h"

namespace gpushm::device_plugin {

// Converts between plugin types and the kubelet's messages. Pure functions.

void write_devices(const std::vector<device_plugin::device>& devices,
                   v1beta1::ListAndWatchResponse& response);

[[nodiscard]] std::vector<std::vector<std::string>> read_containers(
    const v1beta1::AllocateRequest& request);

void write_allocations(std::vector<device_plugin::allocation> allocations,
                       v1beta1::AllocateResponse& response);

/// Calls `resource.prefer` for each container of `request`. Throws what `prefer` throws, and
/// `error` (invalid_argument) for a negative size.
void prefer_for_each(const device_plugin::resource& resource,
                     const v1beta1::PreferredAllocationRequest& request,
                     v1beta1::PreferredAllocationResponse& response);

}  // namespace gpushm::device_plugin
