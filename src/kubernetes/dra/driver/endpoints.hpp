// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}

namespace gpushm::dra {

struct endpoints_options {
  std::string driver;
  std::string kubelet_root;
};

/// The two sockets of the driver: `plugins/<driver>/dra-<pid>-<random>-<n>.sock`, created first,
/// and `plugins_registry/<driver>-<pid>-<random>-<n>-reg.sock`, by which a kubelet finds it. The
/// random part is needed because agents in containers all have the same PID.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class endpoints {
 public:
  /// `services` are not owned. `registered` receives the kubelet's registration error (empty:
  /// accepted), on gRPC's threads; it must not block.
  endpoints(endpoints_options options,
            std::vector<grpc::Service*> services,
            std::function<void(const std::string&)> registered);
  endpoints(const endpoints&) = delete;
  endpoints& operator=(const endpoints&) = delete;
  /// Removes the registration socket first.
  ~endpoints();

  /// Starts to serve, or restarts under new names when a socket is missing (a kubelet does not
  /// accept a second plugin at the same path); true when it did. Removes sockets of this driver
  /// without a listener. Throws `error`; then it can be retried.
  bool ensure();
  /// Empty while not serving.
  [[nodiscard]] std::string path() const;

 private:
  struct pair;

  void remove_stale_sockets() const;

  const endpoints_options options_;
  const std::vector<grpc::Service*> services_;
  const std::function<void(const std::string&)> registered_;
  std::string plugins_;
  std::string registry_;
  std::string unique_;
  unsigned number_ = 0;
  std::unique_ptr<pair> serving_;
};

}  // namespace gpushm::dra
