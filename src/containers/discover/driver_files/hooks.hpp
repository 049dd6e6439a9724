// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "containers/cdi/document/document.hpp"

namespace gpushm::discover {

/// Writes hooks for the hook program. Thread-safety: distinct objects: safe; shared objects: safe.
class hook_maker {
 public:
  /// `disabled` has names of hooks; "all" disables every hook.
  hook_maker(std::string program, std::set<std::string, std::less<>> disabled);

  /// Adds the hook `name` to `edits` unless it is disabled.
  void add(cdi::edits& edits, const std::string& name, std::vector<std::string> arguments) const;
  /// The same with `flag` before each of `values`; adds nothing without values.
  void add_each(cdi::edits& edits,
                const std::string& name,
                const std::string& flag,
                const std::vector<std::string>& values) const;

 private:
  std::string program_;
  std::set<std::string, std::less<>> disabled_;
};

}  // namespace gpushm::discover
