// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/fake_kube_api.hpp"

#include <algorithm>
#include <stdexcept>

#include "tests/support/fake_kube_api/certificates.hpp"
#include "tests/support/fake_kube_api/convert.hpp"
#include "tests/support/fake_kube_api/http_server.hpp"
#include "tests/support/fake_kube_api/routes.hpp"
#include "tests/support/fake_kube_api/store.hpp"

namespace gpushm::testing {

namespace {

object_path checked_path(const std::string& path) {
  auto found = parse_path(path);
  if (!found) {
    throw std::runtime_error("not a path of the fake API server: " + path);
  }
  return *std::move(found);
}

object_path checked_object(const std::string& path) {
  object_path found = checked_path(path);
  if (found.name.empty()) {
    throw std::runtime_error("not the path of an object: " + path);
  }
  return found;
}

object_key key_of(const object_path& path) {
  return {path.kind, path.space, path.name};
}

}  // namespace

class fake_kube_api::impl {
 public:
  explicit impl(fake_kube_options options) : state(std::move(options)) {
    if (state.options.tls) {
      authority.emplace("fake authority");
      const std::vector<std::string> names = state.options.certificate_names.empty()
                                                 ? std::vector{state.options.address}
                                                 : state.options.certificate_names;
      tls.emplace(
          authority->issue_server(names), authority->pem(), state.options.client_certificates);
    }
    start();
  }

  void start() {
    {
      const std::lock_guard lock(state.mutex);
      state.stopping = false;
    }
    server =
        std::make_unique<http_server>(state.options.address,
                                      port,
                                      tls ? &*tls : nullptr,
                                      [this](const http_request& request, http_answer& answer) {
                                        return serve_request(state, request, answer);
                                      });
    port = server->port();
  }

  void stop() {
    {
      const std::lock_guard lock(state.mutex);
      state.stopping = true;
      state.changed.notify_all();
    }
    server.reset();
  }

  kube_state state;
  std::optional<test_authority> authority;
  std::optional<tls_settings> tls;
  int port = state.options.port;
  std::unique_ptr<http_server> server;
};

fake_kube_api::fake_kube_api(fake_kube_options options)
    : impl_(std::make_unique<impl>(std::move(options))) {}

fake_kube_api::~fake_kube_api() {
  impl_->stop();
}

std::string fake_kube_api::url() const {
  const fake_kube_options& options = impl_->state.options;
  const bool brackets = options.address.find(':') != std::string::npos;
  std::string text(options.tls ? "https://" : "http://");
  text.append(brackets ? "[" : "").append(options.address).append(brackets ? "]" : "");
  return text.append(":").append(std::to_string(impl_->port));
}

int fake_kube_api::port() const {
  return impl_->port;
}

std::string fake_kube_api::authority_pem() const {
  return impl_->authority ? impl_->authority->pem() : std::string();
}

fake_kube_api::client_identity fake_kube_api::make_client_identity(const std::string& name) const {
  if (!impl_->authority) {
    throw std::runtime_error("without TLS the fake API server has no certificate authority");
  }
  identity_pem created = impl_->authority->issue_client(name);
  return {std::move(created.certificate), std::move(created.key)};
}

fake_kube_api::json fake_kube_api::put(const std::string& path, json object) {
  const object_path where = checked_object(path);
  if (!object.contains("metadata")) {
    object["metadata"] = json::object();
  }
  to_stored(where, object);
  const std::lock_guard lock(impl_->state.mutex);
  json stored = impl_->state.store(key_of(where), std::move(object));
  from_stored(where, stored);
  return stored;
}

bool fake_kube_api::erase(const std::string& path) {
  const object_key key = key_of(checked_object(path));
  const std::lock_guard lock(impl_->state.mutex);
  const bool was = impl_->state.objects.contains(key);
  if (was) {
    impl_->state.drop(key);
  }
  return was;
}

std::optional<fake_kube_api::json> fake_kube_api::find(const std::string& path) const {
  const object_path where = checked_object(path);
  const std::lock_guard lock(impl_->state.mutex);
  const auto entry = impl_->state.objects.find(key_of(where));
  if (entry == impl_->state.objects.end()) {
    return std::nullopt;
  }
  json object = entry->second;
  from_stored(where, object);
  return object;
}

std::vector<fake_kube_api::json> fake_kube_api::items(const std::string& path) const {
  const object_path where = checked_path(path);
  const std::lock_guard lock(impl_->state.mutex);
  auto all = impl_->state.list(where, {});
  for (json& each : all) {
    from_stored(where, each);
  }
  return all;
}

bool fake_kube_api::wait_for(const std::string& path,
                             const std::function<bool(const std::vector<json>&)>& is,
                             std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(impl_->state.mutex);
      seen = impl_->state.version;
    }
    if (is(items(path))) {
      return true;
    }
    std::unique_lock lock(impl_->state.mutex);
    if (!impl_->state.changed.wait_until(
            lock, deadline, [&] { return impl_->state.version != seen; })) {
      return false;
    }
  }
}

std::size_t fake_kube_api::watches() const {
  const std::lock_guard lock(impl_->state.mutex);
  return impl_->state.watches;
}

bool fake_kube_api::wait_for_watches(std::size_t count, std::chrono::milliseconds timeout) const {
  std::unique_lock lock(impl_->state.mutex);
  return impl_->state.changed.wait_for(
      lock, timeout, [&] { return impl_->state.watches >= count; });
}

void fake_kube_api::end_watches() {
  const std::lock_guard lock(impl_->state.mutex);
  ++impl_->state.watch_ends;
  impl_->state.changed.notify_all();
}

void fake_kube_api::cut_watches() {
  const std::lock_guard lock(impl_->state.mutex);
  ++impl_->state.watch_cuts;
  impl_->state.changed.notify_all();
}

void fake_kube_api::send_bookmarks() {
  const std::lock_guard lock(impl_->state.mutex);
  ++impl_->state.bookmarks;
  impl_->state.changed.notify_all();
}

void fake_kube_api::expire_history() {
  const std::lock_guard lock(impl_->state.mutex);
  impl_->state.expire_events();
}

void fake_kube_api::set_tokens(std::vector<std::string> tokens) {
  const std::lock_guard lock(impl_->state.mutex);
  impl_->state.options.tokens = std::move(tokens);
}

void fake_kube_api::set_resource_versions(std::vector<std::string> versions) {
  const std::lock_guard lock(impl_->state.mutex);
  impl_->state.options.resource_versions = std::move(versions);
}

void fake_kube_api::fail(kube_failure failure) {
  const std::lock_guard lock(impl_->state.mutex);
  impl_->state.failures.push_back(std::move(failure));
}

void fake_kube_api::clear_failures() {
  const std::lock_guard lock(impl_->state.mutex);
  impl_->state.failures.clear();
}

void fake_kube_api::stop() {
  impl_->stop();
}

void fake_kube_api::start() {
  impl_->start();
}

std::vector<kube_request> fake_kube_api::requests() const {
  const std::lock_guard lock(impl_->state.mutex);
  return impl_->state.requests;
}

void fake_kube_api::clear_requests() {
  const std::lock_guard lock(impl_->state.mutex);
  impl_->state.requests.clear();
}

bool fake_kube_api::wait_for_request(const std::function<bool(const kube_request&)>& is,
                                     std::chrono::milliseconds timeout) const {
  std::unique_lock lock(impl_->state.mutex);
  return impl_->state.changed.wait_for(lock, timeout, [&] {
    return std::any_of(impl_->state.requests.begin(), impl_->state.requests.end(), is);
  });
}

std::size_t fake_kube_api::connections() const {
  return impl_->server ? impl_->server->accepted() : 0;
}

std::size_t fake_kube_api::open_connections() const {
  return impl_->server ? impl_->server->open() : 0;
}

}  // namespace gpushm::testing
