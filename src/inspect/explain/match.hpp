// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/explain/clean.hpp"

namespace gpushm::inspect {

/// Words to search for, in any case: never part of a longer word, unless "*" is at that end. "*" is
/// up to 120 characters of one line, "**" up to 1,000. Thread-safety: distinct objects: safe;
/// shared objects: safe (immutable).
class pattern {
 public:
  explicit pattern(std::string_view text);
  /// The part before the first "*", in lower case; never empty if the pattern has such a part.
  [[nodiscard]] std::string_view first_part() const {
    return std::string_view(text_).substr(0, first_);
  }

 private:
  friend class explain_text;
  std::string text_;  ///< without "*" at its ends
  bool open_front_ = false;
  bool open_back_ = false;
  std::size_t first_ = 0;    ///< length of the first part
  std::size_t longest_ = 0;  ///< of a match
};

/// A searchable log, without what `clean` removes. Thread-safety: distinct objects: safe; shared
/// objects: unsafe.
class explain_text {
 public:
  explain_text() = default;
  explicit explain_text(std::string_view raw, std::size_t first_number = 1);

  struct place {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  struct number {
    int value = 0;
    place where;
  };

  /// Adds a part of another text, whose lines keep their numbers, as lines of its own.
  void append(const explain_text& other, place part);

  [[nodiscard]] std::optional<place> match_at(const pattern& pattern, std::size_t begin) const;
  /// The first match within `part`.
  [[nodiscard]] std::optional<place> find(const pattern& pattern, place part) const;
  /// The first number at or after `offset` that follows words which mark it as an error code.
  [[nodiscard]] std::optional<number> next_number(std::size_t offset) const;
  /// The number that is the whole text.
  [[nodiscard]] std::optional<int> only_number() const;
  [[nodiscard]] bool is_only(std::string_view lower) const;
  [[nodiscard]] place whole() const;
  [[nodiscard]] place line_of(place where) const;
  /// The lines before and after, at most a few KiB.
  [[nodiscard]] place around(place where, std::size_t lines_before, std::size_t lines_after) const;
  [[nodiscard]] std::string_view raw(place where) const;
  /// The whole text in lower case, with blanks for line feeds.
  [[nodiscard]] std::string_view lower() const { return lower_; }

  /// The original text, without control characters.
  [[nodiscard]] std::string text(place where) const;
  /// The line around it, at most `columns` characters.
  [[nodiscard]] std::string line(place where, std::size_t columns = 72) const;
  [[nodiscard]] std::size_t line_number(place where) const;

 private:
  std::string clean_;
  std::string lower_;
  std::vector<line_start> lines_;
};

}  // namespace gpushm::inspect
