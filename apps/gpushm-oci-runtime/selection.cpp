// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-oci-runtime/selection.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "apps/gpushm-oci-runtime/capabilities.hpp"
#include "base/text/text.hpp"
#include "containers/cdi/document/name.hpp"
#include "gpushm/error.hpp"

namespace gpushm::oci_runtime {

namespace {

std::string qualified(const std::string& kind, std::string_view name) {
  return fmt::format("{}={}", kind, name);
}

bool is_uuid(std::string_view name) {
  return name.starts_with("GPU-") || name.starts_with("MIG-");
}

/// Collects devices, preceded by the edits of their documents.
class collector {
 public:
  collector(const cdi::registry& registry, const request& request, const settings& chosen)
      : from_(registry), request_(request), chosen_(chosen) {}

  void add(const requested_device& device) {
    if (cdi::parse_qualified_name(device.name)) {
      add_qualified(device);
    } else if (device.name == "none") {
      add_documents(device);
    } else if (device.name == "all") {
      add_all(device);
    } else if (const auto name = device_named(device.name)) {
      give(*name, device.reason, true);
    } else {
      miss(device.name, qualified(chosen_.default_kind, device.name));
    }
  }

  std::vector<selected> finish() {
    if (!missing_.empty()) {
      throw error(errc::device_not_found,
                  "add devices",
                  missing_,
                  reasons_,
                  "\"gpushm cdi list\" shows the available devices; \"gpushm cdi generate\" "
                  "describes this machine's GPUs");
    }
    std::vector<selected> selected;
    for (document_part& each : parts_) {
      if (each.filtered && chosen_.filter_by_capabilities) {
        filter(each);
      }
      std::move(each.grants.begin(), each.grants.end(), std::back_inserter(selected));
    }
    return selected;
  }

 private:
  struct document_part {
    const cdi::document* content = nullptr;
    bool filtered = true;  ///< no device was requested by its qualified name
    std::vector<selected> grants = {};
    std::vector<const cdi::device*> devices = {};
  };

  void miss(const std::string& shown, const std::string& name) {
    missing_ += missing_.empty() ? "" : ", ";
    missing_ += shown;
    reasons_ += reasons_.empty() ? "" : "; ";
    reasons_ += from_.why_not(name);
  }

  document_part& part_of(const cdi::document& content, const std::string& reason) {
    const auto known = std::find_if(parts_.begin(), parts_.end(), [&](const document_part& each) {
      return each.content == &content;
    });
    if (known != parts_.end()) {
      return *known;
    }
    document_part& part = parts_.emplace_back(document_part{&content});
    part.grants.push_back({{content.kind, content.changes}, reason, {}});
    return part;
  }

  void give(const std::string& name, const std::string& reason, bool filtered) {
    const cdi::registered_device device = from_.find(name);
    document_part& part = part_of(device.from->content, reason);
    part.filtered = part.filtered && filtered;
    // A device may have several names, such as an index and a UUID.
    const auto same = [&](const cdi::device* given) {
      return given->changes == device.found->changes;
    };
    if (std::none_of(part.devices.begin(), part.devices.end(), same)) {
      part.devices.push_back(device.found);
      part.grants.push_back({{name, device.found->changes}, reason, {}});
    }
  }

  void add_qualified(const requested_device& device) {
    if (from_.find(device.name).found == nullptr) {
      miss(device.name, device.name);
    } else {
      give(device.name, device.reason, false);
    }
  }

  template <typename Action>
  bool for_each_of_default_kind(Action&& act) {
    bool any = false;
    for (const auto& [name, device] : from_.devices()) {
      if (device.from->content.kind == chosen_.default_kind) {
        any = true;
        act(name, device);
      }
    }
    return any;
  }

  void add_all(const requested_device& device) {
    const std::string name = qualified(chosen_.default_kind, "all");
    if (from_.find(name).found != nullptr) {
      give(name, device.reason, true);
    } else if (!for_each_of_default_kind(
                   [&](const std::string& gpu, const auto&) { give(gpu, device.reason, true); })) {
      miss("all", name);
    }
  }

  // The driver's files without a GPU.
  void add_documents(const requested_device& requested_device) {
    const auto add = [&](const std::string&, const cdi::registered_device& device) {
      part_of(device.from->content, requested_device.reason);
    };
    if (!for_each_of_default_kind(add)) {
      miss("none", qualified(chosen_.default_kind, "all"));
    }
  }

  std::optional<std::string> device_named(const std::string& name) {
    const bool mig = name.find(':') != std::string::npos;
    for (const char* prefix : {"", mig ? "mig" : "gpu"}) {
      std::string candidate = qualified(chosen_.default_kind, prefix + name);
      if (from_.find(candidate).found != nullptr) {
        return candidate;
      }
    }
    return is_uuid(name) ? device_beginning_with(name) : std::nullopt;
  }

  std::optional<std::string> device_beginning_with(const std::string& name) {
    const std::string begin = qualified(chosen_.default_kind, name);
    const auto same_letter = [](char left, char right) {
      return left == right || (left ^ right) == ('a' ^ 'A');
    };
    std::vector<std::string> matches;
    for_each_of_default_kind([&](const std::string& each, const auto&) {
      if (each.size() >= begin.size() &&
          std::equal(begin.begin(), begin.end(), each.begin(), same_letter)) {
        matches.push_back(each);
      }
    });
    return matches.size() == 1 ? std::optional(matches.front()) : std::nullopt;
  }

  void filter(document_part& part) {
    if (!wanted_) {
      wanted_ = read_capabilities(request_.capabilities, chosen_);
    }
    for (selected& each : part.grants) {
      each.left_out = keep_capable(each.given.changes, *wanted_);
    }
  }

  const cdi::registry& from_;
  const request& request_;
  const settings& chosen_;
  std::vector<document_part> parts_;
  std::optional<capability_set> wanted_;
  std::string missing_;
  std::string reasons_;
};

}  // namespace

std::vector<selected> select_devices(const cdi::registry& registry,
                                     const request& request,
                                     const settings& chosen) {
  collector all(registry, request, chosen);
  for (const requested_device& each : request.devices) {
    all.add(each);
  }
  return all.finish();
}

}  // namespace gpushm::oci_runtime
