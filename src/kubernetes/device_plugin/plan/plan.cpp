// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/plan/plan.hpp"

#include <fmt/core.h>

#include <set>

#include "containers/cdi/document/share_device.hpp"
#include "containers/discover/driver_files/findings.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/device_plugin/plan/naming.hpp"
#include "kubernetes/device_plugin/plan/parts.hpp"
#include "kubernetes/device_plugin/resources/gpu_resource.hpp"

namespace gpushm::device_plugin {

namespace {

constexpr const char* operation = "plan resources";

void check_name(const std::string& name) {
  if (const auto why = resource_name_problem(name)) {
    throw error(errc::invalid_argument,
                operation,
                name,
                "not a resource name: " + *why,
                "write a name like nvidia.com/gpu");
  }
}

std::shared_ptr<gpu_rules> rules_of(const configuration& settings,
                                    const plan_options& options,
                                    const inventory& inventory) {
  auto rules = std::make_shared<gpu_rules>();
  const plugin_flags& flags = settings.flags;
  rules->lists = flags.device_list_or_default();
  rules->ids = flags.device_id_or_default();
  rules->annotation_prefix = flags.cdi_annotation_prefix_or_default();
  rules->pass_nodes = flags.pass_device_specs.value_or(false);
  rules->policy = options.policy;
  rules->closeness = inventory.closeness;
  // Variables that NVIDIA's runtime reads in addition to the device list.
  for (const auto& [enabled, variable] : {std::pair(flags.gds, "NVIDIA_GDS"),
                                          std::pair(flags.mofed, "NVIDIA_MOFED"),
                                          std::pair(flags.gdrcopy, "NVIDIA_GDRCOPY")}) {
    if (enabled.value_or(false)) {
      rules->envs.emplace(variable, "enabled");
    }
  }
  return rules;
}

/// Moves each whole GPU that the configuration does not replicate to a per-GPU resource.
named_units split_whole_gpus(const plan_options& options, named_units& devices) {
  named_units own;
  for (auto& [name, units] : devices) {
    std::erase_if(units, [&](unit& each) {
      if (each.is_instance || each.replicas > 0) {
        return false;
      }
      each.replicas = options.per_gpu_replicas;
      units_named(own, fmt::format("{}{}", own_resource_prefix, each.index))
          .push_back(std::move(each));
      return true;
    });
  }
  std::erase_if(devices, [](const auto& each) { return each.second.empty(); });
  return own;
}

/// `unit::gpu` of a domain's shares; no UUID contains a slash.
std::string health_key_of(std::string_view domain) {
  return fmt::format("domain/{}", domain);
}

std::string describe(const counted_resource& resource) {
  return fmt::format("{}: {}",
                     resource.name(),
                     discover::count_text(resource.device_count(), "device", "devices"));
}

void check_list(const counted_resource& resource) {
  const std::vector<device> devices = resource.devices();
  const std::size_t bytes = list_bytes(devices);
  if (bytes <= max_list_bytes) {
    return;
  }
  throw error(errc::invalid_argument,
              operation,
              resource.name(),
              fmt::format("its {} devices are a list of {:.1f} MiB, and a kubelet reads lists of "
                          "up to 4 MiB",
                          devices.size(),
                          static_cast<double>(bytes) / (1UL << 20U)),
              fmt::format("reduce the replicas: the list has room for about {} devices",
                          devices.size() * max_list_bytes / bytes));
}

/// Builds a plan.
class planner {
 public:
  planner(const configuration& settings, const plan_options& options, const inventory& inventory)
      : settings_(settings),
        options_(options),
        found_(inventory),
        rules_(rules_of(settings, options, inventory)) {}

  planned build() && {
    if (options_.gpus) {
      add_gpus();
    }
    add_shares();
    return std::move(plan_);
  }

 private:
  void add(std::shared_ptr<counted_resource> resource) {
    for (const auto& each : plan_.resources) {
      if (each->name() == resource->name()) {
        throw error(errc::invalid_argument,
                    operation,
                    resource->name(),
                    "two different resources would have this name",
                    "rename one of them in the configuration");
      }
    }
    check_list(*resource);
    plan_.notes.push_back(describe(*resource));
    plan_.resources.push_back(std::move(resource));
  }

  void add_gpus() {
    check_name(options_.gpu_resource_name);
    if (options_.per_gpu_resources && options_.per_gpu_replicas == 0) {
      throw error(errc::invalid_argument,
                  operation,
                  options_.gpu_resource_name,
                  "per-GPU resources would have no device",
                  "set at least one replica for per-GPU resources");
    }
    if (!found_.problem.empty()) {
      plan_.warnings.push_back("no GPU is offered: " + found_.problem);
    }
    for (const std::string& each : found_.left_out) {
      plan_.warnings.push_back(each + " (it is not offered)");
    }
    named_units named = name_devices(settings_, options_.gpu_resource_name, found_, plan_.warnings);
    describe_devices(settings_, options_, found_, *rules_, named, plan_);
    named_units shared = replicate(settings_.slicing, std::move(named), plan_.warnings);
    const named_units own =
        options_.per_gpu_resources ? split_whole_gpus(options_, shared) : named_units();
    const auto rules = std::shared_ptr<const gpu_rules>(rules_);
    for (const named_units* list : {static_cast<const named_units*>(&shared), &own}) {
      for (const auto& [name, units] : *list) {
        check_name(name);
        add(std::make_shared<gpu_resource>(
            name, units, rules, settings_.slicing.fail_requests_greater_than_one));
      }
    }
    if (shared.empty()) {
      add(std::make_shared<gpu_resource>(
          options_.gpu_resource_name, std::vector<unit>{}, rules, false));
    }
  }

  void add_shares() {
    if (options_.share_replicas == 0 || options_.domains.empty()) {
      return;
    }
    check_domains();
    plan_.shares = cdi::share_document(options_.domains, options_.domains_on_host);
    add_domains(cdi::share_kind);
    if (options_.ipc && !rules_->uses_cdi()) {
      plan_.warnings.push_back(
          fmt::format("{} is not offered: its devices have a hook, which needs CDI "
                      "(--device-list-strategy cdi-cri)",
                      cdi::ipc_kind));
    } else if (options_.ipc) {
      plan_.ipc = cdi::ipc_document(options_.domains, *options_.ipc, options_.domains_on_host);
      add_domains(cdi::ipc_kind);
    }
  }

  void check_domains() const {
    std::set<std::string> seen;
    for (const std::string& domain : options_.domains) {
      if (!seen.insert(domain).second) {
        throw error(errc::invalid_argument,
                    operation,
                    domain,
                    "the domain is named twice",
                    "name each domain once");
      }
    }
  }

  /// A resource for each domain.
  void add_domains(std::string_view kind) {
    for (const std::string& domain : options_.domains) {
      std::string name(kind);
      if (domain != options_.domains.front()) {
        name.append("-").append(domain);
      }
      check_name(name);
      unit place;
      place.id = short_id(domain, options_.share_replicas);
      place.gpu = health_key_of(domain);
      place.replicas = options_.share_replicas;
      place.cdi_name = fmt::format("{}={}", kind, domain);
      add(std::make_shared<share_resource>(
          name, std::vector{std::move(place)}, rules_, options_.domains_on_host));
    }
  }

  const configuration& settings_;
  const plan_options& options_;
  const inventory& found_;
  std::shared_ptr<gpu_rules> rules_;
  planned plan_;
};

}  // namespace

std::size_t planned::set_health(std::string_view uuid,
                                bool healthy,
                                const std::string& reason) const {
  std::size_t changed = 0;
  for (const auto& each : resources) {
    if (const auto counted = std::dynamic_pointer_cast<counted_resource>(each)) {
      changed += counted->set_health(uuid, healthy, reason);
    }
  }
  return changed;
}

std::size_t planned::set_share_health(std::string_view domain,
                                      bool healthy,
                                      const std::string& reason) const {
  return set_health(health_key_of(domain), healthy, reason);
}

planned make_plan(const configuration& settings,
                  const plan_options& options,
                  const inventory& inventory) {
  return planner(settings, options, inventory).build();
}

}  // namespace gpushm::device_plugin
