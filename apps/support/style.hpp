// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpushm::app {

/// Adds terminal colours to text, or returns it unchanged. Thread-safety: distinct objects: safe;
/// shared objects: safe (immutable).
class style {
 public:
  explicit style(bool enabled) noexcept : on_(enabled) {}
  /// On if `fd` is a terminal with colours ($TERM) and $NO_COLOR is unset or empty.
  [[nodiscard]] static style of(int fd);

  [[nodiscard]] bool on() const noexcept { return on_; }
  [[nodiscard]] std::string bold(std::string_view text) const { return mark("1", text); }
  [[nodiscard]] std::string dim(std::string_view text) const { return mark("2", text); }
  [[nodiscard]] std::string red(std::string_view text) const { return mark("31", text); }
  [[nodiscard]] std::string green(std::string_view text) const { return mark("32", text); }
  [[nodiscard]] std::string yellow(std::string_view text) const { return mark("33", text); }

 private:
  [[nodiscard]] std::string mark(std::string_view code, std::string_view text) const;
  bool on_;
};

}  // namespace gpushm::app
