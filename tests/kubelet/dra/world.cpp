// SPDX-License-Identifier: Apache-2.0
#include "tests/kubelet/dra/world.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gpushm/error.hpp"

namespace gpushm_testing {

namespace fs = std::filesystem;
using gpushm::errc;
using gpushm::error;
using gpushm::api_client::api_error;

class memory_cluster::watching : public subscription {
 public:
  watching(memory_cluster& cluster,
           std::string prefix,
           gpushm::api_client::collection_watch::handler handler)
      : of_(cluster), prefix_(std::move(prefix)), to_(std::move(handler)) {}
  ~watching() override {
    const std::lock_guard lock(of_.notify_mutex_);
    of_.watches_.remove(this);
  }
  [[nodiscard]] std::string failure() const override { return {}; }

  memory_cluster& of_;
  const std::string prefix_;
  const gpushm::api_client::collection_watch::handler to_;
};

memory_cluster::memory_cluster(std::vector<std::string> versions) : versions_(std::move(versions)) {
  put(std::string("/api/v1/nodes/") + test_node, {{"metadata", {{"uid", "node-uid-1"}}}});
}

void memory_cluster::fail_if_configured(const std::string& operation,
                                        const std::string& path) const {
  if (unreachable) {
    throw error(errc::peer_unreachable, operation, path, "connection refused", "start the server");
  }
  if (const int status = error_status; status != 0) {
    // A 404 as for an API version that the server does not serve.
    throw api_error(
        status, status == 404 ? "NotFound" : "Forbidden", operation, path, "not allowed");
  }
}

void memory_cluster::notify(const std::string& type, const std::string& path, const json& object) {
  const std::lock_guard lock(notify_mutex_);
  for (const watching* each : watches_) {
    if (path.starts_with(each->prefix_)) {
      each->to_.event({type, object});
    }
  }
}

json memory_cluster::stored(const std::string& path, json object) {
  json& metadata = object["metadata"];
  if (!metadata.contains("name")) {
    metadata["name"] = path.substr(path.rfind('/') + 1);
  }
  if (!metadata.contains("uid")) {
    metadata["uid"] = "made-" + std::to_string(last_version_ + 1);
  }
  metadata["resourceVersion"] = std::to_string(++last_version_);
  objects_[path] = object;
  return object;
}

void memory_cluster::hold_gets() {
  const std::lock_guard lock(held_mutex_);
  holding_ = true;
}

void memory_cluster::answer_gets() {
  const std::lock_guard lock(held_mutex_);
  holding_ = false;
  answered_.notify_all();
}

unsigned memory_cluster::held_gets() const {
  const std::lock_guard lock(held_mutex_);
  return held_;
}

json memory_cluster::get(const std::string& path) {
  ++gets;
  if (path.find("/resourceclaims/") != std::string::npos) {
    std::unique_lock lock(held_mutex_);
    ++held_;
    answered_.wait(lock, [this] { return !holding_; });
    --held_;
  }
  node_gets += path.starts_with("/api/v1/nodes/") ? 1U : 0U;
  fail_if_configured("get", path);
  const std::lock_guard lock(mutex_);
  const auto object = objects_.find(path);
  if (object == objects_.end()) {
    throw api_error(404,
                    "NotFound",
                    "get",
                    path,
                    "not found",
                    {},
                    std::chrono::seconds(0),
                    path.substr(path.rfind('/') + 1));
  }
  return object->second;
}

json memory_cluster::create(const std::string& path, const json& requested) {
  ++writes;
  fail_if_configured("create", path);
  json object = requested;
  if (mutate) {
    mutate(object);
  }
  const std::string at = path + "/" + object.at("metadata").at("name").get<std::string>();
  if (races > 0) {
    --races;
    json other = object;
    other["spec"]["devices"] = json::array();
    const std::lock_guard lock(mutex_);
    stored(at, other);  // the watch has not reported it yet
  }
  json created;
  {
    const std::lock_guard lock(mutex_);
    if (objects_.contains(at)) {
      throw api_error(409, "AlreadyExists", "create", path, "already exists");
    }
    created = stored(at, object);
  }
  notify("ADDED", at, created);
  return created;
}

json memory_cluster::replace(const std::string& path, const json& requested) {
  ++writes;
  fail_if_configured("replace", path);
  json object = requested;
  if (mutate) {
    mutate(object);
  }
  json created;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = objects_.find(path);
    if (entry == objects_.end()) {
      throw api_error(404, "NotFound", "replace", path, "not found");
    }
    if (object.at("metadata").value("resourceVersion", "") !=
        entry->second.at("metadata").at("resourceVersion")) {
      throw api_error(409, "Conflict", "replace", path, "the object has been modified");
    }
    created = stored(path, object);
  }
  notify("MODIFIED", path, created);
  return created;
}

void memory_cluster::remove(const std::string& path, const std::string& uid) {
  ++writes;
  fail_if_configured("delete", path);
  if (const int status = deletion_error_status; status != 0) {
    throw api_error(status, "Forbidden", "delete", path, "not allowed");
  }
  {
    const std::lock_guard lock(mutex_);
    const auto object = objects_.find(path);
    if (object == objects_.end()) {
      throw api_error(404, "NotFound", "delete", path, "not found");
    }
    if (!uid.empty() && object->second.at("metadata").at("uid") != uid) {
      throw api_error(409, "Conflict", "delete", path, "another UID");
    }
  }
  erase(path);
}

std::vector<std::string> memory_cluster::versions_of(const std::string& group) {
  ++discoveries;
  fail_if_configured("discover", group);
  const std::lock_guard lock(mutex_);
  return versions_;
}

std::unique_ptr<gpushm::dra::cluster::subscription> memory_cluster::subscribe(
    const std::string& path,
    const std::string& /*field_selector*/,
    const gpushm::api_client::collection_watch::handler& handler) {
  fail_if_configured("watch", path);
  auto created = std::make_unique<watching>(*this, path + "/", handler);
  const std::lock_guard lock(notify_mutex_);
  std::vector<json> items;
  {
    const std::lock_guard objects(mutex_);
    for (const auto& [at, object] : objects_) {
      if (at.starts_with(created->prefix_)) {
        json item = object;
        item.erase("apiVersion");
        item.erase("kind");
        items.push_back(std::move(item));
      }
    }
  }
  handler.listed(items);
  watches_.push_back(created.get());
  return created;
}

json memory_cluster::put(const std::string& path, json object) {
  json created;
  bool known = false;
  {
    const std::lock_guard lock(mutex_);
    known = objects_.contains(path);
    created = stored(path, std::move(object));
  }
  notify(known ? "MODIFIED" : "ADDED", path, created);
  return created;
}

void memory_cluster::erase(const std::string& path) {
  json gone;
  {
    const std::lock_guard lock(mutex_);
    const auto object = objects_.find(path);
    if (object == objects_.end()) {
      return;
    }
    gone = object->second;
    objects_.erase(object);
  }
  notify("DELETED", path, gone);
}

std::optional<json> memory_cluster::find(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(path);
  return found != objects_.end() ? std::optional(found->second) : std::nullopt;
}

std::vector<std::string> memory_cluster::paths(const std::string& prefix) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> result;
  for (const auto& [path, object] : objects_) {
    if (path.starts_with(prefix)) {
      result.push_back(path);
    }
  }
  return result;
}

void memory_cluster::set_versions(std::vector<std::string> versions) {
  const std::lock_guard lock(mutex_);
  versions_ = std::move(versions);
}

std::string directory_domains::open(const std::string& domain) {
  if (open_fails) {
    throw error(errc::too_many_descriptors, "open domain", domain, "no descriptors left");
  }
  ++opened;
  fs::create_directories(root_ + "/" + domain);
  return root_ + "/" + domain;
}

void directory_domains::close(const std::string& domain) {
  if (broker_is_away) {
    throw error(errc::broker_unreachable, "close domain", domain, "connection refused");
  }
  if (close_fails) {
    throw error(errc::system_error, "close domain", domain, "Device or resource busy (EBUSY)");
  }
  fs::remove_all(root_ + "/" + domain);
}

std::vector<std::string> directory_domains::list() const {
  return names_in(root_);
}

std::string broker_domains::open(const std::string& domain) {
  const std::lock_guard lock(mutex_);
  const std::string directory = root_ + "/" + domain;
  if (!open_.contains(domain)) {
    std::error_code failed;
    fs::create_directories(directory, failed);
    if (failed) {
      throw error(errc::system_error, "open domain", domain, failed.message());
    }
    gpushm::broker_options options;
    options.socket_path = directory + "/socket";
    options.domain = domain;
    options.mode = 0666;
    open_.emplace(domain, gpushm::broker::start(options));
  }
  return directory;
}

void broker_domains::close(const std::string& domain) {
  const std::lock_guard lock(mutex_);
  open_.erase(domain);
  fs::remove_all(root_ + "/" + domain);
}

std::vector<std::string> broker_domains::list() const {
  return names_in(root_);
}

std::string claim_path(const claim_reference& claim, const std::string& version) {
  return "/apis/resource.k8s.io/" + version + "/namespaces/" + claim.name_space +
         "/resourceclaims/" + claim.name;
}

std::string slices_path(const std::string& version) {
  return "/apis/resource.k8s.io/" + version + "/resourceslices";
}

std::string uid_of(unsigned number) {
  std::array<char, 37> text{};
  std::snprintf(text.data(), text.size(), "%08x-1111-4222-8333-444444444444", number);
  return text.data();
}

claim_reference claim_number(unsigned number) {
  return {"default", "claim-" + std::to_string(number), uid_of(number)};
}

json claim_object(const claim_reference& claim, const std::vector<test_result>& results) {
  json list = json::array();
  for (const test_result& each : results) {
    json result{{"request", each.request},
                {"driver", each.driver},
                {"pool", each.pool},
                {"device", each.device}};
    if (!each.share_id.empty()) {
      result["shareID"] = each.share_id;
    }
    list.push_back(std::move(result));
  }
  return {{"apiVersion", "resource.k8s.io/v1"},
          {"kind", "ResourceClaim"},
          {"metadata", {{"namespace", claim.name_space}, {"name", claim.name}, {"uid", claim.uid}}},
          {"status",
           {{"allocation", {{"devices", {{"results", std::move(list)}}}}},
            {"reservedFor",
             json::array({{{"resource", "pods"}, {"name", "pod"}, {"uid", "pod-uid"}}})}}}};
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code failed;
  for (const auto& each : fs::directory_iterator(directory, failed)) {
    names.push_back(each.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

}  // namespace gpushm_testing
