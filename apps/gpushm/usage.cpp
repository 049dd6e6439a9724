// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/usage.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <regex>
#include <string_view>
#include <utility>

#include "apps/gpushm/segment/near_match.hpp"

namespace gpushm::cli {

namespace {

using synonym = std::pair<std::string_view, std::string_view>;

// Names of other tools for a command or an option.
constexpr auto synonyms = std::to_array<synonym>(
    {{"list", "ls"},        {"dir", "ls"},        {"remove", "rm"},      {"delete", "rm"},
     {"del", "rm"},         {"unlink", "rm"},     {"info", "stat"},      {"inspect", "stat"},
     {"show", "stat"},      {"status", "stat"},   {"get", "open"},       {"new", "create"},
     {"put", "create"},     {"start", "serve"},   {"broker", "serve"},   {"check", "doctor"},
     {"exec", "run"},       {"publish", "pub"},   {"subscribe", "sub"},  {"--wait", "--timeout"},
     {"--bytes", "--size"}, {"--file", "--from"}, {"--format", "--json"}});

std::string_view without_dashes(std::string_view word) {
  return word.substr(std::min(word.size(), word.find_first_not_of('-')));
}

/// The most similar one of `candidates`; empty if none is similar.
std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  for (const auto& [other, name] : synonyms) {
    if (other == word &&
        std::find(candidates.begin(), candidates.end(), name) != candidates.end()) {
      return std::string(name);
    }
  }
  // A beginning of a name, or a name with more behind it, such as --time and --output.
  constexpr std::size_t shortest = 3;
  const std::string_view stem = without_dashes(word);
  const auto candidate = std::find_if(candidates.begin(), candidates.end(), [&](const auto& each) {
    const std::string_view name = without_dashes(each);
    return std::min(stem.size(), name.size()) >= shortest &&
           (name.starts_with(stem) || stem.starts_with(name));
  });
  if (candidate != candidates.end()) {
    return *candidate;
  }
  near_match nearest(stem);
  for (const std::string& each : candidates) {
    const std::string_view name = without_dashes(each);
    if (name.size() > 1 && !nearest.consider(name)) {
      break;
    }
  }
  const auto best = std::find_if(candidates.begin(), candidates.end(), [&](const auto& each) {
    return !nearest.best().empty() && without_dashes(each) == nearest.best();
  });
  return best == candidates.end() ? std::string() : *best;
}

std::string with_suggestion(const std::string& text,
                            const std::string& word,
                            const std::vector<std::string>& candidates) {
  const std::string nearest = suggestion(word, candidates);
  return nearest.empty() ? text : text + fmt::format(" (did you mean {}?)", nearest);
}

/// The commands that help shows.
std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* const each : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!each->get_group().empty()) {
      names.push_back(each->get_name());
    }
  }
  return names;
}

bool is_option(std::string_view word) {
  return word.size() > 1 && word.front() == '-';
}

/// "--size" of "--size=1MiB".
std::string option_name(const std::string& word) {
  return word.starts_with("--") ? word.substr(0, word.find('=')) : word;
}

/// As they are written: "--size", "-q".
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* const each : app.get_options()) {
    if (each->get_group().empty()) {
      continue;
    }
    for (const std::string& name : each->get_lnames()) {
      names.push_back("--" + name);
    }
    for (const std::string& name : each->get_snames()) {
      names.push_back("-" + name);
    }
  }
  return names;
}

std::string quoted(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& each : words) {
    text += fmt::format(" \"{}\"", each);
  }
  return text;
}

/// Words that the command did not take, in the order in which they were given.
std::string extras_text(const CLI::App& command, const std::vector<std::string>& extras) {
  std::string text;
  const std::vector<std::string> known = option_names(command);
  for (const std::string& each : extras) {
    if (is_option(each)) {
      const std::string name = option_name(each);
      text += (text.empty() ? "" : ", ") +
              with_suggestion(fmt::format("unknown option {}", name), name, known);
    }
  }
  return text.empty()
             ? fmt::format("unexpected argument{}{}", extras.size() == 1 ? "" : "s", quoted(extras))
             : text;
}

/// "create, pub, stat or sub".
std::string alternatives(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  return text;
}

/// CLI11's own sentences, as `pattern`, and what they become.
struct rewording {
  const char* pattern;
  const char* replacement;
};
constexpr auto rewordings = std::to_array<rewording>(
    {{R"(^(.+) excludes (.+)$)", "$1 cannot be combined with $2"},
     {R"(^(.+): 1 required (.+) missing$)", "$1 requires a value: $2"},
     {R"(^(.+): \d+ required (.+) missing$)", "$1 requires more values: $2"},
     {R"(^(.+): At Most (\d+) required but received (\d+)$)", "$1 is given $3 times, at most $2"},
     {R"(^(.+): At least (\d+) required but received (\d+)$)", "$1 requires at least $2 values"},
     {R"(^Expected exactly 1 arguments to (.+), got (\d+)$)", "$1 is given $2 times, at most once"},
     {R"(^(.+) was given a disallowed flag override$)", "$1 takes no value"},
     {R"(^(.+): too many inputs for a flag$)", "$1 takes no value"},
     {R"(^(.+): Should be true/false or a number$)", "$1 takes no value"},
     {R"(^The value (.*) is not an allowed value for (.+)$)", "$2 takes no value"},
     {R"(^Could not convert: (.+) = (.*)$)", "$1: \"$2\" is not a number"}});

}  // namespace

std::vector<std::string> command_words(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    words.emplace_back(argv[i]);
  }
  if (words.empty()) {
    return words;
  }
  if (words.front() == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
    return words;
  }
  const auto version = std::find(words.begin(), words.end(), "--version");
  if (version != words.end() && std::all_of(words.begin(), version, is_option)) {
    words.erase(version);
    words.insert(words.begin(), "version");
  }
  return words;
}

std::optional<usage_problem> find_unknown_command(const CLI::App& root,
                                                  const std::vector<std::string>& words) {
  const CLI::App* command = &root;
  std::string name = "gpushm";
  for (const std::string& word : words) {
    const auto below = command->get_subcommands([](const CLI::App*) { return true; });
    if (below.empty()) {
      return std::nullopt;
    }
    if (is_option(word)) {
      const std::vector<std::string> known = option_names(*command);
      if (std::find(known.begin(), known.end(), option_name(word)) == known.end()) {
        return usage_problem{
            fmt::format("unknown option {} before a command (options follow the command: {} "
                        "COMMAND {})",
                        option_name(word),
                        name,
                        option_name(word)),
            name};
      }
      continue;
    }
    const auto match = std::find_if(
        below.begin(), below.end(), [&](const CLI::App* each) { return each->get_name() == word; });
    if (match == below.end()) {
      return usage_problem{
          with_suggestion(
              fmt::format("unknown command \"{}\"", word), word, command_names(*command)),
          name};
    }
    command = *match;
    name += " " + word;
  }
  return std::nullopt;
}

usage_problem describe_usage_error(const CLI::App& root, const CLI::ParseError& failure) {
  const CLI::App* command = &root;
  std::string name = "gpushm";
  for (auto below = root.get_subcommands(); !below.empty(); below = command->get_subcommands()) {
    command = below.back();
    name += " " + command->get_name();
  }
  // An unknown option comes first: a value may be missing because its option is misspelt.
  const std::vector<std::string> extras = command->remaining();
  const bool is_extras = dynamic_cast<const CLI::ExtrasError*>(&failure) != nullptr;
  if (!command->get_prefix_command() && !extras.empty() &&
      (is_extras || std::any_of(extras.begin(), extras.end(), is_option))) {
    return {extras_text(*command, extras), name};
  }
  if (dynamic_cast<const CLI::RequiredError*>(&failure) != nullptr &&
      !command_names(*command).empty()) {
    return {"a command is required: " + alternatives(command_names(*command)), name};
  }
  std::string text = failure.what();
  if (dynamic_cast<const CLI::ValidationError*>(&failure) == nullptr) {
    for (const auto& [pattern, replacement] : rewordings) {
      text = std::regex_replace(text, std::regex(pattern), replacement);
    }
  }
  return {text, name};
}

}  // namespace gpushm::cli
