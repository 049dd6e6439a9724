// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-cdi-hook/run_hook.hpp"

#include "apps/gpushm-cdi-hook/container_state.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "containers/hook/hook.hpp"

namespace gpushm::cdi_hook {

int run_hook(const std::vector<std::string>& words) {
  if (words.empty()) {
    throw cli::usage_error(errc::invalid_argument,
                           "run hook",
                           {},
                           "the hook's name is missing",
                           "use create-symlinks, update-ldcache, enable-cuda-compat, "
                           "disable-device-node-modification or preload");
  }
  const std::string& name = words.front();
  hook::confine_process(name);
  if (hook::hook_function* const run = hook::find(name)) {
    const hook::container_root root(root_of_container(read_state()));
    run(root, hook::hook_options({words.begin() + 1, words.end()}));
  } else {
    // A document newer than this program must not stop containers.
    hook::warn(
        std::string("warning: unknown hook \"").append(name).append("\" in this version: ignored"));
  }
  return cli::exit_ok;
}

}  // namespace gpushm::cdi_hook
