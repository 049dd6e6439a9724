// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kubelet/fake_kubelet.hpp"

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

#include "tests/support/process/deadline.hpp"

namespace gpushm_testing {

namespace fs = std::filesystem;
using gpushm::device_plugin::device;

/// Blocks only threads of its own server, not those on which plugins of this process reply.
class fake_kubelet::registration final : public v1beta1::Registration::Service {
 public:
  explicit registration(fake_kubelet& kubelet) : of_(kubelet) {}
  grpc::Status Register(grpc::ServerContext* context,
                        const v1beta1::RegisterRequest* request,
                        v1beta1::Empty* /*response*/) override {
    return of_.register_plugin(*context, *request);
  }

 private:
  fake_kubelet& of_;
};

std::size_t resource_view::healthy() const {
  return static_cast<std::size_t>(std::count_if(
      devices.begin(), devices.end(), [](const device& each) { return each.healthy; }));
}

fake_kubelet::fake_kubelet(fake_kubelet_options options) : options_(std::move(options)) {}

fake_kubelet::~fake_kubelet() {
  stop();
}

void fake_kubelet::start() {
  fs::create_directories(options_.directory);
  remove_sockets();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = false;
    note({"started", {}, {}, {}});
  }
  registration_ = std::make_unique<registration>(*this);
  server_ = std::make_unique<gpushm::kubelet::unix_server>(
      std::string(options_.directory).append("/kubelet.sock"),
      std::vector<grpc::Service*>{registration_.get()});
}

void fake_kubelet::remove_sockets() {
  std::vector<fs::path> sockets;
  for (const auto& each : fs::directory_iterator(options_.directory)) {
    if (each.is_socket()) {
      sockets.push_back(each.path());
    }
  }
  for (const fs::path& each : sockets) {
    fs::remove(each);
    const std::lock_guard lock(mutex_);
    note({"removed", {}, each.filename().string(), {}});
  }
}

void fake_kubelet::stop() {
  std::vector<std::shared_ptr<plugin_client>> clients;
  {
    const std::lock_guard lock(mutex_);
    if (server_ == nullptr) {
      return;
    }
    stopping_ = true;
    changed_.notify_all();
  }
  server_->stop(std::chrono::milliseconds(100));
  server_.reset();
  registration_.reset();
  {
    const std::lock_guard lock(mutex_);
    clients.swap(clients_);
    for (auto& [name, known] : resources_) {
      known.client.reset();
      known.view.connected = false;
      known.accounts.set_devices({});
    }
    note({"stopped", {}, {}, {}});
  }
  // Outside the lock: their threads call `ended`.
  clients.clear();
}

void fake_kubelet::set_mode(kubelet_mode mode) {
  const std::lock_guard lock(mutex_);
  mode_ = mode;
  changed_.notify_all();
}

void fake_kubelet::note(kubelet_event event) {
  if (options_.on_event) {
    options_.on_event(event);
  }
  events_.push_back(std::move(event));
  changed_.notify_all();
}

grpc::Status fake_kubelet::register_plugin(const grpc::ServerContext& context,
                                           const v1beta1::RegisterRequest& request) {
  std::string refused;
  {
    std::unique_lock lock(mutex_);
    note({"register", request.resource_name(), request.endpoint(), request.version()});
    ++resources_[request.resource_name()].view.registrations;
    while (mode_ == kubelet_mode::silent && !stopping_ && !context.IsCancelled()) {
      changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
    const std::string& name = request.resource_name();
    if (stopping_ || context.IsCancelled()) {
      return grpc::Status::CANCELLED;
    }
    if (mode_ == kubelet_mode::refusing) {
      refused = "the fake kubelet refuses everything";
    } else if (request.version() != "v1beta1") {
      refused = std::string("requested API version \"")
                    .append(request.version())
                    .append("\" is not supported by kubelet. Supported version is [\"v1beta1\"]");
    } else if (name.find('/') == std::string::npos || name.find("kubernetes.io/") == 0) {
      refused = std::string("the ResourceName \"").append(name).append("\" is invalid");
    }
  }
  grpc::Status status =
      refused.empty() ? connect(request) : grpc::Status(grpc::StatusCode::UNKNOWN, refused);
  if (!status.ok()) {
    const std::lock_guard lock(mutex_);
    note({"refused", request.resource_name(), request.endpoint(), status.error_message()});
  }
  return status;
}

grpc::Status fake_kubelet::connect(const v1beta1::RegisterRequest& request) {
  const std::string& name = request.resource_name();
  auto client = std::make_shared<plugin_client>(name, request.endpoint(), options_.directory);
  std::shared_ptr<plugin_client> older;
  {
    const std::lock_guard lock(mutex_);
    older = std::exchange(resources_[name].client, client);
  }
  v1beta1::DevicePluginOptions options;
  const grpc::Status status = client->connect(options_.dial_timeout, options);
  const std::lock_guard lock(mutex_);
  known_resource& known = resources_[name];
  if (!status.ok() || stopping_) {
    if (known.client == client) {
      known.client.reset();
    }
    return stopping_ ? grpc::Status::CANCELLED : status;
  }
  known.view.endpoint = request.endpoint();
  known.view.connected = true;
  known.view.listed = false;
  known.view.has_preferences = options.get_preferred_allocation_available();
  clients_.push_back(client);
  note({"registered", name, request.endpoint(), {}});
  if (mode_ != kubelet_mode::not_listing) {
    client->run({[this](plugin_client& source, std::vector<device> devices) {
                   listed(source, std::move(devices));
                 },
                 [this](plugin_client& which, const std::string& why) { ended(which, why); }});
  }
  if (older != nullptr && options_.newest_ends_older) {
    older->disconnect();
  }
  return grpc::Status::OK;
}

void fake_kubelet::listed(plugin_client& client, std::vector<device> devices) {
  const std::lock_guard lock(mutex_);
  if (stopping_) {
    return;
  }
  known_resource& known = resources_[client.resource()];
  ++known.view.lists;
  known.view.listed = known.view.listed || known.client.get() == &client;
  std::string detail = std::to_string(devices.size());
  known.accounts.set_devices(std::move(devices));
  note({"listed", client.resource(), client.endpoint(), std::move(detail)});
  if (mode_ == kubelet_mode::disconnecting) {
    client.disconnect();
  }
}

void fake_kubelet::ended(plugin_client& client, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (stopping_) {
    return;
  }
  note({"stream ended", client.resource(), client.endpoint(), why});
  const auto& registered = resources_[client.resource()].client;
  if (registered != nullptr && (!options_.newest_ends_older || registered.get() == &client)) {
    disconnect(client.resource());
  }
}

void fake_kubelet::disconnect(const std::string& resource) {
  known_resource& known = resources_[resource];
  const std::string endpoint = known.client->endpoint();
  // `clients_` keeps it alive. When its stream ends, no client is registered for the resource.
  known.client->disconnect();
  known.client.reset();
  known.view.connected = false;
  known.accounts.mark_all_unhealthy();
  note({"disconnected", resource, endpoint, {}});
}

resource_view fake_kubelet::resource(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto resource = resources_.find(name);
  if (resource == resources_.end()) {
    return {};
  }
  resource_view view = resource->second.view;
  view.devices = resource->second.accounts.devices();
  view.owners = resource->second.accounts.owners();
  return view;
}

std::vector<std::string> fake_kubelet::resources() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, known] : resources_) {
    names.push_back(name);
  }
  return names;
}

bool fake_kubelet::wait_for(const std::string& name,
                            const std::function<bool(const resource_view&)>& wanted,
                            std::chrono::milliseconds timeout) const {
  const auto deadline = deadline_after(timeout);
  for (;;) {
    std::size_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      seen = events_.size();
    }
    if (wanted(resource(name))) {
      return true;
    }
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return events_.size() != seen; })) {
      return false;
    }
  }
}

bool fake_kubelet::wait_for_healthy(const std::string& name,
                                    std::size_t count,
                                    std::chrono::milliseconds timeout) const {
  return wait_for(
      name,
      [&](const resource_view& view) { return view.connected && view.healthy() == count; },
      timeout);
}

std::vector<kubelet_event> fake_kubelet::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

std::size_t fake_kubelet::count_events(const std::string& kind) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(events_.begin(), events_.end(), [&](const kubelet_event& each) {
        return each.what == kind;
      }));
}

}  // namespace gpushm_testing
