// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/server/messages.hpp"

#include <fmt/core.h>

#include <utility>

#include "gpushm/error.hpp"

namespace gpushm::device_plugin {

void write_devices(const std::vector<device_plugin::device>& devices,
                   v1beta1::ListAndWatchResponse& response) {
  response.Clear();
  response.mutable_devices()->Reserve(static_cast<int>(devices.size()));
  for (const device_plugin::device& each : devices) {
    v1beta1::Device& message = *response.add_devices();
    message.set_id(each.id);
    message.set_health(each.healthy ? "Healthy" : "Unhealthy");
    if (each.numa_node) {
      message.mutable_topology()->add_nodes()->set_id(*each.numa_node);
    }
  }
}

std::vector<std::vector<std::string>> read_containers(const v1beta1::AllocateRequest& request) {
  std::vector<std::vector<std::string>> containers;
  containers.reserve(static_cast<std::size_t>(request.container_requests_size()));
  for (const v1beta1::ContainerAllocateRequest& each : request.container_requests()) {
    containers.emplace_back(each.devices_ids().begin(), each.devices_ids().end());
  }
  return containers;
}

void write_allocations(std::vector<device_plugin::allocation> allocations,
                       v1beta1::AllocateResponse& response) {
  for (device_plugin::allocation& each : allocations) {
    v1beta1::ContainerAllocateResponse& message = *response.add_container_responses();
    message.mutable_envs()->insert(each.envs.begin(), each.envs.end());
    message.mutable_annotations()->insert(each.annotations.begin(), each.annotations.end());
    for (device_plugin::bind_mount& mount : each.mounts) {
      v1beta1::Mount& one = *message.add_mounts();
      one.set_container_path(std::move(mount.container_path));
      one.set_host_path(std::move(mount.host_path));
      one.set_read_only(mount.read_only);
    }
    for (device_plugin::device_node& node : each.nodes) {
      v1beta1::DeviceSpec& one = *message.add_devices();
      one.set_container_path(std::move(node.container_path));
      one.set_host_path(std::move(node.host_path));
      one.set_permissions(std::move(node.permissions));
    }
    for (std::string& name : each.cdi_devices) {
      message.add_cdi_devices()->set_name(std::move(name));
    }
  }
}

void prefer_for_each(const device_plugin::resource& resource,
                     const v1beta1::PreferredAllocationRequest& request,
                     v1beta1::PreferredAllocationResponse& response) {
  for (const v1beta1::ContainerPreferredAllocationRequest& each : request.container_requests()) {
    if (each.allocation_size() < 0) {
      throw error(errc::invalid_argument,
                  "prefer devices of",
                  resource.name(),
                  fmt::format("{} devices requested", each.allocation_size()),
                  "request 0 or more devices");
    }
    const std::vector<std::string> available(each.available_deviceids().begin(),
                                             each.available_deviceids().end());
    const std::vector<std::string> must(each.must_include_deviceids().begin(),
                                        each.must_include_deviceids().end());
    v1beta1::ContainerPreferredAllocationResponse& message = *response.add_container_responses();
    for (std::string& id :
         resource.prefer(available, must, static_cast<std::size_t>(each.allocation_size()))) {
      message.add_deviceids(std::move(id));
    }
  }
}

}  // namespace gpushm::device_plugin
