// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::discover {

/// A directory seen as the root of a file system: the machine's own "/", a driver container's root,
/// or a recorded tree. Paths that go in and come out are absolute as seen inside; symbolic links
/// are followed inside, so that an absolute one never leads out.
///
/// Remembers directories that it has read: what changes on disk later is not seen. Each call may
/// block on the file system. Nothing throws but for memory.
///
/// Distinct objects: safe. Shared objects: unsafe (const members remember too).
class root_view {
 public:
  /// `root` may be relative and may end in slashes; empty is "/".
  explicit root_view(std::string_view root);

  /// The path outside of what is at `inside` in here.
  [[nodiscard]] std::string outside(std::string_view inside) const;
  /// Where `inside` really is, links followed; nothing when it is not there, or links go in
  /// circles.
  [[nodiscard]] std::optional<std::string> resolve(std::string_view inside) const;
  /// The same, but a link at the end stays one.
  [[nodiscard]] std::optional<std::string> resolve_parent(std::string_view inside) const;
  /// What is in the directory `inside`, sorted, without "." and ".."; empty when it is none.
  [[nodiscard]] const std::vector<std::string>& names(std::string_view inside) const;
  /// Whether names(directory) has `name`.
  [[nodiscard]] bool has(std::string_view directory, std::string_view name) const;
  /// "/" when this is the machine's own.
  [[nodiscard]] std::string text() const { return prefix_.empty() ? "/" : prefix_; }

 private:
  [[nodiscard]] std::optional<std::string> walk(std::string_view inside, bool follow_last) const;

  std::string prefix_;  ///< without a slash at its end; empty for "/"
  mutable std::map<std::string, std::optional<std::string>, std::less<>> resolved_;
  mutable std::map<std::string, std::vector<std::string>, std::less<>> listed_;
};

/// Appends the parts of a path, last one first, so that they can be taken from the end.
void push_parts(std::vector<std::string>& parts, std::string_view path);
/// "a" and "b" → "a/b", with one slash between them.
[[nodiscard]] std::string join(std::string_view directory, std::string_view name);

}  // namespace gpushm::discover
