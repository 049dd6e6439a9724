// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/objects.hpp"

#include <algorithm>
#include <array>

#include "base/files/file.hpp"
#include "base/text/text.hpp"
#include "tests/support/fake_kube_api/admission.hpp"
#include "tests/support/fake_kube_api/convert.hpp"
#include "tests/support/fake_kube_api/validate.hpp"

namespace gpushm::testing {

namespace {

using nlohmann::json;

std::string in_quotes(std::string_view text) {
  return std::string("\"").append(text).append("\"");
}

json details_of(const object_path& path, const std::string& name) {
  return {{"name", name}, {"group", path.kind->group}, {"kind", path.kind->resource}};
}

reply not_found(const object_path& path) {
  return status_reply(404,
                      "NotFound",
                      path.qualified_resource() + " " + in_quotes(path.name) + " not found",
                      details_of(path, path.name));
}

reply bad_request(std::string_view message) {
  return status_reply(400, "BadRequest", message);
}

reply conflict(const object_path& path, std::string_view why) {
  return status_reply(409,
                      "Conflict",
                      std::string("Operation cannot be fulfilled on ")
                          .append(path.qualified_resource())
                          .append(" ")
                          .append(in_quotes(path.name))
                          .append(": ")
                          .append(why),
                      details_of(path, path.name));
}

reply shown(const object_path& path, json object, int status = 200) {
  from_stored(path, object);
  return json_reply(object, status);
}

reply invalid(const object_path& path,
              const std::string& name,
              const std::vector<field_cause>& why) {
  json causes = json::array();
  std::string list;
  for (const field_cause& each : why) {
    causes.push_back({{"reason", each.reason}, {"message", each.message}, {"field", each.field}});
    list.append(list.empty() ? "" : ", ").append(each.field).append(": ").append(each.message);
  }
  std::string message(path.kind->kind);
  if (!path.kind->group.empty()) {
    message.append(".").append(path.kind->group);
  }
  message.append(" ").append(in_quotes(name)).append(" is invalid: ");
  message.append(why.size() > 1 ? "[" + list + "]" : list);
  json details = details_of(path, name);
  details["causes"] = std::move(causes);
  return status_reply(422, "Invalid", message, details);
}

std::string random_suffix() {
  std::array<std::uint8_t, 5> bytes{};
  base::random_bytes(bytes);
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += "bcdfghjklmnpqrstvwxz2456789"[byte % 27U];
  }
  return text;
}

/// The body as a stored object of the path's kind, or the reply that refuses it.
struct body_object {
  json object;
  std::optional<reply> refused;
};

body_object object_in(const http_request& request, const object_path& path) {
  body_object body;
  const auto type = request.headers.find("content-type");
  if (type == request.headers.end() || !type->second.starts_with("application/json")) {
    body.refused = status_reply(415,
                                "UnsupportedMediaType",
                                "the body of the request was in an unknown format - accepted "
                                "media types include: application/json");
    return body;
  }
  body.object = json::parse(request.body, nullptr, false);
  if (!body.object.is_object()) {
    body.refused = bad_request("the object provided is unrecognized (must be of type " +
                               std::string(path.kind->kind) + ")");
    return body;
  }
  const std::string version = body.object.value("apiVersion", "");
  if (version != path.api_version() || body.object.value("kind", "") != path.kind->kind) {
    body.refused =
        bad_request("the API version in the data (" + version +
                    ") does not match the expected API version (" + path.api_version() + ")");
    return body;
  }
  if (!body.object.contains("metadata") || !body.object["metadata"].is_object()) {
    body.object["metadata"] = json::object();
  }
  const std::string space = body.object["metadata"].value("namespace", path.space);
  if (space != path.space) {
    body.refused = bad_request(
        "the namespace of the provided object does not match the namespace "
        "sent on the request");
    return body;
  }
  to_stored(path, body.object);
  drop_unknown_fields(path, body.object);
  return body;
}

reply forbidden(const object_path& path, const std::string& name, const std::string& why) {
  return status_reply(403,
                      "Forbidden",
                      path.qualified_resource() + " " + in_quotes(name) + " is forbidden: " + why,
                      details_of(path, name));
}

/// The reply if admission plugins reject the request; nullopt if they admit it.
std::optional<reply> rejection(const kube_state& state,
                               const object_path& path,
                               const http_request& request,
                               const json& object,
                               const json& before) {
  const std::string why = denial(state.options, path, request, object, before);
  const json& named = object.is_null() ? before : object;
  return why.empty() ? std::nullopt
                     : std::optional(forbidden(path, named.at("metadata").value("name", ""), why));
}

/// Updates managedFields. The time changes only if another client writes or the content differs.
void note_manager(const object_path& path,
                  const http_request& request,
                  json& object,
                  const json& before) {
  const auto agent = request.headers.find("user-agent");
  const std::string manager =
      agent == request.headers.end() ? "unknown" : agent->second.substr(0, agent->second.find('/'));
  json entry{{"manager", manager},
             {"operation", "Update"},
             {"apiVersion", path.api_version()},
             {"fieldsType", "FieldsV1"},
             {"fieldsV1", {{"f:spec", json::object()}}},
             {"time", time_text()}};
  json entries = json::array();
  if (!before.is_null()) {
    const bool same = object.value("spec", json()) == before.value("spec", json());
    for (const json& each : before.at("metadata").value("managedFields", json::array())) {
      if (each.at("manager") != manager || each.at("apiVersion") != path.api_version()) {
        entries.push_back(each);
      } else if (same) {
        entry["time"] = each.at("time");
      }
    }
  }
  entries.push_back(std::move(entry));
  object["metadata"]["managedFields"] = std::move(entries);
}

reply create(kube_state& state, object_path path, const http_request& request) {
  body_object body = object_in(request, path);
  if (body.refused) {
    return *body.refused;
  }
  json& meta = body.object["metadata"];
  path.name = meta.value("name", "");
  if (path.name.empty() && meta.contains("generateName")) {
    path.name = meta.value("generateName", "") + random_suffix();
    meta["name"] = path.name;
  }
  if (!meta.value("resourceVersion", "").empty()) {
    return bad_request("resourceVersion should not be set on objects to be created");
  }
  meta.erase("uid");
  if (path.name.empty()) {
    return invalid(path,
                   "",
                   {{"metadata.name",
                     "FieldValueRequired",
                     "Required value: name or generateName is required"}});
  }
  if (state.options.mutate) {
    state.options.mutate(body.object);
  }
  if (const auto wrong = validate(path, body.object, nullptr); !wrong.empty()) {
    return invalid(path, path.name, wrong);
  }
  if (auto refused = rejection(state, path, request, body.object, nullptr)) {
    return *refused;
  }
  const object_key key{path.kind, path.space, path.name};
  if (state.objects.contains(key)) {
    return status_reply(409,
                        "AlreadyExists",
                        path.qualified_resource() + " " + in_quotes(path.name) + " already exists",
                        details_of(path, path.name));
  }
  if (path.kind->has_status) {
    body.object.erase("status");
  }
  note_manager(path, request, body.object, nullptr);
  return shown(path, state.store(key, std::move(body.object)), 201);
}

reply replace(kube_state& state, const object_path& path, const http_request& request) {
  const object_key key{path.kind, path.space, path.name};
  const auto object = state.objects.find(key);
  if (object == state.objects.end()) {
    return not_found(path);
  }
  body_object body = object_in(request, path);
  if (body.refused) {
    return *body.refused;
  }
  const json before = object->second;
  json& meta = body.object["metadata"];
  const json& old = before.at("metadata");
  if (meta.value("name", "") != path.name) {
    return bad_request("the name of the object (" + meta.value("name", "") +
                       ") does not match the name on the URL (" + path.name + ")");
  }
  const std::string uid = meta.value("uid", "");
  if (!uid.empty() && uid != old.at("uid")) {
    return conflict(path,
                    "Precondition failed: UID in precondition: " + uid +
                        ", UID in object meta: " + old.at("uid").get<std::string>());
  }
  const std::string version = meta.value("resourceVersion", "");
  if (!version.empty() && version != old.at("resourceVersion")) {
    return conflict(path,
                    "the object has been modified; please apply your changes to the latest version "
                    "and try again");
  }
  if (path.subresource == "status") {
    json with_status = before;
    with_status["status"] = body.object.value("status", json::object());
    return shown(path, state.store(key, std::move(with_status)));
  }
  if (path.kind->has_status) {
    body.object.erase("status");
    if (before.contains("status")) {
      body.object["status"] = before.at("status");
    }
  }
  if (state.options.mutate) {
    state.options.mutate(body.object);
  }
  if (const auto wrong = validate(path, body.object, before); !wrong.empty()) {
    return invalid(path, path.name, wrong);
  }
  if (auto refused = rejection(state, path, request, body.object, before)) {
    return *refused;
  }
  note_manager(path, request, body.object, before);
  if (old.contains("deletionTimestamp")) {
    meta["deletionTimestamp"] = old.at("deletionTimestamp");
    if (meta.value("finalizers", json::array()).empty()) {
      state.drop(key);
      return shown(path, std::move(body.object));
    }
  }
  return shown(path, state.store(key, std::move(body.object)));
}

reply remove(kube_state& state, const object_path& path, const http_request& request) {
  const object_key key{path.kind, path.space, path.name};
  const auto object = state.objects.find(key);
  if (object == state.objects.end()) {
    return not_found(path);
  }
  if (auto refused = rejection(state, path, request, nullptr, object->second)) {
    return *refused;
  }
  const json options = json::parse(request.body, nullptr, false);
  const json::json_pointer where("/preconditions/uid");
  const std::string uid = object->second.at("metadata").at("uid");
  if (options.is_object() && options.contains(where) && options.at(where) != uid) {
    return conflict(path,
                    "Precondition failed: UID in precondition: " +
                        options.at(where).get<std::string>() + ", UID in object meta: " + uid);
  }
  if (!object->second.at("metadata").value("finalizers", json::array()).empty()) {
    json waiting = object->second;
    waiting["metadata"].emplace("deletionTimestamp", waiting["metadata"]["creationTimestamp"]);
    return shown(path, state.store(key, std::move(waiting)));
  }
  if (path.kind->group == "resource.k8s.io") {
    json last = object->second;  // its storage sets ReturnDeletedObject
    state.drop(key);
    return shown(path, std::move(last));
  }
  state.drop(key);
  json details = details_of(path, path.name);
  details["uid"] = uid;
  return json_reply({{"kind", "Status"},
                     {"apiVersion", "v1"},
                     {"metadata", json::object()},
                     {"status", "Success"},
                     {"details", details}});
}

std::size_t number_parameter(const http_request& request, const char* name) {
  const auto found = request.parameters.find(name);
  return found == request.parameters.end() ? 0
                                           : base::number<std::size_t>(found->second).value_or(0);
}

/// A continue token is "VERSION.COUNT": the version of the first page and the items sent so far.
reply list(kube_state& state, const object_path& path, const http_request& request) {
  const auto wanted = request.parameters.find("fieldSelector");
  const auto selector =
      parse_selector(wanted == request.parameters.end() ? std::string() : wanted->second);
  if (!selector) {
    return bad_request("field label not supported: " + wanted->second);
  }
  std::size_t start = 0;
  std::uint64_t version = state.version;
  const auto token = request.parameters.find("continue");
  if (token != request.parameters.end()) {
    const auto parts = base::split(token->second, ".");
    if (parts.size() != 2) {
      return bad_request("continue key is not valid");
    }
    version = base::number<std::uint64_t>(parts[0]).value_or(0);
    start = base::number<std::size_t>(parts[1]).value_or(0);
    if (version < state.expired) {
      return status_reply(410,
                          "Expired",
                          "The provided continue parameter is too old to display a consistent list "
                          "result.");
    }
  }
  std::vector<json> matching = state.list(path, *selector);
  start = std::min(start, matching.size());
  std::size_t limit = number_parameter(request, "limit");
  if (limit > 0 && state.options.longest_page > 0) {
    limit = std::min(limit, state.options.longest_page);
  }
  const std::size_t end = limit == 0 ? matching.size() : std::min(matching.size(), start + limit);
  json items = json::array();
  for (std::size_t at = start; at < end; ++at) {
    from_stored(path, matching[at]);
    matching[at].erase("apiVersion");
    matching[at].erase("kind");
    items.push_back(std::move(matching[at]));
  }
  json meta{{"resourceVersion", std::to_string(version)}};
  if (end < matching.size()) {
    meta["continue"] = std::to_string(version) + "." + std::to_string(end);
    meta["remainingItemCount"] = matching.size() - end;
  }
  return json_reply({{"kind", std::string(path.kind->kind) + "List"},
                     {"apiVersion", path.api_version()},
                     {"metadata", meta},
                     {"items", items}});
}

}  // namespace

reply answer_object_request(kube_state& state,
                            const object_path& path,
                            const http_request& request) {
  const bool collection = path.name.empty();
  if (request.method == "GET" && collection) {
    return list(state, path, request);
  }
  if (request.method == "GET") {
    const auto found = state.objects.find({path.kind, path.space, path.name});
    return found == state.objects.end() ? not_found(path) : shown(path, found->second);
  }
  if (request.method == "POST" && collection && (!path.kind->namespaced || !path.space.empty())) {
    return create(state, path, request);
  }
  if (request.method == "PUT" && !collection) {
    return replace(state, path, request);
  }
  if (request.method == "DELETE" && !collection && path.subresource.empty()) {
    return remove(state, path, request);
  }
  return status_reply(
      405, "MethodNotAllowed", "the server does not allow this method on the requested resource");
}

}  // namespace gpushm::testing
