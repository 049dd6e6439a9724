// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/evidence.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/text/text.hpp"
#include "inspect/explain/audit.hpp"

namespace gpushm::inspect {

namespace {

/// Weight of a cause whose functions or errno values are those of the text.
constexpr double call_factor = 8;
constexpr double errno_factor = 4;

struct errno_words {
  std::string_view name;
  int number;
  std::string_view text;  ///< of strerror(3), in lower case
};
constexpr std::array<errno_words, 27> errno_table{{
    {"EPERM", 1, "operation not permitted"},
    {"ENOENT", 2, "no such file or directory"},
    {"ESRCH", 3, "no such process"},
    {"EIO", 5, "input/output error"},
    {"ENXIO", 6, "no such device or address"},
    {"EBADF", 9, "bad file descriptor"},
    {"EAGAIN", 11, "resource temporarily unavailable"},
    {"ENOMEM", 12, "cannot allocate memory"},
    {"EACCES", 13, "permission denied"},
    {"EBUSY", 16, "device or resource busy"},
    {"EEXIST", 17, "file exists"},
    {"ENODEV", 19, "no such device"},
    {"ENOTDIR", 20, "not a directory"},
    {"EINVAL", 22, "invalid argument"},
    {"ENFILE", 23, "too many open files in system"},
    {"EMFILE", 24, "too many open files"},
    {"EFBIG", 27, "file too large"},
    {"ENOSPC", 28, "no space left on device"},
    {"EROFS", 30, "read-only file system"},
    {"EPIPE", 32, "broken pipe"},
    {"ENOSYS", 38, "function not implemented"},
    {"EOPNOTSUPP", 95, "operation not supported"},
    {"ECONNRESET", 104, "connection reset by peer"},
    {"ETOOMANYREFS", 109, "too many references"},
    {"ETIMEDOUT", 110, "connection timed out"},
    {"ECONNREFUSED", 111, "connection refused"},
    {"ESTALE", 116, "stale file handle"},
}};

bool contains(const std::vector<std::string>& texts, std::string_view text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

bool is_name_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// "errno 38", "errno: 38", "errno=38", "[Errno 38]".
bool has_number_of_errno(std::string_view lower, int number) {
  constexpr std::string_view word = "errno";
  for (auto at = lower.find(word); at != std::string_view::npos; at = lower.find(word, at + 1)) {
    std::string_view rest = lower.substr(at + word.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(" :=("), rest.size()));
    const auto end = std::min(rest.find_first_not_of("0123456789"), rest.size());
    if (base::number<int>(rest.substr(0, end)) == number) {
      return true;
    }
  }
  return false;
}

/// The patterns of `errno_table`, in its order.
struct errno_patterns {
  pattern name;
  pattern text;
};
const std::vector<errno_patterns>& all_errno_patterns() {
  static const std::vector<errno_patterns> patterns = [] {
    std::vector<errno_patterns> made;
    made.reserve(errno_table.size());
    for (const errno_words& each : errno_table) {
      made.push_back({pattern(each.name), pattern(each.text)});
    }
    return made;
  }();
  return patterns;
}

std::vector<std::string> errnos_in(const explain_text& text, explain_text::place part) {
  std::vector<std::string> result;
  const std::string_view lower = text.lower().substr(part.begin, part.end - part.begin);
  for (std::size_t i = 0; i < errno_table.size(); ++i) {
    const errno_patterns& words = all_errno_patterns()[i];
    if (text.find(words.name, part) || text.find(words.text, part) ||
        has_number_of_errno(lower, errno_table[i].number)) {
      result.emplace_back(errno_table[i].name);
    }
  }
  // "no such device or address" contains "no such device", which another value has.
  const auto drop = [&](std::string_view longer, std::string_view shorter, std::string_view name) {
    if (lower.find(longer) != std::string_view::npos && !text.find(pattern(name), part)) {
      const auto one = std::find(result.begin(), result.end(), name);
      if (one != result.end() && lower.find(longer) == lower.find(shorter)) {
        result.erase(one);
      }
    }
  };
  drop("no such device or address", "no such device", "ENODEV");
  drop("too many open files in system", "too many open files", "EMFILE");
  return result;
}

// ---- functions ----

/// Whether a lower-case name matches a lower-case name with "*".
bool matches_name(std::string_view pattern, std::string_view name) {
  const auto star = pattern.find('*');
  if (star == std::string_view::npos) {
    return pattern == name;
  }
  if (!name.starts_with(pattern.substr(0, star))) {
    return false;
  }
  name.remove_prefix(star);
  pattern.remove_prefix(star + 1);
  for (std::size_t skipped = 0; skipped <= name.size(); ++skipped) {
    if (matches_name(pattern, name.substr(skipped))) {
      return true;
    }
  }
  return false;
}

bool matches_any(const std::vector<std::string>& pattern, std::string_view name) {
  const std::string lower = base::lower_case(name);
  return std::any_of(pattern.begin(), pattern.end(), [&](const std::string& each) {
    return matches_name(base::lower_case(each), lower);
  });
}

std::string_view without_version(std::string_view name) {
  for (const std::string_view end : {"_ptsz", "_ptds"}) {
    if (name.ends_with(end)) {
      name.remove_suffix(end.size());
    }
  }
  if (name.size() > 3 && name.substr(name.size() - 3).starts_with("_v")) {
    name.remove_suffix(3);
  }
  return name;
}

/// cuMemMap, cudaIpcOpenMemHandle, nvmlInit, ncclSend; not cudaErrorUnknown, cudaStream_t, cuDNN.
bool is_function(std::string_view name) {
  constexpr std::size_t shortest = 6;
  if (name.size() < shortest || name.ends_with("_t") ||
      name.find("Error") != std::string_view::npos) {
    return false;
  }
  for (const std::string_view library : {"cuda", "nvml", "nccl", "cu"}) {
    if (name.starts_with(library)) {
      const char first = name[library.size()];
      const char second = name[library.size() + 1];
      return first >= 'A' && first <= 'Z' && second >= 'a' && second <= 'z';
    }
  }
  return false;
}

/// The functions in a part of the text, in its order.
std::vector<std::string_view> functions_in(std::string_view part, const explain_rule& rule) {
  std::vector<std::string_view> names;
  while (!part.empty()) {
    const auto end = static_cast<std::size_t>(
        std::find_if_not(part.begin(), part.end(), is_name_char) - part.begin());
    const std::string_view name = without_version(part.substr(0, end));
    if (end > 0) {
      const bool known =
          is_function(name) ||
          std::any_of(rule.causes.begin(), rule.causes.end(), [&](const auto& cause) {
            return matches_any(cause.calls, name) || matches_any(cause.not_calls, name);
          });
      if (known) {
        names.push_back(name);
      }
    }
    part.remove_prefix(std::max<std::size_t>(end, 1));
  }
  return names;
}

bool has_calls(const explain_rule& rule) {
  return std::any_of(rule.causes.begin(), rule.causes.end(), [](const explain_cause& each) {
    return !each.calls.empty() || !each.not_calls.empty();
  });
}

// ---- conditions ----

/// The reason why `condition` holds; nullopt if it does not.
std::optional<std::string> reason_of(const explain_condition& condition,
                                     const explain_text& text,
                                     explain_text::place around,
                                     const situation& here) {
  if (!condition.text.empty()) {
    return text.find(pattern(condition.text), around)
               ? std::optional(fmt::format("the text contains \"{}\"", condition.text))
               : std::nullopt;
  }
  if (!condition.fact.empty()) {
    const std::string_view words = words_of_fact(condition.fact);
    return here.facts.count(condition.fact) > 0 ? std::optional(std::string(words)) : std::nullopt;
  }
  for (const check& each : here.checks) {
    if (each.id == condition.check && each.result == condition.result) {
      return fmt::format(
          "{} ({}): {}", each.id, to_string(each.result), base::printable(each.seen));
    }
  }
  return std::nullopt;
}

/// What the text says about a rule's causes.
struct findings {
  explain_text::place around;
  std::string call;
  std::vector<std::string> errnos;
};

/// Returns nullopt if the cause is impossible.
std::optional<cause> weighed(const explain_cause& known,
                             const explain_text& text,
                             const findings& seen,
                             const situation& here) {
  cause possible{known.id, known.prior, known.text, known.confirm, known.fix, {}};
  if (!seen.call.empty()) {
    if (matches_any(known.not_calls, seen.call)) {
      return std::nullopt;
    }
    if (!known.calls.empty()) {
      if (!matches_any(known.calls, seen.call)) {
        return std::nullopt;
      }
      possible.share *= call_factor;
      possible.evidence.push_back(fmt::format("the text names {}", seen.call));
    }
  }
  if (!known.errnos.empty() && !seen.errnos.empty()) {
    const auto one = std::find_if(seen.errnos.begin(), seen.errnos.end(), [&](const auto& name) {
      return contains(known.errnos, name);
    });
    if (one == seen.errnos.end()) {
      return std::nullopt;
    }
    possible.share *= errno_factor;
    possible.evidence.push_back(fmt::format("the text says {}", *one));
  }
  for (const explain_condition& condition : known.when) {
    if (auto words = reason_of(condition, text, seen.around, here)) {
      if (condition.excludes) {
        return std::nullopt;
      }
      possible.share *= condition.factor;
      if (condition.factor > 1) {
        possible.evidence.push_back(*std::move(words));
      }
    }
  }
  return possible;
}

}  // namespace

bool is_errno_name(std::string_view name) noexcept {
  return std::any_of(errno_table.begin(), errno_table.end(), [&](const errno_words& each) {
    return each.name == name;
  });
}

std::vector<std::string> errnos_at(const explain_text& text, explain_text::place where) {
  auto found = errnos_in(text, text.line_of(where));
  return found.empty() ? errnos_in(text, text.around(where, 0, 1)) : found;
}

std::string failed_call(const explain_text& text,
                        explain_text::place where,
                        const explain_rule& rule) {
  constexpr std::size_t most_lines = 40;
  const explain_text::place line = text.line_of(where);
  if (const auto before = functions_in(text.raw({line.begin, where.begin}), rule);
      !before.empty()) {
    return std::string(before.back());
  }
  // The error may be wrapped to further lines.
  const std::size_t end = std::max(line.end, where.end);
  if (const auto after = functions_in(text.raw({where.end, end}), rule); !after.empty()) {
    return std::string(after.front());
  }
  const explain_text::place around = text.around(where, most_lines, most_lines / 4);
  const auto above = functions_in(text.raw({std::min(around.begin, line.begin), line.begin}), rule);
  if (!above.empty()) {
    return std::string(above.back());
  }
  const auto below = functions_in(text.raw({end, std::max(end, around.end)}), rule);
  return below.empty() ? "" : std::string(below.front());
}

std::vector<cause> causes_of(const explain_rule& rule,
                             const explain_text& text,
                             explain_text::place where,
                             const situation& here) {
  constexpr std::size_t lines_before = 40;
  constexpr std::size_t lines_after = 20;
  // A record has all that is known about its access; its neighbours are about others.
  const explain_text::place line = text.line_of(where);
  const bool is_record = has_audit_record(text.raw(line));
  const findings seen{is_record ? line : text.around(where, lines_before, lines_after),
                      has_calls(rule) && !is_record ? failed_call(text, where, rule) : "",
                      is_record ? errnos_in(text, line) : errnos_at(text, where)};
  std::vector<cause> causes;
  for (const explain_cause& known : rule.causes) {
    if (auto possible = weighed(known, text, seen, here)) {
      causes.push_back(*std::move(possible));
    }
  }
  if (causes.empty()) {
    // The text contradicts itself, or has a reason that no rule knows.
    for (const explain_cause& known : rule.causes) {
      causes.push_back({known.id, known.prior, known.text, known.confirm, known.fix, {}});
    }
  }
  double sum = 0;
  for (const cause& each : causes) {
    sum += each.share;
  }
  for (cause& each : causes) {
    each.share /= sum;
  }
  std::stable_sort(causes.begin(), causes.end(), [](const cause& a, const cause& b) {
    return a.share > b.share;
  });
  return causes;
}

}  // namespace gpushm::inspect
