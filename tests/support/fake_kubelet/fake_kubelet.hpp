// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kubernetes/kubelet_api/unix_server.hpp"
#include "tests/support/fake_kubelet/device_accounts.hpp"
#include "tests/support/fake_kubelet/plugin_client.hpp"

namespace gpushm_testing {

struct kubelet_event {
  /// "started", "stopped", "removed" (a socket, at the start), "register" (requested),
  /// "registered", "refused", "listed", "stream ended", "disconnected", "allocated", "freed".
  std::string what;
  std::string resource;
  std::string endpoint;  ///< or the pod
  std::string detail;
};

/// The kubelet's response to registrations.
enum class kubelet_mode : std::uint8_t {
  normal,
  silent,        ///< does not reply
  refusing,      ///< replies with an error
  not_listing,   ///< accepts, but does not request the list of devices
  disconnecting  ///< ends each stream of devices after its first list
};

struct fake_kubelet_options {
  std::string directory = {};
  std::chrono::milliseconds dial_timeout{10'000};
  std::chrono::milliseconds call_timeout{10'000};
  /// As in the oldest kubelets: a new registration ends the stream of the previous one.
  bool newest_ends_older = false;
  /// Called with each event, from any thread; must not call back.
  std::function<void(const kubelet_event&)> on_event = {};
};

/// A kubelet's state of a resource.
struct resource_view {
  std::string endpoint;    ///< of the newest registration
  bool connected = false;  ///< its client has not been disconnected
  bool listed = false;     ///< the newest registration's list of devices was received
  bool has_preferences = false;
  std::vector<gpushm::device_plugin::device> devices;
  std::map<std::string, std::string> owners;  ///< the pod of each allocated device
  std::uint64_t registrations = 0;
  std::uint64_t lists = 0;  ///< received, of all instances
  [[nodiscard]] std::size_t healthy() const;
};

struct pod_devices {
  std::vector<std::string> ids;
  std::vector<std::string> preferred;  ///< as preferred by the plugin
  gpushm::device_plugin::allocation allocation;
};

/// The part of a kubelet that device plugins use, with the behaviour of kubelets up to 1.36: it
/// connects to the plugin within Register, deletes every socket in the directory at its start, and
/// disconnects the currently registered plugin of a resource when any stream of that resource ends.
/// Allocations persist over `stop` and `start`. Records all events.
/// Thread-safety: shared objects: safe.
class fake_kubelet {
 public:
  /// Does not start.
  explicit fake_kubelet(fake_kubelet_options options);
  fake_kubelet(const fake_kubelet&) = delete;
  fake_kubelet& operator=(const fake_kubelet&) = delete;
  ~fake_kubelet();

  /// Creates the directory if it does not exist. Throws `error`.
  void start();
  /// Disconnects all plugins and removes kubelet.sock.
  void stop();
  void set_mode(kubelet_mode mode);

  [[nodiscard]] resource_view resource(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> resources() const;
  /// Blocks until `wanted` returns true for the resource. False after `timeout`, which is longer in
  /// instrumented builds.
  [[nodiscard]] bool wait_for(const std::string& name,
                              const std::function<bool(const resource_view&)>& wanted,
                              std::chrono::milliseconds timeout) const;
  /// Waits until the resource is connected with exactly `count` healthy devices.
  [[nodiscard]] bool wait_for_healthy(const std::string& name,
                                      std::size_t count,
                                      std::chrono::milliseconds timeout) const;

  /// Allocates for one container of `pod`. Throws `admission_error` with the kubelet's text.
  pod_devices allocate(const std::string& pod, const std::string& resource, std::size_t count);
  /// Frees the devices of a pod that has ended.
  void free(const std::string& pod);

  [[nodiscard]] std::vector<kubelet_event> events() const;
  [[nodiscard]] std::size_t count_events(const std::string& kind) const;

 private:
  class registration;
  struct known_resource {
    resource_view view;
    device_accounts accounts;
    std::shared_ptr<plugin_client> client;  ///< currently registered
  };

  grpc::Status register_plugin(const grpc::ServerContext& context,
                               const v1beta1::RegisterRequest& request);
  grpc::Status connect(const v1beta1::RegisterRequest& request);
  void listed(plugin_client& client, std::vector<gpushm::device_plugin::device> devices);
  void ended(plugin_client& client, const std::string& why);
  void disconnect(const std::string& resource);
  void remove_sockets();
  void note(kubelet_event event);

  fake_kubelet_options options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  kubelet_mode mode_ = kubelet_mode::normal;
  bool stopping_ = false;
  std::map<std::string, known_resource> resources_;
  std::vector<std::shared_ptr<plugin_client>> clients_;  ///< all, including replaced ones
  std::vector<kubelet_event> events_;
  std::unique_ptr<registration> registration_;
  std::unique_ptr<gpushm::kubelet::unix_server> server_;
};

}  // namespace gpushm_testing
