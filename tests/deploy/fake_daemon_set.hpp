// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>

#include "tests/support/process/child.hpp"

namespace gpushm_tests {

/// A DaemonSet with `maxSurge: 1` and `maxUnavailable: 0` on a cluster of one node. Follows the
/// rules of the DaemonSet controller for its pods, and those of the kubelet for their containers,
/// which are real processes. Compared with Kubernetes' pkg/controller/daemon/daemon_controller.go
/// (podsShouldBeOnNode; commit 0033f658), update.go (rollingUpdate, findUpdatedPodsOnNode) and
/// pkg/kubelet/prober/prober_manager.go (UpdatePodStatus; commit 0181833d). Not here: failed pods
/// and nodes, minReadySeconds, the failureThreshold of a startupProbe.
///
/// Time passes in `pass` only, so the speed of the machine has no effect on probes and pauses.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class fake_daemon_set {
 public:
  /// In seconds.
  struct settings {
    int readiness_period = 10;
    int readiness_failures = 3;
    int stop_pause = 0;  ///< preStop
    int grace = 30;      ///< terminationGracePeriodSeconds
  };
  struct pod {
    std::string version;
    std::optional<gpushm_testing::child> container;  ///< empty: it waits for its next start
    std::string output;                              ///< of the containers before
    bool is_started = false;
    bool is_ready = false;
    std::optional<int> deleted_at;
    // Of the kubelet:
    int failed_probes = 0;
    int next_probe = 0;
    int start_at = 0;
    int back_off = 0;
  };
  /// Starts the container of a version.
  using starter = std::function<gpushm_testing::child(const std::string& version)>;
  /// What startupProbe and readinessProbe execute.
  using prober = std::function<bool(const gpushm_testing::child& container)>;

  fake_daemon_set(settings rules, starter start, prober probe);

  /// `kubectl set image`, `rollout undo`: the template of the next pods.
  void set_version(std::string version) { version_ = std::move(version); }
  /// `kubectl delete pod`.
  void delete_pod(pod& pod) const;
  /// Controller and kubelet do what is due; no time passes.
  void sync();
  /// Time in which they run.
  void pass(int seconds);

  /// By age.
  [[nodiscard]] std::list<pod>& pods() noexcept { return pods_; }

 private:
  void manage();
  void roll();
  void look_after(pod& pod);
  void probe_start(pod& pod);
  void probe_readiness(pod& pod);
  void stop(pod& pod);

  settings rules_;
  starter start_;
  prober probe_;
  std::string version_;
  std::list<pod> pods_;
  int now_ = 0;
};

}  // namespace gpushm_tests
