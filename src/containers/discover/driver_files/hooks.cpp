// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/driver_files/hooks.hpp"

#include "containers/cdi/document/hook_call.hpp"

namespace gpushm::discover {

hook_maker::hook_maker(std::string program, std::set<std::string, std::less<>> disabled)
    : program_(std::move(program)), disabled_(std::move(disabled)) {}

void hook_maker::add(cdi::edits& edits,
                     const std::string& name,
                     std::vector<std::string> arguments) const {
  if (disabled_.contains("all") || disabled_.contains(name)) {
    return;
  }
  edits.hooks.push_back(cdi::hook_call(program_, name, std::move(arguments)));
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
