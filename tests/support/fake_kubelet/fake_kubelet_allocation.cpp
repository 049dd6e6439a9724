// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tests/support/fake_kubelet/fake_kubelet.hpp"

namespace gpushm_testing {

namespace {

using gpushm::device_plugin::allocation;

allocation read(const v1beta1::ContainerAllocateResponse& response) {
  allocation created;
  created.envs.insert(response.envs().begin(), response.envs().end());
  created.annotations.insert(response.annotations().begin(), response.annotations().end());
  for (const auto& each : response.mounts()) {
    created.mounts.push_back({each.container_path(), each.host_path(), each.read_only()});
  }
  for (const auto& each : response.devices()) {
    created.nodes.push_back({each.container_path(), each.host_path(), each.permissions()});
  }
  for (const auto& each : response.cdi_devices()) {
    created.cdi_devices.push_back(each.name());
  }
  return created;
}

[[noreturn]] void not_admitted(const char* call, const grpc::Status& status) {
  throw admission_error(std::string(call).append(" failed: ").append(status.error_message()));
}

}  // namespace

pod_devices fake_kubelet::allocate(const std::string& pod,
                                   const std::string& resource,
                                   std::size_t count) {
  std::shared_ptr<plugin_client> client;
  std::vector<std::string> available;
  bool has_preferences = false;
  {
    const std::lock_guard lock(mutex_);
    known_resource& known = resources_[resource];
    client = known.client;
    has_preferences = known.view.has_preferences;
    available = known.accounts.available();
  }
  if (client == nullptr) {
    throw admission_error(std::string("no device plugin is connected for ").append(resource));
  }
  pod_devices created;
  if (has_preferences && available.size() >= count) {
    v1beta1::PreferredAllocationRequest request;
    auto& container_request = *request.add_container_requests();
    for (const std::string& id : available) {
      container_request.add_available_deviceids(id);
    }
    container_request.set_allocation_size(static_cast<std::int32_t>(count));
    v1beta1::PreferredAllocationResponse response;
    const grpc::Status status = client->prefer(request, response, options_.call_timeout);
    if (!status.ok()) {
      not_admitted("GetPreferredAllocation", status);
    }
    if (response.container_responses_size() > 0) {
      const auto& ids = response.container_responses(0).deviceids();
      created.preferred.assign(ids.begin(), ids.end());
    }
  }
  v1beta1::AllocateRequest request;
  {
    const std::lock_guard lock(mutex_);
    created.ids = resources_[resource].accounts.take(pod, resource, count, created.preferred);
  }
  auto& container_request = *request.add_container_requests();
  for (const std::string& id : created.ids) {
    container_request.add_devices_ids(id);
  }
  v1beta1::AllocateResponse response;
  const grpc::Status status = client->allocate(request, response, options_.call_timeout);
  const std::lock_guard lock(mutex_);
  if (!status.ok() || response.container_responses_size() != 1) {
    resources_[resource].accounts.release(created.ids);
    not_admitted("Allocate", status);
  }
  created.allocation = read(response.container_responses(0));
  note({"allocated", resource, pod, std::to_string(created.ids.size())});
  return created;
}

void fake_kubelet::free(const std::string& pod) {
  const std::lock_guard lock(mutex_);
  for (auto& [name, known] : resources_) {
    known.accounts.release_all(pod);
  }
  note({"freed", {}, pod, {}});
}

}  // namespace gpushm_testing
