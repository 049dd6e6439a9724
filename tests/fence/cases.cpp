// SPDX-License-Identifier: Apache-2.0
#include "tests/fence/cases.hpp"

namespace gpushm::fence_rounds {

std::vector<setting> all_settings() {
  std::vector<setting> result;
  const auto add = [&](const char* name, const victim_options& options, unsigned victims = 1) {
    // A process that is sent the driver's files is not a descendant: nothing reveals that it has
    // them.
    const bool fenced = options.others != holder::bystander;
    // Each with kernels and with copies, unless it specifies its work.
    if (options.does == work::kernel) {
      victim_options copies = options;
      copies.does = work::copies;
      result.push_back({std::string(name) + "/kernel", options, victims, fenced});
      result.push_back({std::string(name) + "/copies", copies, victims, fenced});
    } else {
      result.push_back({name, options, victims, fenced});
    }
  };
  add("plain", {});
  add("plain/streams", {.does = work::streams});
  add("exits", {.ends = ending::exits});
  add("execs", {.ends = ending::execs});
  add("child-handled", {.others = holder::child_handled});
  add("child-exits", {.others = holder::child_exits});
  add("child-execs", {.others = holder::child_execs});
  add("child", {.others = holder::child});
  add("exported", {.others = holder::exported});
  add("bystander", {.others = holder::bystander});
  add("uid-1000", {.unprivileged = 1});
  add("pid-namespace", {.pid_namespace = 1});
  add("pid-namespace-child", {.others = holder::child_handled, .pid_namespace = 1});
  add("peer/kernel", {.does = work::peer_kernel});
  add("peer/copies", {.does = work::peer_copies});
  add("core-dump", {.ends = ending::aborted});
  add("mapped-60-gib", {.extra_gib = 60});
  add("execs-16", {.ends = ending::execs}, 16);
  add("victims-16", {}, 16);
  add("victims-64", {}, 64);
  return result;
}

}  // namespace gpushm::fence_rounds
