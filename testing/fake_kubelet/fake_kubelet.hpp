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

#include "kubelet/api/unix_server.hpp"
#include "testing/fake_kubelet/device_accounts.hpp"
#include "testing/fake_kubelet/plugin_client.hpp"

namespace gpushm_testing {

struct kubelet_event {
  /// "started", "stopped", "removed" (a socket, at the start), "register" (was asked),
  /// "registered", "refused", "listed", "stream ended", "disconnected", "allocated", "freed".
  std::string what;
  std::string resource;
  std::string endpoint;  ///< or the pod
  std::string detail;
};

/// How it treats those that register.
enum class kubelet_mood : std::uint8_t {
  normal,
  silent,        ///< never answers a registration
  refusing,      ///< answers with an error
  forgetful,     ///< says yes and does not ask for devices
  disconnecting  ///< ends each list right after it began
};

struct fake_kubelet_options {
  std::string directory = {};
  std::chrono::milliseconds dial_patience{10'000};
  std::chrono::milliseconds call_patience{10'000};
  /// As the oldest kubelets do: a new registration ends the stream of the one before.
  bool newest_ends_older = false;
  /// Called with each event, from any thread; must not call back.
  std::function<void(const kubelet_event&)> on_event = {};
};

/// What a kubelet knows of a resource.
struct resource_view {
  std::string endpoint;    ///< of the newest registration
  bool connected = false;  ///< its client has not been disconnected
  bool listed = false;     ///< the newest registration's list of devices has come
  bool has_preferences = false;
  std::vector<gpushm::plugin::device> devices;
  std::map<std::string, std::string> owners;  ///< the pod of each device that is taken
  std::uint64_t registrations = 0;
  std::uint64_t lists = 0;  ///< received, of all instances
  [[nodiscard]] std::size_t healthy() const;
};

struct pod_devices {
  std::vector<std::string> ids;
  std::vector<std::string> preferred;  ///< what the plugin answered
  gpushm::plugin::allocation allocation;
};

/// The half of a kubelet that device plugins meet, as kubelets up to 1.36 behave: it dials back
/// within Register, at its start it deletes every socket in the directory, and when any stream of a
/// resource ends it disconnects whoever is registered for that resource then. Devices that pods
/// have stay theirs over restarts of the object. Records what happens.
///
/// Shared objects: safe.
class fake_kubelet {
 public:
  /// Does not start.
  explicit fake_kubelet(fake_kubelet_options options);
  fake_kubelet(const fake_kubelet&) = delete;
  fake_kubelet& operator=(const fake_kubelet&) = delete;
  ~fake_kubelet();

  /// Makes the directory when it is missing. Throws `error`.
  void start();
  /// Disconnects all plugins; kubelet.sock goes.
  void stop();
  void set_mood(kubelet_mood mood);

  [[nodiscard]] resource_view resource(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> resources() const;
  /// Blocks until `wanted` says true of the resource, at most `timeout` (stretched in instrumented
  /// builds); false when it did not.
  [[nodiscard]] bool wait_for(const std::string& name,
                              const std::function<bool(const resource_view&)>& wanted,
                              std::chrono::milliseconds timeout) const;
  /// As `wait_for`: connected with exactly that many healthy devices.
  [[nodiscard]] bool wait_for_healthy(const std::string& name,
                                      std::size_t count,
                                      std::chrono::milliseconds timeout) const;

  /// As for one container of `pod`. Throws `admission_error` as a kubelet says it.
  pod_devices allocate(const std::string& pod, const std::string& resource, std::size_t count);
  /// The pod has ended.
  void free(const std::string& pod);

  [[nodiscard]] std::vector<kubelet_event> events() const;
  [[nodiscard]] std::size_t count_events(const std::string& what) const;

 private:
  class registration;
  struct known_resource {
    resource_view view;
    device_accounts accounts;
    std::shared_ptr<plugin_client> client;  ///< now registered
  };

  grpc::Status register_plugin(const grpc::ServerContext& context,
                               const v1beta1::RegisterRequest& request);
  grpc::Status connect(const v1beta1::RegisterRequest& request);
  void listed(plugin_client& from, std::vector<gpushm::plugin::device> devices);
  void ended(plugin_client& which, const std::string& why);
  void disconnect(const std::string& resource);
  void remove_sockets();
  void note(kubelet_event event);

  fake_kubelet_options options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  kubelet_mood mood_ = kubelet_mood::normal;
  bool stopping_ = false;
  std::map<std::string, known_resource> resources_;
  std::vector<std::shared_ptr<plugin_client>> clients_;  ///< all, also those replaced
  std::vector<kubelet_event> events_;
  std::unique_ptr<registration> registration_;
  std::unique_ptr<gpushm::kubelet::unix_server> server_;
};

}  // namespace gpushm_testing
