// SPDX-License-Identifier: Apache-2.0
// `sharing` of the NVIDIA device plugin's file, also in a widely published form.
#include <fmt/core.h>

#include <algorithm>

#include "base/text/quoted.hpp"
#include "base/text/text.hpp"
#include "containers/yaml/scalar.hpp"
#include "kubernetes/device_plugin/configuration/reader.hpp"

namespace gpushm::device_plugin {

namespace {

using node = configuration_reader::node;

// A kubelet reads lists of devices of up to 4 MiB, which the replicas of one GPU fit into. A plan
// checks the list of all GPUs.
constexpr std::int64_t max_replicas = 50'000;

bool is_hexadecimal(std::string_view text) {
  return text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

// With or without dashes.
bool is_uuid(std::string_view text) {
  constexpr std::size_t plain_size = 32;
  constexpr std::size_t usual_size = 36;
  if (text.size() == plain_size) {
    return is_hexadecimal(text);
  }
  if (text.size() != usual_size) {
    return false;
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? text[i] != '-' : !is_hexadecimal(text.substr(i, 1))) {
      return false;
    }
  }
  return true;
}

bool is_index(std::string_view text) {
  return base::number<unsigned int>(text).has_value();
}

// Drivers before 470 named an instance "MIG-GPU-<uuid>/3/0".
bool is_old_mig_uuid(std::string_view text) {
  const auto parts = base::split(text, "/");
  return parts.size() == 3 && parts[0].starts_with("GPU-") && is_uuid(parts[0].substr(4)) &&
         is_index(parts[1]) && is_index(parts[2]);
}

bool names_device(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    return is_index(text.substr(0, colon)) && is_index(text.substr(colon + 1));
  }
  if (text.starts_with("GPU-")) {
    return is_uuid(text.substr(4));
  }
  if (text.starts_with("MIG-")) {
    return is_uuid(text.substr(4)) || is_old_mig_uuid(text.substr(4));
  }
  return is_index(text);
}

}  // namespace

void sharing_reader::read_devices(const node& source,
                                  const std::string& path,
                                  device_selection& out) {
  const node& target = yaml::followed(source);
  if (target.is == node::shape::sequence) {
    in_.read_list(source, path, [&](const node& each, const std::string& place) {
      std::string name;
      if (!in_.read(each, place, name)) {
        return;
      }
      if (!names_device(name)) {
        in_.report(each,
                   fmt::format("{} cannot be {}", place, base::in_quotes(name)),
                   "write the index of a GPU (0) or MIG instance (\"0:1\"), or a UUID (GPU-..., "
                   "MIG-...)");
        return;
      }
      out.names.push_back(std::move(name));
    });
    if (target.children.empty()) {
      in_.report(source, path + " is an empty list", "write all, or remove it");
    }
    return;
  }
  const auto value = target.is == node::shape::scalar ? yaml::value_of(target) : std::nullopt;
  const auto* const number = value ? std::get_if<std::int64_t>(&*value) : nullptr;
  const auto* const text = value ? std::get_if<std::string>(&*value) : nullptr;
  if (text != nullptr && *text == "all") {
    return;
  }
  if (number != nullptr && *number > 0) {
    out.count = static_cast<std::uint64_t>(*number);
    return;
  }
  in_.report(
      source,
      fmt::format("{} cannot be {}",
                  path,
                  target.is == node::shape::scalar ? base::in_quotes(target.value) : "a mapping"),
      "write all, how many (1 or more), or a list of indices and UUIDs");
}

replicated_resource sharing_reader::read_resource(const node& source, const std::string& path) {
  replicated_resource out;
  bool named = false;
  std::int64_t replicas = 0;
  const auto read_name = [&](const node& value, const std::string& place, std::string& text) {
    if (!in_.read(value, place, text) || text.empty()) {
      return;
    }
    text = whole_resource_name(text);
    if (const auto why = resource_name_problem(text)) {
      in_.report(value,
                 fmt::format("{} cannot be {}: {}", place, base::in_quotes(text), *why),
                 "write a name like nvidia.com/gpu");
    }
  };
  const std::size_t before = in_.problem_count();
  in_.read_mapping(
      source,
      path,
      {{"name",
        [&](const node& value, const std::string& place) {
          read_name(value, place, out.name);
          named = true;
        }},
       {"rename",
        [&](const node& value, const std::string& place) { read_name(value, place, out.rename); }},
       {"devices",
        [&](const node& value, const std::string& place) {
          read_devices(value, place, out.devices);
        }},
       {"replicas", [&](const node& value, const std::string& place) {
          if (!in_.read(value, place, replicas)) {
            return;
          }
          if (replicas < 2 || replicas > max_replicas) {
            report_replicas(value, place, replicas);
          }
          out.replicas = static_cast<unsigned int>(replicas);
        }}});
  if ((!named || out.name.empty()) && in_.problem_count() == before) {
    in_.report(source, path + " has no name", "name the resource: name: nvidia.com/gpu");
  }
  return out;
}

void sharing_reader::report_replicas(const node& value,
                                     const std::string& path,
                                     std::int64_t replicas) {
  in_.report(value,
             fmt::format("{} cannot be {}", path, replicas),
             replicas < 2 ? fmt::format("write a number from 2 to {}", max_replicas)
                          : fmt::format("write a number from 2 to {}: a kubelet refuses a list of "
                                        "devices that is larger than 4 MiB",
                                        max_replicas));
}

void sharing_reader::read_time_slicing(const node& source, const std::string& path) {
  time_slicing& out = content_.slicing;
  slicing_at_ = &source;
  in_.read_mapping(
      source,
      path,
      {{"renameByDefault",
        [&](const node& value, const std::string& place) {
          in_.read(value, place, out.rename_by_default);
        }},
       {"failRequestsGreaterThanOne",
        [&](const node& value, const std::string& place) {
          in_.read(value, place, out.fail_requests_greater_than_one);
        }},
       {"resources",
        [&](const node& value, const std::string& place) {
          resources_at_ = &value;
          in_.read_list(value, place, [&](const node& each, const std::string& where) {
            resources_.push_back({read_resource(each, where), &each, where});
          });
        }},
       {"replicas",
        [&](const node& value, const std::string& place) {
          std::int64_t replicas = 0;
          if (!in_.read(value, place, replicas)) {
            return;
          }
          if (replicas < 2 || replicas > max_replicas) {
            report_replicas(value, place, replicas);
          }
          replicas_at_ = &value;
          replicas_ = static_cast<unsigned int>(replicas);
        }},
       // Earlier versions of NVIDIA's plugin had this key and accepted only an empty value.
       {"strategy", {}}});
}

void sharing_reader::read(const node& source, const std::string& path) {
  in_.read_mapping(source,
                   path,
                   {{"timeSlicing",
                     [&](const node& value, const std::string& place) {
                       if (!in_.is_null(value)) {
                         read_time_slicing(value, place);
                       }
                     }},
                    {"mps", [&](const node& value, const std::string& place) {
                       if (!in_.is_null(value)) {
                         in_.report(
                             value,
                             place + " requests NVIDIA's MPS, which this plugin does not provide",
                             "use sharing.timeSlicing, or NVIDIA's device plugin on this "
                             "node with --device-plugin off here");
                       }
                     }}});
}

void sharing_reader::read_misplaced_resources(const node& source, const std::string& path) {
  misplaced_at_ = &source;
  in_.read_list(source, path, [&](const node& each, const std::string& place) {
    resources_.push_back({read_resource(each, place), &each, place});
  });
}

void sharing_reader::complete(unfinished& unfinished) {
  if (unfinished.resource.replicas == 0) {
    unfinished.resource.replicas = replicas_;
  }
  if (unfinished.resource.replicas == 0) {
    in_.report(*unfinished.at,
               unfinished.path + " has no replicas",
               "set the number of replicas: replicas: 4");
  }
  if (content_.slicing.rename_by_default && unfinished.resource.rename.empty()) {
    unfinished.resource.rename = unfinished.resource.name + ".shared";
    if (const auto why = resource_name_problem(unfinished.resource.rename)) {
      in_.report(*unfinished.at,
                 fmt::format("{} cannot be renamed to {}: {}",
                             unfinished.path,
                             base::in_quotes(unfinished.resource.rename),
                             *why),
                 "use a shorter rename");
    }
  }
  content_.slicing.resources.push_back(std::move(unfinished.resource));
}

void sharing_reader::finish() {
  const bool problems_before = in_.problem_count() > 0;
  if (misplaced_at_ != nullptr && replicas_at_ == nullptr) {
    in_.report(*misplaced_at_,
               "resources must be a mapping with gpus and mig, not a list",
               "put a list of replicated resources under sharing.timeSlicing.resources");
    return;
  }
  if (slicing_at_ == nullptr) {
    return;
  }
  if (replicas_at_ != nullptr && resources_.empty() && !problems_before) {
    resources_.push_back(
        {{"nvidia.com/gpu", "", {}, replicas_}, replicas_at_, "sharing.timeSlicing"});
  }
  if (resources_.empty() && !problems_before) {
    in_.report(resources_at_ != nullptr ? *resources_at_ : *slicing_at_,
               "sharing.timeSlicing.resources is empty",
               "list the replicated resources: [{name: nvidia.com/gpu, replicas: 4}]");
    return;
  }
  if (problems_before) {
    return;
  }
  for (unfinished& each : resources_) {
    complete(each);
  }
  if (replicas_at_ != nullptr && in_.problem_count() == 0) {
    in_.warn(*replicas_at_,
             "replicas does not belong directly under sharing.timeSlicing, and NVIDIA's device "
             "plugin rejects this file; it is read as:\n" +
                 canonical_time_slicing(content_.slicing));
  }
}

}  // namespace gpushm::device_plugin
