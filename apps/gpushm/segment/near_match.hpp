// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm/options.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

/// Finds the near match of a misspelt name among up to 10,000 candidates.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class near_match {
 public:
  explicit near_match(std::string_view name);
  /// Returns false if no more candidates are needed.
  bool consider(std::string_view candidate);
  /// Empty if no candidate is within the maximum edit distance: a third of the wanted name's
  /// length, at least 1, at most 3.
  [[nodiscard]] const std::string& best() const noexcept { return best_; }

 private:
  std::string wanted_;
  std::string best_;
  std::size_t best_distance_;
  std::size_t left_ = 10'000;
};

/// The segments of the broker at `socket` (empty: as for all commands), for what is shown in
/// addition. Blocks for at most half a second per request. Throws `error`.
[[nodiscard]] std::vector<segment_info> segments_for_hint(const std::string& socket);

/// Returns `failure`; if it is no_such_segment, with another next step: that of a name with
/// versions, else the near match of `name` in the domain, if there is one. Requests the broker's
/// names, for at most half a second per request, and ignores errors of these requests.
[[nodiscard]] error with_near_match(const error& failure,
                                    const connection_arguments& connection,
                                    const std::string& name);

/// Returns the result of `call`; throws its `error` after `with_near_match`.
template <typename Call>
auto with_hint(const connection_arguments& connection, const std::string& name, Call&& call) {
  try {
    return call();
  } catch (const error& failure) {
    throw with_near_match(failure, connection, name);
  }
}

}  // namespace gpushm::cli
