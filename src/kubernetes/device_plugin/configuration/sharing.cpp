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

void sharing_reader::read_devices(const node& from,
                                  const std::string& path,
                                  device_selection& out) {
  const node& target = yaml::followed(from);
  if (target.is == node::shape::sequence) {
    in_.read_list(from, path, [&](const node& each, const std::string& at) {
      std::string name;
      if (!in_.read(each, at, name)) {
        return;
      }
      if (!names_device(name)) {
        in_.report(each,
                   fmt::format("{} cannot be {}", at, base::in_quotes(name)),
                   "write the index of a GPU (0) or MIG instance (\"0:1\"), or a UUID (GPU-..., "
                   "MIG-...)");
        return;
      }
      out.names.push_back(std::move(name));
    });
    if (target.children.empty()) {
      in_.report(from, path + " is an empty list", "write all, or remove it");
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
      from,
      fmt::format("{} cannot be {}",
                  path,
                  target.is == node::shape::scalar ? base::in_quotes(target.value) : "a mapping"),
      "write all, how many (1 or more), or a list of indices and UUIDs");
}

replicated_resource sharing_reader::read_resource(const node& from, const std::string& path) {
  replicated_resource out;
  bool named = false;
  std::int64_t replicas = 0;
  const auto read_name = [&](const node& value, const std::string& at, std::string& to) {
    if (!in_.read(value, at, to) || to.empty()) {
      return;
    }
    to = whole_resource_name(to);
    if (const auto why = resource_name_problem(to)) {
      in_.report(value,
                 fmt::format("{} cannot be {}: {}", at, base::in_quotes(to), *why),
                 "write a name like nvidia.com/gpu");
    }
  };
  const std::size_t before = in_.problem_count();
  in_.read_mapping(
      from,
      path,
      {{"name",
        [&](const node& value, const std::string& at) {
          read_name(value, at, out.name);
          named = true;
        }},
       {"rename",
        [&](const node& value, const std::string& at) { read_name(value, at, out.rename); }},
       {"devices",
        [&](const node& value, const std::string& at) { read_devices(value, at, out.devices); }},
       {"replicas", [&](const node& value, const std::string& at) {
          if (!in_.read(value, at, replicas)) {
            return;
          }
          if (replicas < 2 || replicas > max_replicas) {
            report_replicas(value, at, replicas);
          }
          out.replicas = static_cast<unsigned int>(replicas);
        }}});
  if ((!named || out.name.empty()) && in_.problem_count() == before) {
    in_.report(from, path + " has no name", "name the resource: name: nvidia.com/gpu");
  }
  return out;
}

void sharing_reader::report_replicas(const node& value,
                                     const std::string& at,
                                     std::int64_t replicas) {
  in_.report(value,
             fmt::format("{} cannot be {}", at, replicas),
             replicas < 2 ? fmt::format("write a number from 2 to {}", max_replicas)
                          : fmt::format("write a number from 2 to {}: a kubelet refuses a list of "
                                        "devices that is larger than 4 MiB",
                                        max_replicas));
}

void sharing_reader::read_time_slicing(const node& from, const std::string& path) {
  time_slicing& out = content_.slicing;
  slicing_at_ = &from;
  in_.read_mapping(
      from,
      path,
      {{"renameByDefault",
        [&](const node& value, const std::string& at) {
          in_.read(value, at, out.rename_by_default);
        }},
       {"failRequestsGreaterThanOne",
        [&](const node& value, const std::string& at) {
          in_.read(value, at, out.fail_requests_greater_than_one);
        }},
       {"resources",
        [&](const node& value, const std::string& at) {
          resources_at_ = &value;
          in_.read_list(value, at, [&](const node& each, const std::string& where) {
            resources_.push_back({read_resource(each, where), &each, where});
          });
        }},
       {"replicas",
        [&](const node& value, const std::string& at) {
          std::int64_t replicas = 0;
          if (!in_.read(value, at, replicas)) {
            return;
          }
          if (replicas < 2 || replicas > max_replicas) {
            report_replicas(value, at, replicas);
          }
          replicas_at_ = &value;
          replicas_ = static_cast<unsigned int>(replicas);
        }},
       // Earlier versions of NVIDIA's plugin had this key and accepted only an empty value.
       {"strategy", {}}});
}

void sharing_reader::read(const node& from, const std::string& path) {
  in_.read_mapping(from,
                   path,
                   {{"timeSlicing",
                     [&](const node& value, const std::string& at) {
                       if (!in_.is_null(value)) {
                         read_time_slicing(value, at);
                       }
                     }},
                    {"mps", [&](const node& value, const std::string& at) {
                       if (!in_.is_null(value)) {
                         in_.report(
                             value,
                             at + " requests NVIDIA's MPS, which this plugin does not provide",
                             "use sharing.timeSlicing, or NVIDIA's device plugin on this "
                             "node with --device-plugin off here");
                       }
                     }}});
}

void sharing_reader::read_misplaced_resources(const node& from, const std::string& path) {
  misplaced_at_ = &from;
  in_.read_list(from, path, [&](const node& each, const std::string& at) {
    resources_.push_back({read_resource(each, at), &each, at});
  });
}

void sharing_reader::complete(unfinished& each) {
  if (each.resource.replicas == 0) {
    each.resource.replicas = replicas_;
  }
  if (each.resource.replicas == 0) {
    in_.report(*each.at, each.path + " has no replicas", "set the number of replicas: replicas: 4");
  }
  if (content_.slicing.rename_by_default && each.resource.rename.empty()) {
    each.resource.rename = each.resource.name + ".shared";
    if (const auto why = resource_name_problem(each.resource.rename)) {
      in_.report(*each.at,
                 fmt::format("{} cannot be renamed to {}: {}",
                             each.path,
                             base::in_quotes(each.resource.rename),
                             *why),
                 "use a shorter rename");
    }
  }
  content_.slicing.resources.push_back(std::move(each.resource));
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
