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
void read_enumerator(configuration_reader& in,
                     const node& from,
                     const std::string& path,
                     const std::string& choice,
                     Find&& find,
                     std::optional<Value>& out) {
  std::optional<std::string> text;
  if (!in.read(from, path, text) || !text) {
    return;
  }
  out = find(*text);
  if (!out) {
    in.report(
        from, fmt::format("{} cannot be {}", path, base::in_quotes(*text)), "write " + choice);
  }
}

void add_strategies(configuration_reader& in,
                    const node& from,
                    const std::string& path,
                    std::set<device_list_strategy>& to) {
  std::string text;
  if (!in.read(from, path, text)) {
    return;
  }
  const auto words = base::split(text, ",");
  if (words.empty()) {
    in.report(from, path + " is empty", "write " + device_list_choice());
  }
  for (const std::string_view each : words) {
    const auto value = device_list_strategy_of(base::trim(each));
    if (!value) {
      in.report(from,
                fmt::format("{} cannot be {}", path, base::in_quotes(base::trim(each))),
                "write " + device_list_choice());
      return;
    }
    to.insert(*value);
  }
}

// One value, several separated by commas, or a list.
void read_device_list(configuration_reader& in,
                      const node& from,
                      const std::string& path,
                      std::optional<std::set<device_list_strategy>>& out) {
  if (in.is_null(from)) {
    return;
  }
  const std::size_t before = in.problem_count();
  std::set<device_list_strategy> found;
  if (configuration_reader::is_list(from)) {
    in.read_list(from, path, [&](const node& each, const std::string& at) {
      add_strategies(in, each, at, found);
    });
    if (found.empty() && in.problem_count() == before) {
      in.report(from, path + " is empty", "write " + device_list_choice());
    }
  } else {
    add_strategies(in, from, path, found);
  }
  if (in.problem_count() == before) {
    out = std::move(found);
  }
}

template <typename Value>
auto reading(configuration_reader& in, std::optional<Value>& out) {
  return [&in, &out](const node& value, const std::string& path) { in.read(value, path, out); };
}

/// `containerDriverRoot`: where NVIDIA's plugin finds the driver in its own pod.
struct container_root {
  std::optional<std::string> value;
  const node* at = nullptr;
  std::string path;
};

void read_plugin(configuration_reader& in,
                 const node& from,
                 const std::string& path,
                 plugin_flags& out,
                 container_root& root) {
  const auto read_root = [&](const node& value, const std::string& at) {
    in.read(value, at, root.value);
    root.at = &value;
    root.path = at;
  };
  in.read_mapping(from,
                  path,
                  {{"passDeviceSpecs", reading(in, out.pass_device_specs)},
                   {"deviceListStrategy",
                    [&](const node& value, const std::string& at) {
                      read_device_list(in, value, at, out.device_list);
                    }},
                   {"deviceIDStrategy",
                    [&](const node& value, const std::string& at) {
                      read_enumerator(
                          in, value, at, device_id_choice(), device_id_strategy_of, out.device_id);
                    }},
                   {"cdiAnnotationPrefix", reading(in, out.cdi_annotation_prefix)},
                   {"containerDriverRoot", read_root},
                   {"driverRootCtrPath", read_root},
                   // Programs that this plugin does not use.
                   {"nvidiaCTKPath", {}},
                   {"nvidiaCDIHookPath", {}},
                   {"cdiFeatureFlags", {}}});
}

}  // namespace

void read_flags(configuration_reader& in,
                const yaml::node& from,
                const std::string& path,
                plugin_flags& out) {
  container_root root;
  in.read_mapping(
      from,
      path,
      {{"migStrategy",
        [&](const node& value, const std::string& at) {
          read_enumerator(in, value, at, mig_choice(), mig_strategy_of, out.mig);
        }},
       {"failOnInitError", reading(in, out.fail_on_init_error)},
       {"nvidiaDriverRoot", reading(in, out.driver_root)},
       {"nvidiaDevRoot", reading(in, out.dev_root)},
       {"gdsEnabled", reading(in, out.gds)},
       {"mofedEnabled", reading(in, out.mofed)},
       {"gdrcopyEnabled", reading(in, out.gdrcopy)},
       {"plugin",
        [&](const node& value, const std::string& at) { read_plugin(in, value, at, out, root); }},
       // NVIDIA's feature discovery, MPS daemon and other device discovery.
       {"gfd", {}},
       {"mpsRoot", {}},
       {"useNodeFeatureAPI", {}},
       {"deviceDiscoveryStrategy", {}}});
  const std::string host = out.driver_root.value_or("/");
  if (root.value && !root.value->empty() && *root.value != host) {
    in.warn(*root.at,
            fmt::format("{} is ignored: mount the driver into the agent's pod at the path that it "
                        "has on the host (flags.nvidiaDriverRoot, now {})",
                        root.path,
                        base::in_quotes(host)));
  }
}

}  // namespace gpushm::device_plugin
