// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpushm::app {

/// Marks words for a terminal, or leaves them as they are.
/// Distinct objects: safe. Shared objects: safe (immutable).
class style {
 public:
  explicit style(bool on) noexcept : on_(on) {}
  /// On when `fd` is a terminal that takes colours ($TERM) and nobody objects ($NO_COLOR).
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
