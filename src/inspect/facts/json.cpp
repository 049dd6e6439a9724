// SPDX-License-Identifier: Apache-2.0
#include "inspect/facts/json.hpp"

#include <nlohmann/json.hpp>

// nlohmann::json does not support std::optional.
namespace nlohmann {
template <typename Value>
struct adl_serializer<std::optional<Value>> {
  static void to_json(json& to, const std::optional<Value>& from) {
    if (from) {
      to = *from;
    } else {
      to = nullptr;
    }
  }
  static void from_json(const json& from, std::optional<Value>& to) {
    if (from.is_null()) {
      to.reset();
    } else {
      to = from.get<Value>();
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

void to_json(json& to, const driver_view& from) {
  to = {{"failure", from.failure}, {"cuda", from.cuda}, {"nvml", from.nvml}};
}

void from_json(const json& from, driver_view& to) {
  to.failure = from.value("failure", std::string());
  to.cuda = from.value("cuda", cuda_view());
  to.nvml = from.value("nvml", nvml_view());
}

void to_json(json& to, const file_status& from) {
  to = {{"type", from.type},
        {"mode", from.mode},
        {"uid", from.uid},
        {"gid", from.gid},
        {"major", from.major},
        {"minor", from.minor}};
}

void from_json(const json& from, file_status& to) {
  to.type = from.at("type").get<std::string>();
  to.mode = from.value("mode", 0U);
  to.uid = from.value("uid", 0U);
  to.gid = from.value("gid", 0U);
  to.major = from.value("major", 0U);
  to.minor = from.value("minor", 0U);
}

void to_json(json& to, const node_holder& from) {
  to = {{"name", from.name}, {"nodes", from.nodes}};
}

void from_json(const json& from, node_holder& to) {
  to.name = from.at("name").get<std::string>();
  to.nodes = from.at("nodes").get<std::vector<std::string>>();
}

namespace {

json as_json(const selinux_facts& from) {
  return {{"present", from.present},
          {"enforcing", from.enforcing},
          {"context", from.context},
          {"container_use_devices", from.container_use_devices},
          {"labels", from.labels}};
}

json list_of_holders(const std::vector<node_holder>& holders) {
  json list = json::array();
  for (const node_holder& each : holders) {
    list.push_back({{"pid", each.pid}, {"name", each.name}, {"nodes", each.nodes}});
  }
  return list;
}

json as_json(const process_facts& from) {
  json namespaces = json::object();
  for (const auto& [kind, each] : from.namespaces) {
    namespaces[kind] = {{"id", each.id}, {"host", each.host}};
  }
  return {{"pid", from.pid},
          {"name", from.name},
          {"nspid", from.nspid},
          {"uid", from.uid},
          {"gid", from.gid},
          {"capabilities", from.capabilities},
          {"bounding_capabilities", from.bounding_capabilities},
          {"no_new_privileges", from.no_new_privileges},
          {"seccomp", from.seccomp},
          {"namespaces", namespaces},
          {"cgroups", from.cgroups},
          {"container",
           {{"runtime", from.container.runtime},
            {"id", from.container.id},
            {"pod_uid", from.container.pod_uid},
            {"pod_name", from.container.pod_name},
            {"pod_namespace", from.container.pod_namespace}}},
          {"limits", from.limits},
          {"variables", from.variables}};
}

json as_json(const device_node_facts& from) {
  return {{"path", from.path},
          {"status", from.status},
          {"open_error", from.open_error},
          {"expected_major", from.expected_major}};
}

json as_json(const gpu_facts& from) {
  return {{"pci_address", from.pci_address},
          {"uuid", from.uuid},
          {"name", from.name},
          {"minor", from.minor},
          {"numa_node", from.numa_node},
          {"open_error", from.open_error},
          {"pci_path", from.pci_path},
          {"nvml", from.nvml},
          {"cuda", from.cuda},
          {"sharing", from.sharing},
          {"time_slices", from.time_slices}};
}

json as_json(const pair_facts& from) {
  return {{"from", from.from},
          {"to", from.to},
          {"access", from.access},
          {"native_atomics", from.native_atomics},
          {"performance_rank", from.performance_rank},
          {"links", from.links},
          {"link_version", from.link_version},
          {"through_switch", from.through_switch},
          {"link_bytes_per_second", from.link_bytes_per_second},
          {"pcie_distance", from.pcie_distance}};
}

json as_json(const cdi_facts& from) {
  return {{"path", from.path},
          {"kind", from.kind},
          {"version", from.version},
          {"devices", from.devices},
          {"problem", from.problem}};
}

json as_json(const other_gpu_facts& from) {
  return {{"vendor", from.vendor},
          {"device", from.device},
          {"path", from.path},
          {"missing", !from.status},
          {"open_error", from.open_error}};
}

json as_json(const broker_facts& from) {
  return {{"socket", from.socket},
          {"reachable", from.reachable},
          {"domain", from.domain},
          {"protocol", from.protocol},
          {"segments", from.segments},
          {"fence", from.fence},
          {"problem", from.problem}};
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

void to_json(json& to, const facts& from) {
  json toolkits = json::array();
  for (const toolkit_facts& each : from.toolkits) {
    toolkits.push_back({{"path", each.path}, {"version", each.version}});
  }
  json xids = json::array();
  for (const xid_facts& each : from.xids) {
    xids.push_back(
        {{"pci_address", each.pci_address}, {"number", each.number}, {"text", each.text}});
  }
  to = {{"kernel", from.kernel},
        {"gvisor", from.gvisor},
        {"platform", from.platform},
        {"model", from.model},
        {"selinux", as_json(from.selinux)},
        {"holders", list_of_holders(from.holders)},
        {"module_version", from.module_version},
        {"open_module", from.open_module},
        {"libcuda_files", from.libcuda_files},
        {"libcuda_version", from.libcuda_version},
        {"compat_version", from.compat_version},
        {"toolkits", toolkits},
        {"device_majors", from.device_majors},
        {"nodes", list_of(from.nodes)},
        {"gpus", list_of(from.gpus)},
        {"pairs", list_of(from.pairs)},
        {"xids", xids},
        {"xids_readable", from.xids_readable},
        {"mps", from.mps},
        {"imex_channels", from.imex_channels},
        {"ptrace_scope", from.ptrace_scope},
        {"shm_bytes", from.shm_bytes},
        {"shm_private", from.shm_private},
        {"self", as_json(from.self)},
        {"peer", from.peer ? as_json(*from.peer) : json(nullptr)},
        {"peer_minors", from.peer_minors},
        {"cdi", list_of(from.cdi)},
        {"other_gpus", list_of(from.other_gpus)},
        {"broker", from.broker ? as_json(*from.broker) : json(nullptr)},
        {"driver", from.driver}};
}

}  // namespace gpushm::inspect
