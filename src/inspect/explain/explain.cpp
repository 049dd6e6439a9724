// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/explain.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "base/text/text.hpp"
#include "inspect/explain/audit.hpp"
#include "inspect/explain/evidence.hpp"
#include "inspect/explain/index.hpp"
#include "inspect/explain/match.hpp"
#include "inspect/explain/rules.hpp"

namespace gpushm::inspect {

namespace {

/// Maximum matches per pattern and part of a log: logs repeat themselves.
constexpr std::size_t max_places = 16;

enum class strength { specific, manual, vague, number };
/// What the program that printed the line thinks of it.
enum class severity { error, warning, information };

struct match {
  const explain_rule* rule = nullptr;
  strength how = strength::specific;
  severity level = severity::error;
  explain_text::place where;
};

/// The patterns of all rules.
struct pattern_book {
  struct target {
    const explain_rule* rule;
    strength how;
  };
  std::vector<target> targets;  ///< of the index's patterns
  std::multimap<int, const explain_rule*> numbers;
  pattern_index index;

  static const pattern_book& of_this_build() {
    static const pattern_book book;
    return book;
  }

 private:
  pattern_book() : index(collect()) {}
  std::vector<pattern> collect() {
    std::vector<pattern> patterns;
    const auto add = [&](const std::string& words, const explain_rule& rule, strength strength) {
      patterns.emplace_back(words);
      targets.push_back({&rule, rule.manual ? strength::manual : strength});
    };
    for (const explain_rule& rule : explain_rules()) {
      for (const std::string& name : rule.names) {
        add(name, rule, strength::specific);
      }
      for (const std::string& phrase : rule.phrases) {
        add(phrase, rule, rule.vague ? strength::vague : strength::specific);
      }
      for (const int number : rule.numbers) {
        numbers.emplace(number, &rule);
      }
    }
    return patterns;
  }
};

severity severity_of(std::string_view line) {
  constexpr std::array<std::string_view, 9> information{" INFO ",
                                                        " DEBUG ",
                                                        " TRACE ",
                                                        "INFO:",
                                                        "DEBUG:",
                                                        "[INFO]",
                                                        "[DEBUG]",
                                                        "level=info",
                                                        "level=debug"};
  constexpr std::array<std::string_view, 3> warnings{"[W ", "UserWarning", "FutureWarning"};
  const auto has = [&](std::string_view word) { return line.find(word) != std::string_view::npos; };
  if (std::any_of(information.begin(), information.end(), has) || line.starts_with("INFO ") ||
      line.starts_with("DEBUG ") || has(R"("level":"info")") || has(R"("level":"debug")")) {
    return severity::information;
  }
  return std::any_of(warnings.begin(), warnings.end(), has) ? severity::warning : severity::error;
}

/// A record of an access that was only logged does not hide one that was denied.
bool is_only_logged(std::string_view line) {
  const auto has = [&](std::string_view field) {
    return line.find(field) != std::string_view::npos;
  };
  return (has("permissive=1") || has("code=0x7ffc0000")) && has_audit_record(line);
}

/// All matches, in the text's order; each pattern at most `max_places` times.
std::vector<match> all_matches(const explain_text& text) {
  constexpr std::size_t level_reach = 200;  // a level is at the beginning of a line
  const pattern_book& book = pattern_book::of_this_build();
  std::vector<match> matches;
  const auto add = [&](const explain_rule* rule, strength strength, explain_text::place where) {
    const std::string_view line = text.raw(text.line_of(where));
    matches.push_back(
        {rule,
         strength,
         is_only_logged(line) ? severity::information : severity_of(line.substr(0, level_reach)),
         where});
  };
  for (const auto& each : book.index.find_all(text, max_places)) {
    add(book.targets[each.pattern].rule, book.targets[each.pattern].how, each.where);
  }
  for (const explain_rule& rule : explain_rules()) {
    for (const std::string& only : rule.alone) {
      if (text.is_only(base::lower_case(only))) {
        add(&rule, rule.manual ? strength::manual : strength::specific, text.whole());
      }
    }
  }
  std::map<int, std::size_t> counts;
  const auto add_number = [&](int number, explain_text::place where) {
    const auto [first, last] = book.numbers.equal_range(number);
    for (auto each = first; each != last && counts[number] < max_places; ++each) {
      add(each->second, strength::number, where);
    }
    ++counts[number];
  };
  if (const auto number = text.only_number()) {
    add_number(*number, text.whole());
  }
  for (auto number = text.next_number(0); number; number = text.next_number(number->where.end)) {
    if (book.numbers.count(number->value) > 0) {
      add_number(number->value, number->where);
    }
  }
  return matches;
}

/// "pidfd_getfd: Operation not permitted" is more specific than "operation not permitted".
bool is_part_of_another(const match& inner, const std::vector<match>& matches) {
  return std::any_of(matches.begin(), matches.end(), [&](const match& outer) {
    return outer.rule != inner.rule && outer.where.begin <= inner.where.begin &&
           inner.where.end <= outer.where.end &&
           outer.where.end - outer.where.begin > inner.where.end - inner.where.begin;
  });
}

/// The best match of each rule, the most specific rule first.
std::vector<match> chosen_matches(const explain_text& text) {
  std::vector<match> matches = all_matches(text);
  std::stable_sort(matches.begin(), matches.end(), [](const match& a, const match& b) {
    return std::tie(a.how, a.level, a.where.begin) < std::tie(b.how, b.level, b.where.begin);
  });
  const bool specific = !matches.empty() && matches.front().how != strength::number;
  std::vector<match> chosen;
  for (const match& each : matches) {
    const auto same_rule = [&](const match& other) { return other.rule == each.rule; };
    // Numbers occur in any log.
    const bool noise = specific && each.how == strength::number;
    if (!noise && std::none_of(chosen.begin(), chosen.end(), same_rule) &&
        !is_part_of_another(each, matches)) {
      chosen.push_back(each);
    }
  }
  return chosen;
}

std::vector<explanation> explanations_of(const explain_text& text, const situation& here) {
  std::vector<explanation> explanations;
  for (const match& each : chosen_matches(text)) {
    explanations.push_back({each.rule->id,
                            each.rule->title,
                            each.rule->about,
                            text.text(each.where),
                            text.line(each.where),
                            text.line_number(each.where),
                            causes_of(*each.rule, text, each.where, here)});
  }
  return explanations;
}

}  // namespace

// ---- logs of any size ----

struct log_explainer::state {
  static constexpr std::size_t block_bytes = 1024UL * 1024;
  /// A message that continues in the next block.
  static constexpr std::size_t overlap_bytes = 2048;
  /// How many places of each rule are kept, with equal strength and severity; the first one is
  /// shown.
  static constexpr int kept_places = 2;

  std::string buffer;
  std::size_t buffer_line = 1;  ///< the number of its first line
  std::size_t new_line = 1;     ///< the first line that was not searched yet
  bool has_blocks = false;
  explain_text kept;
  std::map<std::tuple<const explain_rule*, strength, severity>, int> counts;

  void keep_surroundings(std::string_view block) {
    constexpr std::size_t lines_before = 40;
    constexpr std::size_t lines_after = 20;
    const explain_text text(block, buffer_line);
    std::vector<match> matches = all_matches(text);
    std::stable_sort(matches.begin(), matches.end(), [](const match& a, const match& b) {
      return a.where.begin < b.where.begin;
    });
    explain_text::place part;
    for (const match& each : matches) {
      if (text.line_number({each.where.end, each.where.end}) < new_line ||
          counts[{each.rule, each.how, each.level}]++ >= kept_places) {
        continue;
      }
      const auto around = text.around(each.where, lines_before, lines_after);
      if (around.begin > part.end) {
        kept.append(text, part);
        part = around;
      }
      part = {std::min(part.begin, around.begin), std::max(part.end, around.end)};
    }
    kept.append(text, part);
  }

  void search_block() {
    const std::size_t end = buffer.rfind('\n', block_bytes - 1);
    const std::size_t size =
        end == std::string::npos || end < block_bytes / 2 ? block_bytes : end + 1;
    keep_surroundings(std::string_view(buffer).substr(0, size));
    has_blocks = true;
    const std::size_t line = buffer.find('\n', size - overlap_bytes);
    const std::size_t used = line < size ? line + 1 : size;
    const auto lines_to = [&](std::size_t offset) {
      return static_cast<std::size_t>(
          std::count(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
    };
    new_line = buffer_line + lines_to(size);
    buffer_line += lines_to(used);
    buffer.erase(0, used);
  }
};

log_explainer::log_explainer() : state_(std::make_unique<state>()) {}

log_explainer::~log_explainer() = default;

void log_explainer::add(std::string_view part) {
  while (!part.empty()) {
    const std::string_view some = part.substr(0, state::block_bytes);
    state_->buffer += some;
    part.remove_prefix(some.size());
    while (state_->buffer.size() > state::block_bytes) {
      state_->search_block();
    }
  }
}

std::vector<explanation> log_explainer::finish(const situation& here) {
  if (!state_->has_blocks) {
    return explanations_of(explain_text(state_->buffer), here);
  }
  state_->keep_surroundings(state_->buffer);
  return explanations_of(state_->kept, here);
}

std::vector<explanation> explain(std::string_view text, const situation& here) {
  log_explainer log;
  log.add(text);
  return log.finish(here);
}

}  // namespace gpushm::inspect
