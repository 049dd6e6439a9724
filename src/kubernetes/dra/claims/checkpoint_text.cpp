// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/text/hex.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/dra/claims/allocation.hpp"
#include "kubernetes/dra/claims/checkpoint.hpp"

// {"checksum": "…", "data": {…}, "version": 1}. The checksum excludes the version, which is
// read first: a newer version may compute it differently. Names are stored; never rename them.

namespace gpushm::dra {

namespace {

constexpr int version = 1;
constexpr const char* operation = "read checkpoint";

nlohmann::json to_json(const prepared_claim& claim) {
  nlohmann::json devices = nlohmann::json::array();
  for (const prepared_device& each : claim.devices) {
    nlohmann::json device{{"requests", each.requests},
                          {"pool", each.pool},
                          {"device", each.device},
                          {"cdiDevices", each.cdi_devices}};
    if (each.share_id) {
      device["shareID"] = *each.share_id;
    }
    if (each.ipc) {
      device["ipc"] = true;
    }
    devices.push_back(std::move(device));
  }
  return {{"namespace", claim.claim.name_space},
          {"name", claim.claim.name},
          {"domain", claim.domain},
          {"devices", std::move(devices)}};
}

prepared_claim claim_from_json(const std::string& uid, const nlohmann::json& document) {
  prepared_claim claim;
  claim.claim = {
      document.at("namespace").get<std::string>(), document.at("name").get<std::string>(), uid};
  claim.domain = document.at("domain").get<std::string>();
  for (const nlohmann::json& each : document.at("devices")) {
    prepared_device device;
    device.requests = each.at("requests").get<std::vector<std::string>>();
    device.pool = each.at("pool").get<std::string>();
    device.device = each.at("device").get<std::string>();
    device.cdi_devices = each.at("cdiDevices").get<std::vector<std::string>>();
    if (each.contains("shareID")) {
      device.share_id = each.at("shareID").get<std::string>();
    }
    device.ipc = each.value("ipc", false);
    claim.devices.push_back(std::move(device));
  }
  return claim;
}

[[noreturn]] void throw_damaged(const std::string& path, const std::string& cause) {
  throw error(errc::invalid_argument,
              operation,
              path,
              cause,
              "prepared claims keep running; to start without them, remove the file and "
              "its copy that ends in .bak");
}

void check_version(const nlohmann::json& whole, const std::string& path) {
  const auto entry = whole.find("version");
  if (entry == whole.end() || !entry->is_number_integer() || entry->get<std::int64_t>() < 1) {
    throw_damaged(path, "it has no version");
  }
  if (entry->get<std::int64_t>() > version) {
    throw error(
        errc::unsupported_version,
        operation,
        path,
        fmt::format("it has version {}, but this gpushm reads version {}", entry->dump(), version),
        "install the newer gpushm again, or drain the node and remove the file and its copy "
        "that ends in .bak");
  }
}

}  // namespace

std::string to_text(const checkpoint& state) {
  nlohmann::json entries = nlohmann::json::object();
  for (const auto& [uid, claim] : state.claims) {
    entries[uid] = to_json(claim);
  }
  const nlohmann::json data{{"bootID", state.boot_id}, {"claims", std::move(entries)}};
  const nlohmann::json whole{
      {"version", version}, {"checksum", base::fnv1a_text(data.dump())}, {"data", data}};
  return whole.dump() + "\n";
}

checkpoint from_text(const std::string& text, const std::string& path) {
  const nlohmann::json whole = nlohmann::json::parse(text, nullptr, false);
  if (!whole.is_object()) {
    throw_damaged(path, "it is incomplete");
  }
  check_version(whole, path);
  const auto data = whole.find("data");
  const auto checksum = whole.find("checksum");
  if (data == whole.end() || checksum == whole.end() ||
      *checksum != base::fnv1a_text(data->dump())) {
    throw_damaged(path, "its checksum is wrong");
  }
  checkpoint state;
  try {
    state.boot_id = data->at("bootID").get<std::string>();
    for (const auto& [uid, entry] : data->at("claims").items()) {
      prepared_claim claim = claim_from_json(uid, entry);
      // These become parts of paths.
      check(claim.claim);
      if (claim.domain != domain_of(uid)) {
        throw_damaged(path, fmt::format("claim {} has the domain of another one", uid));
      }
      state.claims.emplace(uid, std::move(claim));
    }
  } catch (const nlohmann::json::exception& wrong) {
    throw_damaged(path, wrong.what());
  }
  return state;
}

}  // namespace gpushm::dra
