// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace gpushm::inspect {

/// A searchable text. Thread-safety: distinct objects: safe; shared objects: safe (immutable).
class explain_text {
 public:
  /// Uses at most `explain_limit_bytes` of `raw`.
  explicit explain_text(std::string_view raw);

  struct place {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  // Each returns the first place at or after `from`; precondition: `pattern` is in lower case.
  [[nodiscard]] std::optional<place> find_phrase(std::string_view pattern,
                                                 std::size_t from = 0) const;
  /// The number alone, or after words that mark it as an error code.
  [[nodiscard]] std::optional<place> find_number(int number) const;
  [[nodiscard]] bool is_only(std::string_view pattern) const;
  [[nodiscard]] place whole() const;

  /// The original text, without control characters.
  [[nodiscard]] std::string text(place where) const;
  /// The line around it, at most `columns` characters.
  [[nodiscard]] std::string line(place where, std::size_t columns = 72) const;
  [[nodiscard]] std::size_t line_number(place where) const;

 private:
  std::string clean_;  ///< the searched text; line feeds, no other control characters
  std::string lower_;  ///< the same in lower case, with blanks for line feeds
};

[[nodiscard]] std::string lower_case(std::string_view text);

}  // namespace gpushm::inspect
