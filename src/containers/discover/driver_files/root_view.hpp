// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::discover {

/// A directory viewed as the root of a file system: the machine's "/", a driver container's root,
/// or a recorded tree. Arguments and results are absolute paths inside the root; symbolic links are
/// resolved inside, so an absolute link never leads out.
///
/// Caches directories: later changes on disk are not visible. Each call may block on the file
/// system. Throws only `std::bad_alloc`.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe (const members also cache).
class root_view {
 public:
  /// `root` may be relative and may end in slashes; empty is "/".
  explicit root_view(std::string_view root);

  /// The path on the host of `inside`.
  [[nodiscard]] std::string outside(std::string_view inside) const;
  /// The real path of `inside`; empty when it is missing or a loop of links.
  [[nodiscard]] std::optional<std::string> resolve(std::string_view inside) const;
  /// The same, but does not follow a link in the last component.
  [[nodiscard]] std::optional<std::string> resolve_parent(std::string_view inside) const;
  /// The names in the directory `inside`, sorted, without "." and ".."; empty if it is not a
  /// directory.
  [[nodiscard]] const std::vector<std::string>& names(std::string_view inside) const;
  /// Whether names(directory) has `name`.
  [[nodiscard]] bool has(std::string_view directory, std::string_view name) const;
  /// The root; "/" for the machine's root.
  [[nodiscard]] std::string text() const { return prefix_.empty() ? "/" : prefix_; }

 private:
  [[nodiscard]] std::optional<std::string> walk(std::string_view inside, bool follow_last) const;

  std::string prefix_;  ///< without a trailing slash; empty for "/"
  mutable std::map<std::string, std::optional<std::string>, std::less<>> resolved_;
  mutable std::map<std::string, std::vector<std::string>, std::less<>> listed_;
};

/// Appends the parts of a path in reverse order, to be popped from the end.
void push_parts(std::vector<std::string>& parts, std::string_view path);
/// "a" and "b" → "a/b", with one slash between them.
[[nodiscard]] std::string join(std::string_view directory, std::string_view name);

}  // namespace gpushm::discover
