// SPDX-License-Identifier: Apache-2.0
#include "discover/hooks.hpp"

#include "base/text.hpp"
#include "discover/root_view.hpp"

namespace gpushm::discover {

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

hook_maker::hook_maker(std::string program, std::set<std::string, std::less<>> disabled)
    : program_(std::move(program)), disabled_(std::move(disabled)) {}

void hook_maker::add(cdi::edits& edits,
                     const std::string& name,
                     std::vector<std::string> arguments) const {
  if (disabled_.contains("all") || disabled_.contains(name)) {
    return;
  }
  cdi::hook created;
  created.name = "createContainer";
  created.path = program_;
  created.args = words_before_name(program_);
  created.args.push_back(name);
  created.args.insert(created.args.end(), arguments.begin(), arguments.end());
  // Runtimes pass the container's environment to a hook without one, and the image's LD_PRELOAD
  // would then be loaded into a program of the host.
  created.env = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  edits.hooks.push_back(std::move(created));
}

void hook_maker::add_each(cdi::edits& edits,
                          const std::string& name,
                          const std::string& flag,
                          const std::vector<std::string>& values) const {
  if (values.empty()) {
    return;
  }
  std::vector<std::string> arguments;
  for (const std::string& value : values) {
    arguments.push_back(flag);
    arguments.push_back(value);
  }
  add(edits, name, std::move(arguments));
}

}  // namespace gpushm::discover
