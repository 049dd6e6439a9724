// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/match.hpp"

#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "base/text_layout.hpp"
#include "inspect/explain/explain.hpp"

namespace gpushm::inspect {

namespace {

/// Maximum distance between the parts of a phrase.
constexpr std::size_t gap_bytes = 120;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// Length of the terminal escape sequence at the start of `text` (colours in a log), or 0.
std::size_t escape_length(std::string_view text) {
  if (text.size() < 2 || text[0] != '\x1b' || text[1] != '[') {
    return 0;
  }
  std::size_t i = 2;
  while (i < text.size() && i < 32 && text[i] >= 0x20 && text[i] <= 0x3F) {
    ++i;
  }
  return i < text.size() && text[i] >= 0x40 && text[i] <= 0x7E ? i + 1 : i;
}

std::string cleaned(std::string_view raw) {
  constexpr std::string_view apostrophe = "\xe2\x80\x99";
  std::string clean;
  clean.reserve(raw.size());
  while (!raw.empty()) {
    std::size_t used = escape_length(raw);
    if (used == 0) {
      used = 1;
      const char c = raw[0];
      if (raw.substr(0, apostrophe.size()) == apostrophe) {
        clean += '\'';
        used = apostrophe.size();
      } else if (c != '\n' && (static_cast<unsigned char>(c) <= 0x20 || c == '\x7f')) {
        // Collapses blanks, so that phrases match whatever the indentation.
        if (c != '\r' && (clean.empty() || clean.back() != ' ')) {
          clean += ' ';
        }
      } else {
        clean += c;
      }
    }
    raw.remove_prefix(used);
  }
  return clean;
}

bool joined_before(std::string_view text, std::size_t begin) {
  return begin > 0 && is_word(text[begin]) && is_word(text[begin - 1]);
}
/// Whether the word or number continues at `end`. 201.5 is a version or a time.
bool joined_after(std::string_view text, std::size_t end) {
  const bool fraction = end + 1 < text.size() && is_digit(text[end - 1]) && text[end] == '.' &&
                        is_digit(text[end + 1]);
  return fraction || (end < text.size() && is_word(text[end - 1]) && is_word(text[end]));
}

/// Whether the number after `before` ("... error code: ") may be a CUDA error.
bool announces_number(std::string_view before) {
  constexpr std::array<std::string_view, 12> words{"error",
                                                   "err",
                                                   "code",
                                                   "result",
                                                   "cuda",
                                                   "curesult",
                                                   "cudaerror",
                                                   "cudaerror_t",
                                                   "rc",
                                                   "ret",
                                                   "returned",
                                                   "with"};
  // Numbers that are not CUDA errors: of processes, errno, web servers and make.
  constexpr std::array<std::string_view, 5> others{"exit", "errno", "signal", "http", "status"};
  constexpr std::string_view make = "***";
  const auto last_word = [](std::string_view& text) {
    text = text.substr(0, text.find_last_not_of(" :=#(['\"") + 1);
    const auto begin = text.find_last_of(" :=#(['\",\n");
    const std::string_view word = begin == std::string_view::npos ? text : text.substr(begin + 1);
    text.remove_suffix(word.size());
    return word;
  };
  before = before.substr(before.size() - std::min<std::size_t>(before.size(), 64));
  if (before.find(make) != std::string_view::npos) {
    return false;
  }
  const std::string_view word = last_word(before);
  if (std::find(words.begin(), words.end(), word) == words.end()) {
    return false;
  }
  const std::string_view earlier = last_word(before);
  return std::find(others.begin(), others.end(), earlier) == others.end();
}

/// The end of the match of `pattern` that starts at `begin`, within one line; npos: no match.
std::size_t match_end(std::string_view text, std::string_view pattern, std::size_t begin) {
  std::size_t at = begin;
  std::size_t gap = 0;
  while (true) {
    const auto star = pattern.find('*');
    const std::string_view part = pattern.substr(0, star);
    const auto found = text.substr(at, part.size() + gap).find(part);
    if (found == std::string_view::npos) {
      return std::string_view::npos;
    }
    at += found + part.size();
    if (star == std::string_view::npos) {
      return at;
    }
    pattern.remove_prefix(star + 1);
    gap = gap_bytes;
  }
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

explain_text::explain_text(std::string_view raw)
    : clean_(cleaned(raw.substr(0, explain_limit_bytes))), lower_(lower_case(clean_)) {
  std::replace(lower_.begin(), lower_.end(), '\n', ' ');
}

std::optional<explain_text::place> explain_text::find_phrase(std::string_view pattern,
                                                             std::size_t from) const {
  const bool open_front = pattern.substr(0, 1) == "*";
  const bool open_back = pattern.size() > 1 && pattern.back() == '*';
  pattern.remove_prefix(open_front ? 1 : 0);
  pattern.remove_suffix(open_back ? 1 : 0);
  const auto star = pattern.find('*');
  const std::string_view first = pattern.substr(0, star);
  const auto gaps = static_cast<std::size_t>(std::count(pattern.begin(), pattern.end(), '*'));
  const std::size_t longest = pattern.size() + gaps * gap_bytes;
  for (auto begin = lower_.find(first, from); begin != std::string::npos;
       begin = lower_.find(first, begin + 1)) {
    if (!open_front && joined_before(lower_, begin)) {
      continue;
    }
    // Words may be wrapped to the next line; "*" matches within one line.
    std::size_t limit = lower_.size();
    if (star != std::string_view::npos) {
      const std::string_view reach = std::string_view(clean_).substr(begin, longest);
      limit = begin + std::min(reach.find('\n'), reach.size());
    }
    const std::size_t end = match_end(std::string_view(lower_).substr(0, limit), pattern, begin);
    if (end != std::string::npos && (open_back || !joined_after(lower_, end))) {
      return place{begin, end};
    }
  }
  return std::nullopt;
}

std::optional<explain_text::place> explain_text::find_number(int number) const {
  const std::string digits = std::to_string(number);
  const place all = whole();
  const std::string_view only = std::string_view(lower_).substr(all.begin, all.end - all.begin);
  if (only == digits || only == "-" + digits) {
    return all;
  }
  for (auto begin = lower_.find(digits); begin != std::string::npos;
       begin = lower_.find(digits, begin + 1)) {
    const std::size_t end = begin + digits.size();
    if (!joined_before(lower_, begin) && !joined_after(lower_, end) &&
        announces_number(std::string_view(lower_).substr(0, begin))) {
      return place{begin, end};
    }
  }
  return std::nullopt;
}

explain_text::place explain_text::whole() const {
  constexpr std::string_view blank = " \"'`.";
  const auto begin = lower_.find_first_not_of(blank);
  if (begin == std::string::npos) {
    return {};
  }
  return {begin, lower_.find_last_not_of(blank) + 1};
}

bool explain_text::is_only(std::string_view pattern) const {
  const place all = whole();
  return std::string_view(lower_).substr(all.begin, all.end - all.begin) == pattern;
}

std::string explain_text::text(place where) const {
  std::string found =
      base::printable(std::string_view(clean_).substr(where.begin, where.end - where.begin));
  return found;
}

std::string explain_text::line(place where, std::size_t columns) const {
  std::size_t begin = where.begin == 0 ? 0 : clean_.rfind('\n', where.begin - 1) + 1;
  std::size_t end = std::min(clean_.find('\n', where.begin), clean_.size());
  // A very long line: show the match with some context on both sides.
  const std::size_t around = columns / 3;
  const bool cut_front = where.begin - begin > around && end - begin > columns;
  if (cut_front) {
    begin = where.begin - around;
  }
  const bool cut_back = end - begin > columns;
  end = cut_back ? begin + columns : end;
  const auto within_character = [this](std::size_t at) {
    return at < clean_.size() && (static_cast<unsigned char>(clean_[at]) & 0xC0U) == 0x80U;
  };
  while (cut_front && within_character(begin) && begin < where.begin) {
    ++begin;
  }
  while (cut_back && within_character(end) && end > begin) {
    --end;
  }
  std::string shown = base::printable(std::string_view(clean_).substr(begin, end - begin));
  shown.erase(0, std::min(shown.find_first_not_of(' '), shown.size()));
  shown.erase(shown.find_last_not_of(' ') + 1);
  return (cut_front ? "..." : "") + shown + (cut_back ? "..." : "");
}

std::size_t explain_text::line_number(place where) const {
  return 1 + static_cast<std::size_t>(std::count(
                 clean_.begin(), clean_.begin() + static_cast<std::ptrdiff_t>(where.begin), '\n'));
}

}  // namespace gpushm::inspect
