// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "apps/gpushm/commands.hpp"

namespace gpushm::cli {

/// Finds the name nearest to a misspelt one, one candidate after the other. Looks at no more than
/// 10,000 candidates. `wanted` and the candidates must outlive it.
///
/// Distinct objects: safe. Shared objects: unsafe.
class near_name {
 public:
  explicit near_name(std::string_view wanted);
  /// False when enough candidates were seen.
  bool consider(std::string_view candidate);
  /// Empty when nothing was near enough: a third of the wanted name's length, at least 1, at most 3
  /// edits.
  [[nodiscard]] std::string_view best() const noexcept { return best_; }

 private:
  std::string_view wanted_;
  std::string_view best_;
  std::size_t best_distance_;
  std::size_t left_ = 10'000;
};

/// `failure`, and where it says that there is no segment `name`: with the nearest name that the
/// domain has as the next step, if there is one. Asks the broker for its names, half a second at
/// most for each request; an error of that is dropped, as `failure` is what the user must see.
[[nodiscard]] error with_near_name(const error& failure,
                                   const connection_arguments& connection,
                                   const std::string& name);

/// What `call` returns; its `error` goes through `with_near_name`.
template <typename Call>
auto with_hint(const connection_arguments& connection, const std::string& name, Call&& call) {
  try {
    return call();
  } catch (const error& failure) {
    throw with_near_name(failure, connection, name);
  }
}

}  // namespace gpushm::cli
