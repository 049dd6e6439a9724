// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/process/backoff.hpp"
#include "base/process/wakeup.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/device_plugin/server/kubelet_socket.hpp"
#include "kubernetes/device_plugin/server/manager.hpp"
#include "kubernetes/device_plugin/server/outgoing_call.hpp"
#include "kubernetes/device_plugin/server/service.hpp"
#include "kubernetes/kubelet_api/unix_server.hpp"

namespace gpushm::device_plugin {

/// Current state of the directory.
struct surroundings {
  bool directory = false;
  std::optional<socket_identity> kubelet;
};

/// One resource: its service and the state of its registration. `advance` performs the next steps
/// that do not block.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe; all members run on the manager's
/// thread.
class served_resource {
 public:
  using clock = std::chrono::steady_clock;

  /// `options` and `wake`, which is signalled when `advance` has work, must outlive it. Starts to
  /// serve at `begin`.
  served_resource(std::shared_ptr<device_plugin::resource> resource,
                  const manager_options& options,
                  const base::wakeup& wake,
                  clock::time_point begin);
  served_resource(const served_resource&) = delete;
  served_resource& operator=(const served_resource&) = delete;
  ~served_resource();

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::shared_ptr<device_plugin::resource>& what() const noexcept {
    return what_;
  }
  /// `resource` has the same name and options.
  void replace(std::shared_ptr<device_plugin::resource> resource);
  /// Performs all steps that are due; returns when it must be called next if no event occurs. Never
  /// throws.
  clock::time_point advance(clock::time_point now, const surroundings& around) noexcept;
  /// Ends the streams; no new calls are started. Does not block.
  void end(ending ending);
  /// Stops the server; blocks until its calls have ended, `until` at most.
  void stop(clock::time_point until);
  [[nodiscard]] resource_status status() const;

 private:
  enum class phase : std::uint8_t { down, checking, ready, registering, registered };

  void listen();
  void detect_changes(clock::time_point now, const surroundings& around);
  void serve(clock::time_point now, const surroundings& around);
  void check_done(clock::time_point now);
  void begin_register(clock::time_point now, const surroundings& around);
  void register_done(clock::time_point now);
  void watch_registration(clock::time_point now);
  void schedule_retry(clock::time_point now, phase next, const error& why);
  void report(const error& why);
  void count();
  void stop_serving();

  std::string name_;
  const manager_options& options_;
  const base::wakeup& wake_;
  std::shared_ptr<device_plugin::resource> what_;
  std::shared_ptr<std::atomic<bool>> changed_;
  std::unique_ptr<service> service_;
  std::unique_ptr<kubelet::unix_server> server_;  ///< destroyed before the service, which it calls
  std::unique_ptr<pending_call> call_;
  phase phase_ = phase::down;
  bool ended_ = false;
  base::backoff backoff_;
  clock::time_point due_;
  clock::time_point served_since_;
  clock::time_point registering_since_;
  std::optional<socket_identity> kubelet_;  ///< of the last Register
  std::uint64_t opened_before_ = 0;
  std::size_t devices_ = 0;
  std::size_t healthy_ = 0;
  std::string last_error_;
  std::string last_logged_;
  std::uint64_t times_registered_ = 0;
};

}  // namespace gpushm::device_plugin
