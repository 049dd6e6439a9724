// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/explain.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <vector>

#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/inspect/commands.hpp"
#include "apps/gpushm/inspect/machine.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/style.hpp"
#include "base/syscall.hpp"
#include "base/text.hpp"
#include "base/text_layout.hpp"
#include "inspect/doctor/check.hpp"

namespace gpushm::cli {

namespace {

using inspect::cause;
using inspect::explanation;

/// A log can contain many errors; later errors usually follow from the first.
constexpr std::size_t max_shown = 4;

struct given_text {
  std::string text;
  bool cut = false;
};

given_text read_standard_input() {
  given_text given;
  std::array<char, 65'536> part{};
  while (given.text.size() <= inspect::explain_limit_bytes) {
    const auto count = base::checked("explain", "standard input", "read", [&] {
      return ::read(STDIN_FILENO, part.data(), part.size());
    });
    if (count == 0) {
      return given;
    }
    given.text.append(part.data(), static_cast<std::size_t>(count));
  }
  given.text.resize(inspect::explain_limit_bytes);
  given.cut = true;
  return given;
}

given_text text_of(const explain_arguments& arguments) {
  if (arguments.words == std::vector<std::string>{"-"}) {
    if (arguments.from == "-") {
      throw usage_error(errc::invalid_argument,
                        "explain",
                        "-",
                        "standard input cannot be both the text and the recording",
                        "give one of them as a file: --from FILE");
    }
    return read_standard_input();
  }
  given_text given;
  for (const std::string& word : arguments.words) {
    given.text += (given.text.empty() ? "" : " ") + word;
  }
  return given;
}

struct known_machine {
  inspect::situation here;
  std::string problem;  ///< why the machine's state is unknown; empty: it is known
};

known_machine gather_situation(const std::string& from, std::chrono::milliseconds driver_timeout) {
  known_machine known;
  try {
    const machine seen = gather_machine(from, driver_timeout);
    known.here = inspect::situation_of(seen.facts, inspect::examine(seen.facts));
  } catch (const std::exception& failure) {
    if (!from.empty()) {
      throw;
    }
    // The text can be explained without the machine.
    known.problem = failure.what();
  }
  return known;
}

// ---- human-readable output ----

/// `text` with `label` in front of its first line, and the other lines below it.
void print_labelled(const std::string& label, const std::string& text, std::size_t indent) {
  std::string lines = base::wrapped(text, indent);
  lines.replace(0, std::min(indent, label.size()), label);
  print(lines);
}

std::string_view likelihood(double share) {
  return share >= 0.5    ? "most likely"
         : share >= 0.25 ? "likely"
         : share >= 0.1  ? "possible"
                         : "less likely";
}

void print_cause(const cause& each, std::size_t number, const app::style& style) {
  constexpr std::size_t indent = 5;
  constexpr std::size_t text_indent = 14;
  const std::string front = fmt::format("  {}. ", number);
  const std::string_view words = likelihood(each.share);
  std::string lines = base::wrapped(fmt::format("{}: {}", words, each.text), indent);
  lines.replace(0, indent, front);
  lines.replace(indent, words.size(), style.bold(words));
  print(lines);
  for (const std::string& one : each.evidence) {
    print_labelled("     here:    ", one, text_indent);
  }
  print_labelled("     confirm: ", each.confirm, text_indent);
  print_labelled("     fix:     ", each.fix, text_indent);
}

void print_explanation(const explanation& each, bool is_log, const app::style& style) {
  print_line(style.bold(each.title));
  if (is_log) {
    const std::string label = fmt::format("  line {}: ", each.line_number);
    print_labelled(label, each.line, label.size());
  }
  if (!each.about.empty()) {
    print(base::wrapped(each.about, 2));
  }
  for (std::size_t i = 0; i < each.causes.size(); ++i) {
    print("\n");
    print_cause(each.causes[i], i + 1, style);
  }
}

void print_rest(const std::vector<explanation>& all) {
  for (std::size_t i = max_shown; i < all.size(); ++i) {
    print_labelled("Also: ", fmt::format("{}, line {}", all[i].title, all[i].line_number), 6);
  }
}

std::string machine_text(const known_machine& known, const std::string& from) {
  if (!known.problem.empty()) {
    return fmt::format("This machine's state: unknown ({}). Causes are in the default order.",
                       base::printable(known.problem));
  }
  return from.empty()
             ? "Ordered for this machine as checked by \"gpushm doctor\" in this "
               "container and as this user."
             : fmt::format("Ordered for the machine recorded in {}.", base::printable(from));
}

// ---- JSON output ----

json to_json(const explanation& each) {
  json causes = json::array();
  for (const cause& one : each.causes) {
    causes.push_back({{"id", one.id},
                      {"share", one.share},
                      {"text", one.text},
                      {"confirm", one.confirm},
                      {"fix", one.fix},
                      {"evidence", one.evidence}});
  }
  return json{{"rule", each.rule},
              {"title", each.title},
              {"about", each.about},
              {"found", each.found},
              {"line_number", each.line_number},
              {"line", each.line},
              {"causes", std::move(causes)}};
}

void print_document(const std::vector<explanation>& all, const known_machine& known, bool cut) {
  json document{{"explanations", json::array()},
                {"machine",
                 {{"known", known.problem.empty()},
                  {"problem", known.problem.empty() ? json(nullptr) : json(known.problem)},
                  {"facts", known.here.facts}}},
                {"truncated", cut}};
  for (const explanation& each : all) {
    document["explanations"].push_back(to_json(each));
  }
  print_json(document);
}

}  // namespace

int run_explain(const explain_arguments& arguments) {
  const given_text given = text_of(arguments);
  if (given.cut) {
    note("only the first 1 MiB of the text was read");
  }
  const known_machine known = gather_situation(arguments.from, arguments.driver_timeout);
  const std::vector<explanation> all = inspect::explain(given.text, known.here);
  if (arguments.json) {
    print_document(all, known, given.cut);
  }
  if (all.empty()) {
    note(
        "no known error in this text; pass an error's name (CUDA_ERROR_...), number or message, or "
        "a whole log (gpushm explain - < LOG). \"gpushm doctor\" checks this machine");
    return exit_failed;
  }
  if (!arguments.json) {
    const app::style style = app::style::of(STDOUT_FILENO);
    const bool is_log = given.text.find('\n') != std::string::npos;
    for (std::size_t i = 0; i < std::min(all.size(), max_shown); ++i) {
      print_explanation(all[i], is_log, style);
      print("\n");
    }
    print_rest(all);
    print(base::wrapped(machine_text(known, arguments.from), 0));
  }
  flush_output();
  return exit_ok;
}

}  // namespace gpushm::cli
