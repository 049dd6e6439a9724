// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/match.hpp"

#include <algorithm>
#include <array>

#include "base/text/text.hpp"
#include "inspect/explain/characters.hpp"

namespace gpushm::inspect {

namespace {

/// Maximum distance between the parts of a phrase: at "*", and at "**".
constexpr std::size_t gap_bytes = 120;
constexpr std::size_t long_gap_bytes = 1000;

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
    const auto next = text.substr(at, part.size() + gap).find(part);
    if (next == std::string_view::npos) {
      return std::string_view::npos;
    }
    at += next + part.size();
    if (star == std::string_view::npos) {
      return at;
    }
    const bool is_long = pattern.substr(star).starts_with("**");
    pattern.remove_prefix(star + (is_long ? 2 : 1));
    gap = is_long ? long_gap_bytes : gap_bytes;
  }
}

}  // namespace

pattern::pattern(std::string_view text)
    : text_(base::lower_case(text)),
      open_front_(text.starts_with('*')),
      open_back_(text.size() > 1 && text.ends_with('*')) {
  text_.erase(0, open_front_ ? 1 : 0);
  if (open_back_) {
    text_.pop_back();
  }
  first_ = std::min(text_.find('*'), text_.size());
  const auto gaps = static_cast<std::size_t>(std::count(text_.begin(), text_.end(), '*'));
  longest_ =
      text_.size() + gaps * (text_.find("**") == std::string::npos ? gap_bytes : long_gap_bytes);
}

explain_text::explain_text(std::string_view raw, std::size_t first_number) {
  clean_log log = clean(raw, first_number);
  clean_ = std::move(log.text);
  lines_ = std::move(log.lines);
  lower_ = base::lower_case(clean_);
  std::replace(lower_.begin(), lower_.end(), '\n', ' ');
}

void explain_text::append(const explain_text& other, place part) {
  if (part.begin >= part.end) {
    return;
  }
  if (!clean_.empty()) {
    clean_ += '\n';
    lower_ += ' ';
  }
  const std::size_t start = clean_.size();
  lines_.push_back({start, other.line_number({part.begin, part.begin})});
  for (const line_start& each : other.lines_) {
    if (each.offset > part.begin && each.offset < part.end) {
      lines_.push_back({start + each.offset - part.begin, each.number});
    }
  }
  clean_.append(other.clean_, part.begin, part.end - part.begin);
  lower_.append(other.lower_, part.begin, part.end - part.begin);
}

std::optional<explain_text::place> explain_text::match_at(const pattern& pattern,
                                                          std::size_t begin) const {
  if (lower_.compare(begin, pattern.first_, pattern.first_part()) != 0 ||
      (!pattern.open_front_ && joined_before(lower_, begin))) {
    return std::nullopt;
  }
  // Words may be wrapped to the next line; "*" matches within one line.
  std::size_t limit = lower_.size();
  if (pattern.first_ < pattern.text_.size()) {
    const std::string_view reach = std::string_view(clean_).substr(begin, pattern.longest_);
    limit = begin + std::min(reach.find('\n'), reach.size());
  }
  const std::size_t end =
      match_end(std::string_view(lower_).substr(0, limit), pattern.text_, begin);
  return end != std::string::npos && (pattern.open_back_ || !joined_after(lower_, end))
             ? std::optional(place{begin, end})
             : std::nullopt;
}

std::optional<explain_text::place> explain_text::find(const pattern& pattern, place part) const {
  const auto text = std::string_view(lower_).substr(0, part.end);
  const auto first = std::string_view(pattern.text_).substr(0, pattern.first_);
  for (auto begin = text.find(first, part.begin); begin != std::string_view::npos;
       begin = text.find(first, begin + 1)) {
    if (auto found = match_at(pattern, begin); found && found->end <= part.end) {
      return found;
    }
  }
  return std::nullopt;
}

std::optional<explain_text::number> explain_text::next_number(std::size_t offset) const {
  constexpr std::size_t most_digits = 4;
  const std::string_view text = lower_;
  for (auto begin = text.find_first_of("0123456789", offset); begin != std::string_view::npos;) {
    const auto end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    if (end - begin <= most_digits && !joined_before(text, begin) && !joined_after(text, end) &&
        announces_number(text.substr(0, begin))) {
      return number{*base::number<int>(text.substr(begin, end - begin)), {begin, end}};
    }
    begin = text.find_first_of("0123456789", end);
  }
  return std::nullopt;
}

std::optional<int> explain_text::only_number() const {
  const place all = whole();
  std::string_view only = std::string_view(lower_).substr(all.begin, all.end - all.begin);
  only.remove_prefix(only.starts_with('-') ? 1 : 0);
  return only.size() <= 4 && !only.starts_with('-') ? base::number<int>(only) : std::nullopt;
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
  return base::printable(raw(where));
}

std::string explain_text::line(place where, std::size_t columns) const {
  auto [begin, end] = line_of(where);
  // A very long line: show the match with some context on both sides.
  const std::size_t around = columns / 3;
  const bool cut_front = where.begin - begin > around && end - begin > columns;
  if (cut_front) {
    begin = where.begin - around;
  }
  const bool cut_back = end - begin > columns;
  end = cut_back ? begin + columns : end;
  const auto within_character = [this](std::size_t offset) {
    return offset < clean_.size() && (static_cast<unsigned char>(clean_[offset]) & 0xC0U) == 0x80U;
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
  const auto after = std::upper_bound(
      lines_.begin(), lines_.end(), where.begin, [](std::size_t offset, const line_start& line) {
        return offset < line.offset;
      });
  return after == lines_.begin() ? 1 : std::prev(after)->number;
}

explain_text::place explain_text::line_of(place where) const {
  const std::size_t begin = where.begin == 0 ? 0 : clean_.rfind('\n', where.begin - 1) + 1;
  return {begin, std::min(clean_.find('\n', where.begin), clean_.size())};
}

explain_text::place explain_text::around(place where,
                                         std::size_t lines_before,
                                         std::size_t lines_after) const {
  constexpr std::size_t bytes_before = 4096;
  constexpr std::size_t bytes_after = 2048;
  place part = line_of(where);
  for (std::size_t i = 0; i < lines_before && part.begin > 0; ++i) {
    part.begin = line_of({part.begin - 1, part.begin - 1}).begin;
  }
  for (std::size_t i = 0; i < lines_after && part.end < clean_.size(); ++i) {
    part.end = line_of({part.end + 1, part.end + 1}).end;
  }
  part.begin = std::max(part.begin, where.begin - std::min(where.begin, bytes_before));
  part.end = std::min(part.end, where.end + bytes_after);
  return part;
}

std::string_view explain_text::raw(place where) const {
  return std::string_view(clean_).substr(where.begin, where.end - where.begin);
}

}  // namespace gpushm::inspect
