// SPDX-License-Identifier: Apache-2.0
// `flags` of the NVIDIA device plugin's file.
#include <fmt/core.h>

#include "base/text/quoted.hpp"
#include "base/text/text.hpp"
#include "kubernetes/device_plugin/configuration/enumerators.hpp"
#include "kubernetes/device_plugin/configuration/reader.hpp"

namespace gpushm::device_plugin {

namespace {

using node = configuration_reader::node;

/// Reads an enumerator; an invalid one is reported with the valid values.
template <typename Value, typename Find>
void read_enumerator(configuration_reader& reader,
                     const node& node,
                     const std::string& path,
                     const std::string& choice,
                     Find&& find,
                     std::optional<Value>& out) {
  std::optional<std::string> text;
  if (!reader.read(node, path, text) || !text) {
    return;
  }
  out = find(*text);
  if (!out) {
    reader.report(
        node, fmt::format("{} cannot be {}", path, base::in_quotes(*text)), "write " + choice);
  }
}

void add_strategies(configuration_reader& reader,
                    const node& node,
                    const std::string& path,
                    std::set<device_list_strategy>& strategies) {
  std::string text;
  if (!reader.read(node, path, text)) {
    return;
  }
  const auto words = base::split(text, ",");
  if (words.empty()) {
    reader.report(node, path + " is empty", "write " + device_list_choice());
  }
  for (const std::string_view each : words) {
    const auto value = device_list_strategy_of(base::trim(each));
    if (!value) {
      reader.report(node,
                    fmt::format("{} cannot be {}", path, base::in_quotes(base::trim(each))),
                    "write " + device_list_choice());
      return;
    }
    strategies.insert(*value);
  }
}

// One value, several separated by commas, or a list.
void read_device_list(configuration_reader& reader,
                      const node& source,
                      const std::string& path,
                      std::optional<std::set<device_list_strategy>>& out) {
  if (reader.is_null(source)) {
    return;
  }
  const std::size_t before = reader.problem_count();
  std::set<device_list_strategy> strategies;
  if (configuration_reader::is_list(source)) {
    reader.read_list(source, path, [&](const node& each, const std::string& place) {
      add_strategies(reader, each, place, strategies);
    });
    if (strategies.empty() && reader.problem_count() == before) {
      reader.report(source, path + " is empty", "write " + device_list_choice());
    }
  } else {
    add_strategies(reader, source, path, strategies);
  }
  if (reader.problem_count() == before) {
    out = std::move(strategies);
  }
}

template <typename Value>
auto reading(configuration_reader& reader, std::optional<Value>& out) {
  return [&reader, &out](const node& value, const std::string& path) {
    reader.read(value, path, out);
  };
}

/// `containerDriverRoot`: where NVIDIA's plugin finds the driver in its own pod.
struct container_root {
  std::optional<std::string> value;
  const node* at = nullptr;
  std::string path;
};

void read_plugin(configuration_reader& reader,
                 const node& source,
                 const std::string& path,
                 plugin_flags& out,
                 container_root& root) {
  const auto read_root = [&](const node& value, const std::string& place) {
    reader.read(value, place, root.value);
    root.at = &value;
    root.path = place;
  };
  reader.read_mapping(
      source,
      path,
      {{"passDeviceSpecs", reading(reader, out.pass_device_specs)},
       {"deviceListStrategy",
        [&](const node& value, const std::string& place) {
          read_device_list(reader, value, place, out.device_list);
        }},
       {"deviceIDStrategy",
        [&](const node& value, const std::string& place) {
          read_enumerator(
              reader, value, place, device_id_choice(), device_id_strategy_of, out.device_id);
        }},
       {"cdiAnnotationPrefix", reading(reader, out.cdi_annotation_prefix)},
       {"containerDriverRoot", read_root},
       {"driverRootCtrPath", read_root},
       // Programs that this plugin does not use.
       {"nvidiaCTKPath", {}},
       {"nvidiaCDIHookPath", {}},
       {"cdiFeatureFlags", {}}});
}

}  // namespace

void read_flags(configuration_reader& reader,
                const yaml::node& source,
                const std::string& path,
                plugin_flags& out) {
  container_root root;
  reader.read_mapping(source,
                      path,
                      {{"migStrategy",
                        [&](const node& value, const std::string& place) {
                          read_enumerator(
                              reader, value, place, mig_choice(), mig_strategy_of, out.mig);
                        }},
                       {"failOnInitError", reading(reader, out.fail_on_init_error)},
                       {"nvidiaDriverRoot", reading(reader, out.driver_root)},
                       {"nvidiaDevRoot", reading(reader, out.dev_root)},
                       {"gdsEnabled", reading(reader, out.gds)},
                       {"mofedEnabled", reading(reader, out.mofed)},
                       {"gdrcopyEnabled", reading(reader, out.gdrcopy)},
                       {"plugin",
                        [&](const node& value, const std::string& place) {
                          read_plugin(reader, value, place, out, root);
                        }},
                       // NVIDIA's feature discovery, MPS daemon and other device discovery.
                       {"gfd", {}},
                       {"mpsRoot", {}},
                       {"useNodeFeatureAPI", {}},
                       {"deviceDiscoveryStrategy", {}}});
  const std::string host = out.driver_root.value_or("/");
  if (root.value && !root.value->empty() && *root.value != host) {
    reader.warn(
        *root.at,
        fmt::format("{} is ignored: mount the driver into the agent's pod at the path that it "
                    "has on the host (flags.nvidiaDriverRoot, now {})",
                    root.path,
                    base::in_quotes(host)));
  }
}

}  // namespace gpushm::device_plugin
