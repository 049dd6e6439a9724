// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/clean.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "base/text/text.hpp"
#include "inspect/explain/audit.hpp"

namespace gpushm::inspect {

namespace {

bool is_decimal(char c) {
  return c >= '0' && c <= '9';
}

// ---- bytes ----

/// Length of the terminal escape sequence at the start of `text` (colours, a title), or 0.
std::size_t escape_length(std::string_view text) {
  constexpr std::size_t longest_colour = 32;
  constexpr std::size_t longest_title = 256;
  if (text.size() < 2 || text[0] != '\x1b') {
    return 0;
  }
  if (text[1] == ']') {
    const std::size_t end = text.substr(0, longest_title).find('\x07');
    return end == std::string_view::npos ? 2 : end + 1;
  }
  if (text[1] != '[') {
    return 0;
  }
  std::size_t i = 2;
  while (i < text.size() && i < longest_colour && text[i] >= 0x20 && text[i] <= 0x3F) {
    ++i;
  }
  return i < text.size() && text[i] >= 0x40 && text[i] <= 0x7E ? i + 1 : i;
}

struct replacement {
  std::string_view from;
  std::string_view to;
};
/// Characters that editors, browsers and chats put into copied text.
constexpr std::array<replacement, 7> replacements{{{"\xe2\x80\x98", "'"},
                                                   {"\xe2\x80\x99", "'"},
                                                   {"\xe2\x80\x9c", "\""},
                                                   {"\xe2\x80\x9d", "\""},
                                                   {"\xc2\xa0", " "},
                                                   {"\xe2\x80\x8b", ""},
                                                   {"\xef\xbb\xbf", ""}}};

void append_clean(std::string& line, std::string_view raw) {
  const auto add = [&line](char c) {
    if (c != ' ' || line.empty() || line.back() != ' ') {
      line += c;
    }
  };
  while (!raw.empty()) {
    const auto first = static_cast<unsigned char>(raw[0]);
    std::size_t used = first == 0x1b ? escape_length(raw) : 0;
    if (used == 0 && first >= 0xc2) {
      for (const replacement& each : replacements) {
        if (raw.starts_with(each.from)) {
          used = each.from.size();
          for (const char c : each.to) {
            add(c);
          }
          break;
        }
      }
    }
    if (used == 0) {
      used = 1;
      // A carriage return within a line is a progress bar that was overwritten.
      add(first <= 0x20 || first == 0x7f ? ' ' : raw[0]);
    }
    raw.remove_prefix(used);
  }
}

/// The text of UTF-16, which some shells write, without its zero bytes.
std::optional<std::string> narrowed(std::string_view raw) {
  constexpr std::size_t sample_bytes = 4096;
  const std::string_view sample = raw.substr(0, sample_bytes);
  const auto zeros = static_cast<std::size_t>(std::count(sample.begin(), sample.end(), '\0'));
  if (zeros * 5 < sample.size() * 2 || zeros * 5 > sample.size() * 3) {
    return std::nullopt;
  }
  std::string text(raw);
  text.erase(std::remove(text.begin(), text.end(), '\0'), text.end());
  return text;
}

// ---- escapes ----

void append_utf8(std::string& text, unsigned code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0U | (code >> 6U));
    text += static_cast<char>(0x80U | (code & 0x3fU));
  } else {
    text += static_cast<char>(0xe0U | (code >> 12U));
    text += static_cast<char>(0x80U | ((code >> 6U) & 0x3fU));
    text += static_cast<char>(0x80U | (code & 0x3fU));
  }
}

/// Decodes "\n", "\u003e", "\x1b" and quotes with any number of backslashes before them.
std::string unescaped(std::string_view line) {
  // Elsewhere, for instance in a path of Windows, "\n" is not an escape.
  const bool fields =
      line.find("\":") != std::string_view::npos || line.find("=\"") != std::string_view::npos;
  std::string text;
  text.reserve(line.size());
  for (std::size_t i = 0; i < line.size();) {
    if (line[i] != '\\') {
      text += line[i++];
      continue;
    }
    const std::size_t next = std::min(line.find_first_not_of('\\', i), line.size());
    const char c = next < line.size() ? line[next] : '\0';
    const std::size_t digits = c == 'u' ? 4 : c == 'x' ? 2 : 0;
    const auto code =
        digits == 0 ? std::nullopt : base::number<unsigned>(line.substr(next + 1, digits), 16);
    if (c == '"' || c == '\'') {
      text += c;
      i = next + 1;
    } else if (fields && (c == 'n' || c == 't' || c == 'r')) {
      text += ' ';
      i = next + 1;
    } else if (fields && code && next + 1 + digits <= line.size()) {
      append_utf8(text, *code);
      i = next + 1 + digits;
    } else {
      text.append(line, i, next - i);
      i = next;
    }
  }
  return text;
}

// ---- prefixes ----

/// Compares with a form: '0' is a digit, '#' one or more digits, 'a' a letter, every other
/// character itself. Returns the length of the match, or 0.
std::size_t length_of(std::string_view form, std::string_view line) {
  std::size_t at = 0;
  for (const char c : form) {
    if (at >= line.size()) {
      return 0;
    }
    if (c == '#') {
      const std::size_t begin = at;
      while (at < line.size() && is_decimal(line[at])) {
        ++at;
      }
      if (at == begin) {
        return 0;
      }
      continue;
    }
    const char lower = base::to_lower(line[at]);
    const bool same = c == '0'   ? is_decimal(line[at])
                      : c == 'a' ? lower >= 'a' && lower <= 'z'
                                 : c == line[at];
    if (!same) {
      return 0;
    }
    ++at;
  }
  return at;
}

/// "2026-11-29T13:18:50.123456789Z ", with a blank, a comma or an offset instead of "T", "." and
/// "Z".
std::size_t iso_time(std::string_view line) {
  std::size_t at = length_of("0000-00-00T00:00:00", line);
  if (at == 0) {
    at = length_of("0000-00-00 00:00:00", line);
  }
  if (at == 0) {
    return 0;
  }
  for (const std::string_view form : {".#", ",#"}) {
    at += length_of(form, line.substr(at));
  }
  for (const std::string_view form :
       {"Z", "+00:00", "-00:00", " +0000", " -0000", "+0000", "-0000"}) {
    if (const std::size_t more = length_of(form, line.substr(at)); more > 0) {
      at += more;
      break;
    }
  }
  return at < line.size() && line[at] == ' ' ? at + 1 : 0;
}

/// "[ 123.456] ", "[Sun Nov 29 13:18:50 2026] " of the kernel, and UCX's "[1700000000.123456] ".
std::size_t bracketed_time(std::string_view line) {
  for (const std::string_view form :
       {"[ #.#] ", "[#.#] ", "[aaa aaa # 00:00:00 0000] ", "[0000-00-00 00:00:00] "}) {
    if (const std::size_t length = length_of(form, line); length > 0) {
      return length;
    }
  }
  return 0;
}

/// "Nov 29 13:18:50 " of syslog and journalctl; the host's name and the program's stay.
std::size_t syslog_time(std::string_view line) {
  return length_of("aaa # 00:00:00 ", line);
}

/// "[pod/NAME/CONTAINER] " of kubectl logs --prefix, "(Worker_TP0 pid=123) " of Ray and vLLM.
std::size_t origin(std::string_view line) {
  constexpr std::size_t longest = 200;
  if (line.starts_with("[pod/")) {
    const std::size_t end = line.substr(0, longest).find("] ");
    return end == std::string_view::npos ? 0 : end + 2;
  }
  if (line.starts_with('(')) {
    const std::size_t end = line.substr(0, longest).find(") ");
    const bool process = end != std::string_view::npos &&
                         (line.substr(0, end).find("pid=") != std::string_view::npos ||
                          line.substr(0, end).find("rank=") != std::string_view::npos);
    return process ? end + 2 : 0;
  }
  return 0;
}

/// "web-1 | " of docker compose.
std::size_t compose_name(std::string_view line) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string_view::npos || blank < 3 || !line.substr(blank).starts_with(" | ")) {
    return 0;
  }
  const std::string_view name = line.substr(0, blank);
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  return digits > 1 && digits < name.size() && (name[digits - 1] == '-' || name[digits - 1] == '_')
             ? blank + 3
             : 0;
}

/// A line without its prefixes; `partial`: the runtime has split it, and the next line continues
/// it.
std::string_view without_prefixes(std::string_view line, bool& partial) {
  for (int more = 0; more < 6; ++more) {
    std::size_t length = 0;
    for (const auto prefix : {iso_time, bracketed_time, syslog_time, origin, compose_name}) {
      length = std::max(length, prefix(line));
    }
    for (const std::string_view stream : {"stdout ", "stderr "}) {
      if (length == 0 && line.starts_with(stream) && line.size() >= stream.size() + 1) {
        const std::string_view flag = line.substr(stream.size(), 2);
        if (flag == "F " || flag == "P " || flag == "F" || flag == "P") {
          partial = flag[0] == 'P';
          length = stream.size() + flag.size();
        }
      }
    }
    if (length == 0) {
      break;
    }
    line.remove_prefix(length);
  }
  return line;
}

/// Adds a line; each audit record begins a line of its own. `record`: where the last line with a
/// record begins; unchanged if there is none in `body`.
void append_records(clean_log& log,
                    std::string_view body,
                    std::size_t number,
                    std::size_t& record) {
  std::size_t done = 0;
  const auto append = [&](std::size_t end) {
    log.lines.push_back({log.text.size(), number});
    log.text += body.substr(done, end - done);
    done = end;
  };
  bool is_first = true;
  for (const std::size_t begin : audit_records_in(body)) {
    if (!is_first) {
      append(begin);
      log.text.erase(log.text.find_last_not_of(' ') + 1);
      log.text += '\n';
    }
    is_first = false;
    record = log.text.size();
  }
  append(body.size());
}

}  // namespace

clean_log clean(std::string_view raw, std::size_t first_number) {
  const auto narrow = narrowed(raw);
  if (narrow) {
    raw = *narrow;
  }
  clean_log log;
  log.text.reserve(raw.size());
  std::string line;
  bool joined = true;                      // with the previous line, which the first does not have
  std::size_t record = std::string::npos;  // where the last line begins, if it has an audit record
  for (std::size_t number = first_number;; ++number) {
    const std::size_t end = raw.find('\n');
    const std::string_view given = raw.substr(0, end);
    line.clear();
    if (given.find('\\') == std::string_view::npos) {
      append_clean(line, given);
    } else {
      append_clean(line, unescaped(given));
    }
    bool partial = false;
    std::string_view body = line;
    body.remove_prefix(std::min(body.find_first_not_of(' '), body.size()));
    body = without_prefixes(body, partial);
    // A runtime splits lines anywhere, also at a blank.
    if (!joined) {
      body.remove_prefix(std::min(body.find_first_not_of(' '), body.size()));
      const auto between =
          record == std::string::npos
              ? std::nullopt
              : audit_record_goes_on(std::string_view(log.text).substr(record), body);
      log.text += between ? *between : "\n";
      record = between ? record : std::string::npos;
    }
    if (!partial) {
      body = body.substr(0, body.find_last_not_of(' ') + 1);
    }
    append_records(log, body, number, record);
    joined = partial;
    if (end == std::string_view::npos) {
      return log;
    }
    raw.remove_prefix(end + 1);
  }
}

}  // namespace gpushm::inspect
