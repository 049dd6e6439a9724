// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "base/text/quoted.hpp"
#include "containers/cdi/document/versions.hpp"
#include "containers/cdi/document/write.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cdi {

namespace {

bool begins_with_digit(const std::string& name) {
  return !name.empty() && name.front() >= '0' && name.front() <= '9';
}

bool has_dot_in_class(const std::string& kind) {
  const std::size_t slash = kind.find('/');
  return slash != std::string::npos && kind.find('.', slash) != std::string::npos;
}

/// The lowest version that has all the edits.
std::string_view needed_by(const edits& changes) {
  if (!changes.net_devices.empty() ||
      (changes.rdt && (changes.rdt->schemata || changes.rdt->enable_monitoring))) {
    return "1.1.0";
  }
  if (changes.rdt || !changes.additional_gids.empty()) {
    return "0.7.0";
  }
  if (std::any_of(changes.device_nodes.begin(), changes.device_nodes.end(), [](const auto& node) {
        return !node.host_path.empty();
      })) {
    return "0.5.0";
  }
  if (std::any_of(changes.mounts.begin(), changes.mounts.end(), [](const auto& mount) {
        return !mount.type.empty();
      })) {
    return "0.4.0";
  }
  return "0.3.0";
}

/// Removes the edits that a version does not have, and records them.
class lowering {
 public:
  lowering(std::string_view version, std::vector<std::string>& dropped)
      : version_(version), index_(*version_index(version)), dropped_(dropped) {}

  [[nodiscard]] bool lacks(std::string_view since) const { return index_ < *version_index(since); }

  void drop(const std::string& where, const std::string& feature, std::string_view since) {
    dropped_.push_back(fmt::format(
        "{}: {} is left out: it needs cdiVersion {}, not {}", where, feature, since, version_));
  }

  void lower(edits& changes, const std::string& where) {
    if (lacks("1.1.0") && !changes.net_devices.empty()) {
      drop(where, "netDevices", "1.1.0");
      changes.net_devices.clear();
    }
    if (lacks("0.7.0") && !changes.additional_gids.empty()) {
      drop(where, "additionalGids", "0.7.0");
      changes.additional_gids.clear();
    }
    if (changes.rdt) {
      lower_rdt(changes, where);
    }
    if (lacks("0.5.0")) {
      lower_nodes(changes, where);
    }
    if (lacks("0.4.0")) {
      lower_mounts(changes, where);
    }
  }

 private:
  void lower_rdt(edits& changes, const std::string& where) {
    if (lacks("0.7.0")) {
      drop(where, "intelRdt", "0.7.0");
      changes.rdt.reset();
      return;
    }
    intel_rdt& rdt = *changes.rdt;
    if (lacks("1.1.0")) {
      if (rdt.schemata) {
        drop(where, "schemata", "1.1.0");
        rdt.schemata.reset();
      }
      if (rdt.enable_monitoring) {
        drop(where, "enableMonitoring", "1.1.0");
        rdt.enable_monitoring = false;
      }
    } else if (rdt.enable_cmt || rdt.enable_mbm) {
      dropped_.push_back(where +
                         ": enableCMT and enableMBM are left out: cdiVersion 1.1.0 removed them");
      rdt.enable_cmt = false;
      rdt.enable_mbm = false;
    }
  }

  /// Without hostPath the node would be a different one: it can be dropped only when it equals the
  /// path.
  void lower_nodes(edits& changes, const std::string& where) {
    for (device_node& node : changes.device_nodes) {
      if (!node.host_path.empty() && node.host_path != node.path) {
        throw error(
            errc::invalid_argument,
            "write CDI document for version " + std::string(version_),
            where,
            fmt::format("device node {} needs its hostPath {}, which that version does not have",
                        base::in_quotes(node.path),
                        base::in_quotes(node.host_path)),
            "request version 0.5.0 or newer");
      }
      node.host_path.clear();
    }
  }

  void lower_mounts(edits& changes, const std::string& where) {
    std::erase_if(changes.mounts, [&](mount& mount) {
      // Without its type a mount is a bind mount.
      const bool other = !mount.type.empty() && mount.type != "bind" && mount.type != "none";
      if (!mount.type.empty()) {
        drop(where,
             other ? fmt::format("the mount {} of type {}",
                                 base::in_quotes(mount.container_path),
                                 base::in_quotes(mount.type))
                   : "type of the mount " + base::in_quotes(mount.container_path),
             "0.4.0");
        mount.type.clear();
      }
      return other;
    });
  }

  std::string_view version_;
  std::size_t index_;
  std::vector<std::string>& dropped_;
};

[[noreturn]] void refuse(std::string_view version,
                         const std::string& object,
                         const std::string& cause,
                         const std::string& next_step) {
  throw error(errc::invalid_argument,
              std::string("write CDI document for version ").append(version),
              object,
              cause,
              next_step);
}

void lower_notes(lowering& lowering, annotations& notes, const std::string& where) {
  if (lowering.lacks("0.6.0") && !notes.empty()) {
    lowering.drop(where, "annotations", "0.6.0");
    notes.clear();
  }
}

}  // namespace

std::string_view minimum_version(const document& content) {
  std::string_view lowest = needed_by(content.changes);
  const auto raise = [&lowest](std::string_view needed) {
    if (*version_index(needed) > *version_index(lowest)) {
      lowest = needed;
    }
  };
  if (!content.notes.empty() || has_dot_in_class(content.kind)) {
    raise("0.6.0");
  }
  for (const device& each : content.devices) {
    raise(needed_by(each.changes));
    if (!each.notes.empty()) {
      raise("0.6.0");
    }
    if (begins_with_digit(each.name)) {
      raise("0.5.0");
    }
  }
  return lowest;
}

std::vector<std::string> lower_to(document& content, std::string_view version) {
  if (!version_index(version)) {
    refuse(version,
           content.kind,
           "unknown version",
           "the versions are 0.3.0, 0.4.0, 0.5.0, 0.6.0, 0.7.0, 0.8.0, 1.0.0 and 1.1.0");
  }
  std::vector<std::string> dropped;
  lowering to(version, dropped);
  document changed = content;
  if (to.lacks("0.6.0") && has_dot_in_class(content.kind)) {
    refuse(version,
           content.kind,
           "its class has a dot, which that version does not allow",
           "choose another class, or request version 0.6.0 or newer");
  }
  lower_notes(to, changed.notes, changed.kind);
  to.lower(changed.changes, changed.kind);
  for (device& each : changed.devices) {
    const std::string name = changed.kind + "=" + each.name;
    if (to.lacks("0.5.0") && begins_with_digit(each.name)) {
      refuse(version,
             name,
             "its name begins with a digit, which that version does not allow",
             "choose another strategy for device names, or request version 0.5.0 or newer");
    }
    lower_notes(to, each.notes, name);
    const bool had_edits = !each.changes.empty();
    to.lower(each.changes, name);
    if (had_edits && each.changes.empty()) {
      refuse(version,
             name,
             "that version supports none of the device's edits",
             "request version " + std::string(minimum_version(content)));
    }
  }
  changed.version = version;
  content = std::move(changed);
  return dropped;
}

}  // namespace gpushm::cdi
