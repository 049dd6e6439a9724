// SPDX-License-Identifier: Apache-2.0
#include "tests/deploy/fake_daemon_set.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>
#include <vector>

namespace gpushm_tests {

namespace {

constexpr int first_back_off = 10;
constexpr int longest_back_off = 300;
constexpr std::chrono::seconds time_to_die{60};

/// Pods by their template: this version, or another one.
struct by_version {
  std::vector<fake_daemon_set::pod*> current;
  std::vector<fake_daemon_set::pod*> old;
};
by_version not_deleted(std::list<fake_daemon_set::pod>& pods, const std::string& version) {
  by_version result;
  for (fake_daemon_set::pod& each : pods) {
    if (!each.deleted_at) {
      (each.version == version ? result.current : result.old).push_back(&each);
    }
  }
  return result;
}

}  // namespace

fake_daemon_set::fake_daemon_set(settings rules, starter start, prober probe)
    : rules_(rules), start_(std::move(start)), probe_(std::move(probe)) {}

void fake_daemon_set::delete_pod(pod& pod) const {
  if (!pod.deleted_at) {
    pod.deleted_at = now_;
  }
}

/// podsShouldBeOnNode: "When surge is enabled, we allow 2 pods if and only if the oldest pod
/// matching the current hash state is not ready AND the oldest pod that doesn't match the current
/// hash state is ready. All other pods are deleted."
void fake_daemon_set::manage() {
  const by_version objects = not_deleted(pods_, version_);
  if (objects.current.empty() && objects.old.empty()) {
    // "We are surging so we need to have at least one non-deleted pod on the node"
    pods_.emplace_back().version = version_;
    return;
  }
  for (const auto& same : {objects.current, objects.old}) {
    for (std::size_t i = 1; i < same.size(); ++i) {
      delete_pod(*same[i]);
    }
  }
  if (!objects.current.empty() && !objects.old.empty() &&
      (!objects.old[0]->is_ready || objects.current[0]->is_ready)) {
    delete_pod(*objects.old[0]);
  }
}

/// rollingUpdate: an old pod is replaced by a surge, whether it is available or not; "we're
/// available, delete the old pod".
void fake_daemon_set::roll() {
  const by_version objects = not_deleted(pods_, version_);
  if (objects.old.size() != 1 || objects.current.size() > 1) {
    return;
  }
  if (objects.current.empty()) {
    pods_.emplace_back().version = version_;
  } else if (objects.current[0]->is_ready) {
    delete_pod(*objects.old[0]);
  }
}

void fake_daemon_set::sync() {
  manage();
  roll();
  for (pod& each : pods_) {
    look_after(each);
    probe_start(each);
  }
  std::erase_if(pods_, [](const pod& each) { return each.deleted_at && !each.container; });
}

void fake_daemon_set::pass(int seconds) {
  for (int i = 0; i < seconds; ++i) {
    ++now_;
    for (pod& each : pods_) {
      look_after(each);
      if (each.container && each.is_started && now_ >= each.next_probe) {
        probe_readiness(each);
      }
    }
    manage();
    roll();
  }
}

void fake_daemon_set::look_after(pod& pod) {
  if (pod.container && !pod.container->running()) {
    stop(pod);
    // "CrashLoopBackOff": the first start is at once.
    pod.start_at = now_ + pod.back_off;
    pod.back_off = std::clamp(pod.back_off * 2, first_back_off, longest_back_off);
  }
  if (pod.deleted_at) {
    if (pod.container && now_ >= *pod.deleted_at + rules_.stop_pause) {
      pod.container->kill(now_ >= *pod.deleted_at + rules_.grace ? SIGKILL : SIGTERM);
    }
    return;
  }
  if (!pod.container && now_ >= pod.start_at) {
    pod.container.emplace(start_(pod.version));
  }
}

/// After the container has ended.
void fake_daemon_set::stop(pod& pod) {
  pod.container->wait_exit(time_to_die);
  pod.output += pod.container->output().all_output();
  pod.container.reset();
  pod.is_started = false;
  pod.is_ready = false;
  pod.failed_probes = 0;
}

/// UpdatePodStatus: after the startupProbe has succeeded, "Trigger an immediate run of the
/// readinessProbe to update ready state", as long as none has succeeded.
void fake_daemon_set::probe_start(pod& pod) {
  if (!pod.container || pod.is_ready) {
    return;
  }
  if (!pod.is_started) {
    pod.is_started = probe_(*pod.container);
  }
  if (pod.is_started) {
    probe_readiness(pod);
  }
}

void fake_daemon_set::probe_readiness(pod& pod) {
  pod.next_probe = now_ + rules_.readiness_period;
  if (probe_(*pod.container)) {
    pod.failed_probes = 0;
    pod.is_ready = true;
  } else if (++pod.failed_probes >= rules_.readiness_failures) {
    pod.is_ready = false;
  }
}

}  // namespace gpushm_tests
