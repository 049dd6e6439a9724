// SPDX-License-Identifier: Apache-2.0
// Where the settings of NVIDIA's device plugin belong in its file.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/segments/names.hpp"
#include "base/text/quoted.hpp"
#include "base/text/text.hpp"
#include "kubernetes/device_plugin/configuration/reader.hpp"

namespace gpushm::device_plugin {

namespace {

struct placed_key {
  std::string_view name;
  std::string_view place;  ///< the path of its mapping; "": the whole file
};

constexpr std::string_view replicated = "sharing.timeSlicing.resources[]";
constexpr std::string_view named = "resources.gpus[] or resources.mig[]";

// By NVIDIA/k8s-device-plugin, api/config/v1. A name that belongs in several places has a row for
// each.
constexpr auto keys =
    std::to_array<placed_key>({{"version", ""},
                               {"flags", ""},
                               {"resources", ""},
                               {"sharing", ""},
                               {"imex", ""},
                               {"agent", ""},
                               {"migStrategy", "flags"},
                               {"failOnInitError", "flags"},
                               {"nvidiaDriverRoot", "flags"},
                               {"nvidiaDevRoot", "flags"},
                               {"gdsEnabled", "flags"},
                               {"mofedEnabled", "flags"},
                               {"gdrcopyEnabled", "flags"},
                               {"mpsRoot", "flags"},
                               {"useNodeFeatureAPI", "flags"},
                               {"deviceDiscoveryStrategy", "flags"},
                               {"plugin", "flags"},
                               {"gfd", "flags"},
                               {"passDeviceSpecs", "flags.plugin"},
                               {"deviceListStrategy", "flags.plugin"},
                               {"deviceIDStrategy", "flags.plugin"},
                               {"cdiAnnotationPrefix", "flags.plugin"},
                               {"nvidiaCTKPath", "flags.plugin"},
                               {"nvidiaCDIHookPath", "flags.plugin"},
                               {"containerDriverRoot", "flags.plugin"},
                               {"driverRootCtrPath", "flags.plugin"},
                               {"cdiFeatureFlags", "flags.plugin"},
                               {"oneshot", "flags.gfd"},
                               {"noTimestamp", "flags.gfd"},
                               {"sleepInterval", "flags.gfd"},
                               {"outputFile", "flags.gfd"},
                               {"machineTypeFile", "flags.gfd"},
                               {"timeSlicing", "sharing"},
                               {"mps", "sharing"},
                               {"renameByDefault", "sharing.timeSlicing"},
                               {"failRequestsGreaterThanOne", "sharing.timeSlicing"},
                               {"resources", "sharing.timeSlicing"},
                               {"name", replicated},
                               {"rename", replicated},
                               {"devices", replicated},
                               {"replicas", replicated},
                               {"gpus", "resources"},
                               {"mig", "resources"},
                               {"pattern", named},
                               {"name", named},
                               {"channelIDs", "imex"},
                               {"required", "imex"}});

/// "mig-strategy" and "MIG_STRATEGY" as "migstrategy".
std::string folded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != '-' && c != '_') {
      out.push_back(base::to_lower(c));
    }
  }
  return out;
}

/// "sharing.timeSlicing.resources[3]" as "sharing.timeSlicing.resources[]".
std::string without_indices(const std::string& path) {
  std::string out;
  bool inside = false;
  for (const char c : path) {
    inside = inside && c != ']';
    if (!inside) {
      out.push_back(c);
    }
    inside = inside || c == '[';
  }
  return out;
}

bool is_place(const placed_key& key, const std::string& path) {
  return key.place == path ||
         (key.place == named && (path == "resources.gpus[]" || path == "resources.mig[]"));
}

/// How near the place of a setting is to the mapping `path`.
int nearness(const placed_key& key, const std::string& path) {
  return is_place(key, path) ? 2 : key.place.starts_with(path + ".") ? 1 : 0;
}

/// The row of the setting that `text` means in the mapping `path`, by a name of at most this
/// distance; null: none. Of several, the nearest to the mapping.
const placed_key* meant(const std::string& text, const std::string& path, std::size_t distance) {
  const placed_key* key = nullptr;
  for (const placed_key& each : keys) {
    if (base::edit_distance(folded(each.name), text, distance) <= distance &&
        (key == nullptr || nearness(each, path) > nearness(*key, path))) {
      key = &each;
    }
  }
  return key;
}

}  // namespace

std::string place_of_setting(std::string_view key) {
  const placed_key* const row = meant(folded(key), {}, 0);
  return row == nullptr || row->place.empty() ? std::string() : std::string(row->place);
}

std::string unknown_field_advice(const std::string& path, std::string_view key) {
  const std::string text = folded(key);
  const std::string here = without_indices(path);
  const placed_key* row = meant(text, here, 0);
  if (row == nullptr && text.size() > 4) {
    row = meant(text, here, 2);
  }
  if (row == nullptr) {
    return "it is ignored";
  }
  if (is_place(*row, here)) {
    return fmt::format("it is ignored: its name is {}", row->name);
  }
  const bool same = folded(row->name) == text;
  const std::string place =
      row->place.empty() ? "at the top level of the file" : fmt::format("in {}", row->place);
  return same ? fmt::format(
                    "it is ignored, by NVIDIA's device plugin too: {} belongs {}", row->name, place)
              : fmt::format("it is ignored: {} belongs {}", row->name, place);
}

}  // namespace gpushm::device_plugin
