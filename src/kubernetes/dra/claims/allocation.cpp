// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/claims/allocation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "gpushm/error.hpp"
#include "kubernetes/dra/claims/claim_document.hpp"

namespace gpushm::dra {

namespace {

constexpr std::string_view prefix = "claim-";
constexpr const char* operation = "prepare claim";
constexpr std::size_t max_label_bytes = 63;

bool is_label_character(char character) {
  return (character >= 'a' && character <= 'z') || (character >= '0' && character <= '9') ||
         character == '-';
}

/// Safe as a path component: cannot refer to another directory.
bool is_safe(std::string_view text, std::size_t max_bytes, std::string_view also) {
  return !text.empty() && text.size() <= max_bytes && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), [&](char each) {
           return is_label_character(each) || also.find(each) != std::string_view::npos;
         });
}

void check_part(const claim_reference& claim,
                std::string_view subject,
                std::string_view text,
                std::size_t max_bytes,
                std::string_view also) {
  if (!is_safe(text, max_bytes, also)) {
    throw error(errc::invalid_argument,
                "check claim",
                to_string(claim),
                fmt::format("{} \"{}\" is not valid", subject, text));
  }
}

std::string text_at(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// The allocation's results of this driver; empty without an allocation.
std::vector<nlohmann::json> results_of(const nlohmann::json& object, const result_owner& owner) {
  static const nlohmann::json::json_pointer place("/status/allocation/devices/results");
  std::vector<nlohmann::json> own_results;
  if (!object.contains(place) || !object.at(place).is_array()) {
    return own_results;
  }
  for (const nlohmann::json& result : object.at(place)) {
    if (text_at(result, "driver") == owner.driver && text_at(result, "pool") == owner.pool) {
      own_results.push_back(result);
    }
  }
  return own_results;
}

/// "main/sub" names an alternative of the request "main"; containers name the request.
std::string request_of(const nlohmann::json& result) {
  const std::string text = text_at(result, "request");
  return text.substr(0, text.find('/'));
}

bool applies_to(const nlohmann::json& config, const std::string& request) {
  const auto requests = config.find("requests");
  if (requests == config.end() || !requests->is_array() || requests->empty()) {
    return true;
  }
  // A request with alternatives is named alone, or with one of them.
  const std::string main = request.substr(0, request.find('/'));
  return std::any_of(requests->begin(), requests->end(), [&](const nlohmann::json& each) {
    return each == request || each == main;
  });
}

/// Reads {"apiVersion": "gpushm.dev/v1", "kind": "ShareParameters", "ipc": true}.
bool ipc_in(const nlohmann::json& parameters, const claim_reference& claim) {
  const auto refuse = [&](const std::string& cause) {
    throw error(errc::invalid_argument,
                operation,
                to_string(claim),
                "its parameters for gpushm.dev are not valid: " + cause,
                "write {apiVersion: gpushm.dev/v1, kind: ShareParameters, ipc: true}");
  };
  if (!parameters.is_object()) {
    refuse("they are not an object");
  }
  bool ipc = false;
  for (const auto& [key, value] : parameters.items()) {
    if (key == "apiVersion" || key == "kind") {
      const char* const expected = key == "kind" ? "ShareParameters" : "gpushm.dev/v1";
      if (value != expected) {
        refuse(fmt::format("{} is not {}", key, expected));
      }
    } else if (key == "ipc" && value.is_boolean()) {
      ipc = value.get<bool>();
    } else if (key == "ipc") {
      refuse("ipc is neither true nor false");
    } else {
      refuse(fmt::format("unknown field \"{}\"", key));
    }
  }
  if (!parameters.contains("apiVersion") || !parameters.contains("kind")) {
    refuse("apiVersion or kind is missing");
  }
  return ipc;
}

/// The parameter ipc of a result: from its class, then from the claim, which takes precedence. The
/// API server lists them in this order.
bool is_ipc(const nlohmann::json& object,
            const nlohmann::json& result,
            const claim_reference& claim,
            const result_owner& owner) {
  static const nlohmann::json::json_pointer place("/status/allocation/devices/config");
  bool ipc = false;
  if (!object.contains(place) || !object.at(place).is_array()) {
    return ipc;
  }
  for (const nlohmann::json& each : object.at(place)) {
    const auto opaque = each.is_object() ? each.find("opaque") : each.end();
    if (opaque == each.end() || !opaque->is_object() ||
        text_at(*opaque, "driver") != owner.driver ||
        !applies_to(each, text_at(result, "request"))) {
      continue;
    }
    ipc = ipc_in(opaque->value("parameters", nlohmann::json()), claim);
  }
  return ipc;
}

std::string uid_in(const nlohmann::json& object) {
  const auto metadata = object.find("metadata");
  return metadata != object.end() && metadata->is_object() ? text_at(*metadata, "uid")
                                                           : std::string();
}

[[noreturn]] void throw_not_a_claim(const char* doing, const claim_reference& claim) {
  throw error(errc::protocol_error,
              doing,
              to_string(claim),
              "the API server's reply is not a ResourceClaim");
}

/// Merges a result into its device: several results may name the same device.
prepared_device& device_for(prepared_claim& prepared, const nlohmann::json& result) {
  prepared_device device;
  device.pool = text_at(result, "pool");
  device.device = text_at(result, "device");
  if (const std::string share = text_at(result, "shareID"); !share.empty()) {
    device.share_id = share;
  }
  const auto same =
      std::find_if(prepared.devices.begin(), prepared.devices.end(), [&](const auto& each) {
        return each.device == device.device && each.share_id == device.share_id;
      });
  if (same != prepared.devices.end()) {
    return *same;
  }
  device.cdi_devices.push_back(
      fmt::format("{}={}", claim_kind, cdi_device_name(prepared.claim.uid, device.device)));
  return prepared.devices.emplace_back(std::move(device));
}

}  // namespace

std::string to_string(const claim_reference& claim) {
  return claim.name_space + "/" + claim.name;
}

bool may_be_uid(const std::string& text) {
  return is_safe(text, max_label_bytes, "");
}

void check(const claim_reference& claim) {
  constexpr std::size_t max_name_bytes = 253;
  check_part(claim, "the namespace", claim.name_space, max_label_bytes, "");
  check_part(claim, "the name", claim.name, max_name_bytes, ".");
  // UIDs are always lower-case; a device name and a path contain it.
  check_part(claim, "the UID", claim.uid, max_label_bytes, "");
}

std::string domain_of(const std::string& claim_uid) {
  return fmt::format("{}{}", prefix, claim_uid);
}

std::string claim_uid_of(const std::string& domain) {
  return domain.starts_with(prefix) ? domain.substr(prefix.size()) : std::string();
}

prepared_claim read_allocation(const nlohmann::json& object,
                               const claim_reference& claim,
                               const result_owner& owner) {
  if (!object.is_object()) {
    throw_not_a_claim(operation, claim);
  }
  if (const std::string uid = uid_in(object); uid != claim.uid) {
    throw error(
        errc::gone_or_replaced,
        operation,
        to_string(claim),
        fmt::format(
            "the kubelet requested the claim with UID {}, but the claim of that name has {}",
            claim.uid,
            uid),
        "it was deleted and recreated; the kubelet will request the new one");
  }
  prepared_claim prepared{claim, domain_of(claim.uid), {}};
  for (const nlohmann::json& result : results_of(object, owner)) {
    prepared_device& device = device_for(prepared, result);
    device.ipc = is_ipc(object, result, claim, owner) || device.ipc;
    const std::string request = request_of(result);
    if (std::find(device.requests.begin(), device.requests.end(), request) ==
        device.requests.end()) {
      device.requests.push_back(request);
    }
  }
  if (prepared.devices.empty()) {
    throw error(
        errc::invalid_argument,
        operation,
        to_string(claim),
        fmt::format("it has no allocation from driver {} and pool {}", owner.driver, owner.pool),
        "check its status: kubectl get resourceclaim -o yaml");
  }
  return prepared;
}

claim_use use_of(const nlohmann::json& object,
                 const claim_reference& claim,
                 const result_owner& owner) {
  const std::string uid = object.is_object() ? uid_in(object) : std::string();
  if (uid.empty()) {
    throw_not_a_claim("read claim", claim);
  }
  if (uid != claim.uid) {
    return claim_use::gone;
  }
  return results_of(object, owner).empty() ? claim_use::unallocated : claim_use::in_use;
}

}  // namespace gpushm::dra
