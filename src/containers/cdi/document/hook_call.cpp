// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/document/hook_call.hpp"

#include <algorithm>
#include <iterator>

#include "base/text/text.hpp"

namespace gpushm::cdi {

namespace {

// Programs of the NVIDIA Container Toolkit have the same hooks with other command words.
std::vector<std::string> words_before_name(const std::string& program) {
  const std::string name(base::name_of(program));
  if (name == "nvidia-cdi-hook" || name == "gpushm-cdi-hook") {
    return {name};
  }
  return name == "nvidia-ctk" ? std::vector<std::string>{name, "hook"}
                              : std::vector<std::string>{name, "cdi", "hook"};
}

}  // namespace

hook hook_call(const std::string& program,
               const std::string& name,
               std::vector<std::string> arguments) {
  hook created;
  created.name = "createContainer";
  created.path = program;
  created.args = words_before_name(program);
  created.args.push_back(name);
  std::move(arguments.begin(), arguments.end(), std::back_inserter(created.args));
  // Runtimes pass the container's environment to a hook without one, and the image's LD_PRELOAD
  // would then be loaded into a program of the host.
  created.env = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  return created;
}

}  // namespace gpushm::cdi
