// SPDX-License-Identifier: Apache-2.0
#include "inspect/facts/json.hpp"

#include <nlohmann/json.hpp>

// nlohmann::json does not support std::optional.
namespace nlohmann {
template <typename Value>
struct adl_serializer<std::optional<Value>> {
  static void to_json(json& document, const std::optional<Value>& value) {
    if (value) {
      document = *value;
    } else {
      document = nullptr;
    }
  }
  static void from_json(const json& document, std::optional<Value>& value) {
    if (document.is_null()) {
      value.reset();
    } else {
      value = document.get<Value>();
    }
  }
};
}  // namespace nlohmann

namespace gpushm::inspect {

using nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(cuda_gpu_view,
                                                ordinal,
                                                uuid,
                                                name,
                                                pci_address,
                                                compute_major,
                                                compute_minor,
                                                total_bytes,
                                                multiprocessors,
                                                l2_bytes,
                                                copy_engines,
                                                clock_khz,
                                                memory_clock_khz,
                                                memory_bus_bits,
                                                compute_mode,
                                                ecc,
                                                vmm,
                                                file_handles,
                                                fabric_handles,
                                                pools,
                                                pool_file_handles,
                                                rdma,
                                                rdma_vmm)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(
    cuda_pair_view, from, to, access, native_atomics, performance_rank)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(
    cuda_view, library, problem, result, version, gpus, pairs)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(
    nvlink_view, link, active, version, remote_pci, remote_kind)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(
    mig_instance_view, uuid, name, gpu_instance, compute_instance, total_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(nvml_gpu_view,
                                                index,
                                                uuid,
                                                name,
                                                pci_address,
                                                minor,
                                                total_bytes,
                                                free_bytes,
                                                mig,
                                                mig_pending,
                                                mig_instances,
                                                compute_mode,
                                                virtualization,
                                                persistence,
                                                ecc,
                                                max_sm_clock_mhz,
                                                max_memory_clock_mhz,
                                                links)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(nvml_pair_view, from, to, distance)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(
    nvml_view, library, problem, result, driver_version, nvml_version, gpus, pairs)

void to_json(json& document, const driver_view& driver) {
  document = {{"failure", driver.failure}, {"cuda", driver.cuda}, {"nvml", driver.nvml}};
}

void from_json(const json& document, driver_view& driver) {
  driver.failure = document.value("failure", std::string());
  driver.cuda = document.value("cuda", cuda_view());
  driver.nvml = document.value("nvml", nvml_view());
}

void to_json(json& document, const file_status& status) {
  document = {{"type", status.type},
              {"mode", status.mode},
              {"uid", status.uid},
              {"gid", status.gid},
              {"major", status.major},
              {"minor", status.minor}};
}

void from_json(const json& document, file_status& status) {
  status.type = document.at("type").get<std::string>();
  status.mode = document.value("mode", 0U);
  status.uid = document.value("uid", 0U);
  status.gid = document.value("gid", 0U);
  status.major = document.value("major", 0U);
  status.minor = document.value("minor", 0U);
}

void to_json(json& document, const node_holder& holder) {
  document = {{"name", holder.name}, {"nodes", holder.nodes}};
}

void from_json(const json& document, node_holder& holder) {
  holder.name = document.at("name").get<std::string>();
  holder.nodes = document.at("nodes").get<std::vector<std::string>>();
}

namespace {

json as_json(const selinux_facts& facts) {
  return {{"present", facts.present},
          {"enforcing", facts.enforcing},
          {"context", facts.context},
          {"container_use_devices", facts.container_use_devices},
          {"labels", facts.labels}};
}

json list_of_holders(const std::vector<node_holder>& holders) {
  json list = json::array();
  for (const node_holder& each : holders) {
    list.push_back({{"pid", each.pid}, {"name", each.name}, {"nodes", each.nodes}});
  }
  return list;
}

json as_json(const process_facts& facts) {
  json namespaces = json::object();
  for (const auto& [kind, each] : facts.namespaces) {
    namespaces[kind] = {{"id", each.id}, {"host", each.host}};
  }
  return {{"pid", facts.pid},
          {"name", facts.name},
          {"nspid", facts.nspid},
          {"uid", facts.uid},
          {"gid", facts.gid},
          {"capabilities", facts.capabilities},
          {"bounding_capabilities", facts.bounding_capabilities},
          {"no_new_privileges", facts.no_new_privileges},
          {"seccomp", facts.seccomp},
          {"namespaces", namespaces},
          {"cgroups", facts.cgroups},
          {"container",
           {{"runtime", facts.container.runtime},
            {"id", facts.container.id},
            {"pod_uid", facts.container.pod_uid},
            {"pod_name", facts.container.pod_name},
            {"pod_namespace", facts.container.pod_namespace}}},
          {"limits", facts.limits},
          {"variables", facts.variables}};
}

json as_json(const device_node_facts& facts) {
  return {{"path", facts.path},
          {"status", facts.status},
          {"open_error", facts.open_error},
          {"expected_major", facts.expected_major}};
}

json as_json(const gpu_facts& facts) {
  return {{"pci_address", facts.pci_address},
          {"uuid", facts.uuid},
          {"name", facts.name},
          {"minor", facts.minor},
          {"numa_node", facts.numa_node},
          {"open_error", facts.open_error},
          {"pci_path", facts.pci_path},
          {"nvml", facts.nvml},
          {"cuda", facts.cuda},
          {"sharing", facts.sharing},
          {"time_slices", facts.time_slices}};
}

json as_json(const pair_facts& facts) {
  return {{"from", facts.from},
          {"to", facts.to},
          {"access", facts.access},
          {"native_atomics", facts.native_atomics},
          {"performance_rank", facts.performance_rank},
          {"links", facts.links},
          {"link_version", facts.link_version},
          {"through_switch", facts.through_switch},
          {"link_bytes_per_second", facts.link_bytes_per_second},
          {"pcie_distance", facts.pcie_distance}};
}

json as_json(const cdi_facts& facts) {
  return {{"path", facts.path},
          {"kind", facts.kind},
          {"version", facts.version},
          {"devices", facts.devices},
          {"problem", facts.problem}};
}

json as_json(const other_gpu_facts& gpu) {
  return {{"vendor", gpu.vendor},
          {"device", gpu.device},
          {"path", gpu.path},
          {"missing", !gpu.status},
          {"open_error", gpu.open_error}};
}

json as_json(const broker_facts& facts) {
  return {{"socket", facts.socket},
          {"reachable", facts.reachable},
          {"domain", facts.domain},
          {"protocol", facts.protocol},
          {"segments", facts.segments},
          {"fence", facts.fence},
          {"problem", facts.problem}};
}

template <typename Values>
json list_of(const Values& values) {
  json list = json::array();
  for (const auto& each : values) {
    list.push_back(as_json(each));
  }
  return list;
}

}  // namespace

void to_json(json& document, const facts& facts) {
  json toolkits = json::array();
  for (const toolkit_facts& each : facts.toolkits) {
    toolkits.push_back({{"path", each.path}, {"version", each.version}});
  }
  json xids = json::array();
  for (const xid_facts& each : facts.xids) {
    xids.push_back(
        {{"pci_address", each.pci_address}, {"number", each.number}, {"text", each.text}});
  }
  document = {{"kernel", facts.kernel},
              {"gvisor", facts.gvisor},
              {"platform", facts.platform},
              {"model", facts.model},
              {"selinux", as_json(facts.selinux)},
              {"holders", list_of_holders(facts.holders)},
              {"module_version", facts.module_version},
              {"open_module", facts.open_module},
              {"libcuda_files", facts.libcuda_files},
              {"libcuda_version", facts.libcuda_version},
              {"compat_version", facts.compat_version},
              {"toolkits", toolkits},
              {"device_majors", facts.device_majors},
              {"nodes", list_of(facts.nodes)},
              {"gpus", list_of(facts.gpus)},
              {"pairs", list_of(facts.pairs)},
              {"xids", xids},
              {"xids_readable", facts.xids_readable},
              {"mps", facts.mps},
              {"imex_channels", facts.imex_channels},
              {"ptrace_scope", facts.ptrace_scope},
              {"shm_bytes", facts.shm_bytes},
              {"shm_private", facts.shm_private},
              {"self", as_json(facts.self)},
              {"peer", facts.peer ? as_json(*facts.peer) : json(nullptr)},
              {"peer_minors", facts.peer_minors},
              {"cdi", list_of(facts.cdi)},
              {"other_gpus", list_of(facts.other_gpus)},
              {"broker", facts.broker ? as_json(*facts.broker) : json(nullptr)},
              {"driver", facts.driver}};
}

}  // namespace gpushm::inspect
