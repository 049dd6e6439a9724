// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpushm::cdi {

// A CDI document with all fields of versions 0.3.0 to 1.1.0 of the specification (SPEC.md of
// cncf-tags/container-device-interface). Plain values: empty and zero values are not written,
// unless a field's comment states otherwise.

struct device_node {
  std::string path;        ///< in the container
  std::string host_path;   ///< empty: as `path`. Since 0.5.0
  std::string type;        ///< "b", "c", "u", "p"; empty: as on the host
  std::int64_t major = 0;  ///< 0: as on the host
  std::int64_t minor = 0;
  std::optional<std::uint32_t> file_mode;
  std::string permissions;  ///< letters of "rwm", or "none"; empty: all
  std::optional<std::uint32_t> uid;
  std::optional<std::uint32_t> gid;
  bool operator==(const device_node&) const = default;
};

struct net_device {  ///< since 1.1.0
  std::string host_interface_name;
  std::string name;
  bool operator==(const net_device&) const = default;
};

struct hook {
  std::string name;               ///< "createContainer"
  std::string path;               ///< on the host
  std::vector<std::string> args;  ///< with the program's name first
  std::vector<std::string> env;
  std::optional<std::int64_t> timeout_s;
  bool operator==(const hook&) const = default;
};

struct mount {
  std::string host_path;
  std::string container_path;
  std::vector<std::string> options;
  std::string type;  ///< since 0.4.0
  bool operator==(const mount&) const = default;
};

struct intel_rdt {  ///< since 0.7.0
  std::string clos_id;
  std::string l3_cache_schema;
  std::string mem_bw_schema;
  std::optional<std::vector<std::string>> schemata;  ///< since 1.1.0
  bool enable_monitoring = false;                    ///< since 1.1.0
  bool enable_cmt = false;                           ///< before 1.1.0
  bool enable_mbm = false;                           ///< before 1.1.0
  bool operator==(const intel_rdt&) const = default;
};

struct edits {
  std::vector<std::string> env;  ///< "KEY=value"
  std::vector<device_node> device_nodes;
  std::vector<net_device> net_devices;
  std::vector<hook> hooks;
  std::vector<mount> mounts;
  std::optional<intel_rdt> rdt;
  std::vector<std::uint32_t> additional_gids;  ///< since 0.7.0
  bool operator==(const edits&) const = default;

  [[nodiscard]] bool empty() const { return *this == edits{}; }
};

using annotations = std::map<std::string, std::string>;  ///< since 0.6.0

struct device {
  std::string name;
  annotations notes;
  edits changes;
  bool operator==(const device&) const = default;
};

struct document {
  std::string version;  ///< "0.5.0"
  std::string kind;     ///< "vendor/class"
  annotations notes;
  std::vector<device> devices;
  edits changes;  ///< applied once for all devices of the document
  bool operator==(const document&) const = default;
};

}  // namespace gpushm::cdi
