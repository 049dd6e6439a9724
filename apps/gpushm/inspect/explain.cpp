// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/explain.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/inspect/inspect_options.hpp"
#include "apps/gpushm/inspect/machine.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/style.hpp"
#include "base/files/syscall.hpp"
#include "base/text/text.hpp"
#include "base/text/text_layout.hpp"
#include "inspect/doctor/check.hpp"
#include "inspect/facts/recording.hpp"

namespace gpushm::cli {

namespace {

struct explain_arguments {
  std::vector<std::string> words;  ///< one "-": read standard input
  std::string from;
  bool here = false;  ///< the text is from this machine
  std::chrono::milliseconds driver_timeout = default_driver_timeout;
  bool json = false;
};

void add_explain_arguments(CLI::App& app, explain_arguments& arguments) {
  app.add_option(
         "ERROR", arguments.words, "Text, name or number of an error; - reads standard input")
      ->required()
      ->type_name("");
  auto* here =
      app.add_flag("--here", arguments.here, "The error is from this machine: also use its state");
  add_from(app, arguments.from);
  here->excludes(app.get_option("--from"));
  add_driver_timeout(app, arguments.driver_timeout);
  add_json(app, arguments.json);
}

using inspect::cause;
using inspect::explanation;

/// A log can contain many errors; later errors usually follow from the first.
constexpr std::size_t max_shown = 4;

/// The rest of a text on standard input is not read.
constexpr std::uint64_t input_limit_bytes = 1ULL << 30U;

struct given_text {
  inspect::log_explainer log;
  bool several_lines = false;
  bool cut = false;

  void add(std::string_view part) {
    several_lines = several_lines || part.find('\n') != std::string_view::npos;
    log.add(part);
  }
};

void read_standard_input(given_text& given) {
  std::array<char, 65'536> part{};
  for (std::uint64_t size = 0; size < input_limit_bytes;) {
    const auto count = base::checked("explain", "standard input", "read", [&] {
      return ::read(STDIN_FILENO, part.data(), part.size());
    });
    if (count == 0) {
      return;
    }
    given.add({part.data(), static_cast<std::size_t>(count)});
    size += static_cast<std::uint64_t>(count);
  }
  given.cut = true;
  note("only the first GiB of the text was read; pass a part of it: tail -c 1G LOG");
}

void read_text(const explain_arguments& arguments, given_text& given) {
  if (arguments.words == std::vector<std::string>{"-"}) {
    if (arguments.from == "-") {
      throw usage_error(errc::invalid_argument,
                        "explain",
                        "-",
                        "standard input cannot be both the text and the recording",
                        "give one of them as a file: --from FILE");
    }
    read_standard_input(given);
    return;
  }
  std::string text;
  for (const std::string& word : arguments.words) {
    text += (text.empty() ? "" : " ") + word;
  }
  given.add(text);
}

/// The machine that orders the causes.
enum class machine_source { none, here, recording };

struct known_machine {
  inspect::situation here;
  machine_source source = machine_source::none;
  std::string problem;  ///< why the machine's state is unknown; empty: it is known, or not used
};

/// Whether the text may be from this machine although --here is not given. Does not query the
/// driver.
bool may_be_from_here() {
  const auto files = inspect::this_system();
  return inspect::may_have_failed_here(
      inspect::gather(*files, [] { return inspect::driver_view(); }));
}

known_machine gather_situation(const explain_arguments& arguments) {
  known_machine known;
  try {
    if (!arguments.from.empty()) {
      known.source = machine_source::recording;
    } else if (arguments.here || may_be_from_here()) {
      known.source = machine_source::here;
    } else {
      return known;
    }
    const machine seen = gather_machine(arguments.from, arguments.driver_timeout);
    known.here = inspect::situation_of(seen.facts, inspect::examine(seen.facts));
  } catch (const std::exception& failure) {
    if (!arguments.from.empty()) {
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

void print_cause(const cause& cause, std::size_t number, const app::style& style) {
  constexpr std::size_t indent = 5;
  constexpr std::size_t text_indent = 14;
  const std::string front = fmt::format("  {}. ", number);
  const std::string_view words = likelihood(cause.share);
  std::string lines = base::wrapped(fmt::format("{}: {}", words, cause.text), indent);
  lines.replace(0, indent, front);
  lines.replace(indent, words.size(), style.bold(words));
  print(lines);
  for (const std::string& one : cause.evidence) {
    print_labelled("     why:     ", one, text_indent);
  }
  print_labelled("     confirm: ", cause.confirm, text_indent);
  print_labelled("     fix:     ", cause.fix, text_indent);
}

void print_explanation(const explanation& explanation, bool is_log, const app::style& style) {
  print_line(style.bold(explanation.title));
  if (is_log) {
    const std::string label = fmt::format("  line {}: ", explanation.line_number);
    print_labelled(label, explanation.line, label.size());
  }
  if (!explanation.about.empty()) {
    print(base::wrapped(explanation.about, 2));
  }
  for (std::size_t i = 0; i < explanation.causes.size(); ++i) {
    print("\n");
    print_cause(explanation.causes[i], i + 1, style);
  }
}

void print_rest(const std::vector<explanation>& explanations) {
  for (std::size_t i = max_shown; i < explanations.size(); ++i) {
    print_labelled("Also: ",
                   fmt::format("{}, line {}", explanations[i].title, explanations[i].line_number),
                   6);
  }
}

std::string machine_text(const known_machine& known, const std::string& path) {
  if (!known.problem.empty()) {
    return fmt::format("This machine's state: unknown ({}). Causes are ordered by the text.",
                       base::printable(known.problem));
  }
  switch (known.source) {
    case machine_source::here:
      return "Ordered for this machine as checked by \"gpushm doctor\" in this container and as "
             "this user.";
    case machine_source::recording:
      return fmt::format("Ordered for the machine recorded in {}.", base::printable(path));
    case machine_source::none:
      break;
  }
  return "Ordered by the text alone. If it is from this machine: --here. If it is from another: "
         "\"gpushm doctor --json > FILE\" there, and --from FILE here.";
}

std::string_view to_string(machine_source source) {
  switch (source) {
    case machine_source::here:
      return "here";
    case machine_source::recording:
      return "recording";
    case machine_source::none:
      break;
  }
  return "none";
}

// ---- JSON output ----

json to_json(const explanation& explanation) {
  json causes = json::array();
  for (const cause& one : explanation.causes) {
    causes.push_back({{"id", one.id},
                      {"share", one.share},
                      {"text", one.text},
                      {"confirm", one.confirm},
                      {"fix", one.fix},
                      {"evidence", one.evidence}});
  }
  return json{{"rule", explanation.rule},
              {"title", explanation.title},
              {"about", explanation.about},
              {"found", explanation.found},
              {"line_number", explanation.line_number},
              {"line", explanation.line},
              {"causes", std::move(causes)}};
}

void print_document(const std::vector<explanation>& explanations,
                    const known_machine& known,
                    bool cut) {
  json document{{"explanations", json::array()},
                {"machine",
                 {{"known", known.source != machine_source::none && known.problem.empty()},
                  {"source", to_string(known.source)},
                  {"problem", known.problem.empty() ? json(nullptr) : json(known.problem)},
                  {"facts", known.here.facts}}},
                {"truncated", cut}};
  for (const explanation& each : explanations) {
    document["explanations"].push_back(to_json(each));
  }
  print_json(document);
}

int run_explain(const explain_arguments& arguments) {
  given_text given;
  read_text(arguments, given);
  const known_machine known = gather_situation(arguments);
  const std::vector<explanation> explanations = given.log.finish(known.here);
  if (arguments.json) {
    print_document(explanations, known, given.cut);
  }
  if (explanations.empty()) {
    note(
        "no known error in this text; pass an error's name (CUDA_ERROR_...), number or message, or "
        "a whole log (gpushm explain - < LOG). \"gpushm doctor\" checks this machine");
    return exit_failed;
  }
  if (!arguments.json) {
    const app::style style = app::style::of(STDOUT_FILENO);
    for (std::size_t i = 0; i < std::min(explanations.size(), max_shown); ++i) {
      print_explanation(explanations[i], given.several_lines, style);
      print("\n");
    }
    print_rest(explanations);
    print(base::wrapped(machine_text(known, arguments.from), 0));
  }
  flush_output();
  return exit_ok;
}

}  // namespace

void add_explain(command_list& commands) {
  add_command<explain_arguments>(commands,
                                 "explain",
                                 "Explain an error, how to confirm its cause and how to fix it",
                                 add_explain_arguments,
                                 run_explain);
}

}  // namespace gpushm::cli
