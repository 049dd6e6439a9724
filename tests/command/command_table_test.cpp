// SPDX-License-Identifier: Apache-2.0
// Compares the commands and options that the program declares with the documents, and with the
// commands that sources and documents mention.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/docs/docs_text.hpp"
#include "tests/support/broker_process/cli.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::exited;
using nlohmann::json;

struct command {
  std::set<std::string> options;  ///< all spellings
  /// The spellings of each option, without the options that every command has.
  std::vector<std::set<std::string>> shown;
  bool has_commands = false;
  bool takes_program = false;
};
using commands = std::map<std::string, command>;

commands read_table() {
  const auto printed = cli().run({"command-table"});
  EXPECT_EQ(printed.status, exited(0)) << printed.err;
  const std::set<std::string> common{"--help", "--json", "--socket", "--connect-timeout"};
  commands table;
  const json document = json::parse(printed.out);
  for (const json& each : document.at("commands")) {
    command& entry = table[each.at("name").get<std::string>()];
    entry.has_commands = each.at("has_commands").get<bool>();
    entry.takes_program = each.at("takes_program").get<bool>();
    for (const json& option : each.at("options")) {
      const auto names = option.at("names").get<std::set<std::string>>();
      entry.options.insert(names.begin(), names.end());
      if (!option.at("is_argument").get<bool>() && !common.contains(*names.begin()) &&
          !names.contains("--help")) {
        entry.shown.push_back(names);
      }
    }
  }
  return table;
}

/// The longest command that `text`, the words after "gpushm", begins with; empty if there is none.
std::string command_in(const commands& table, const std::string& text) {
  std::istringstream stream(text);
  std::string name;
  std::string best;
  for (std::string word; stream >> word;) {
    word.erase(word.find_last_not_of(".,:") + 1);  // of the sentence
    name += (name.empty() ? "" : " ") + word;
    if (!table.contains(name)) {
      break;
    }
    best = name;
  }
  return best;
}

std::set<std::string> matches_of(const std::string& text, const std::regex& pattern) {
  return {std::sregex_token_iterator(text.begin(), text.end(), pattern, 1),
          std::sregex_token_iterator()};
}

const std::regex option_name(R"((?:^|[\s\[(|`])(--?[a-z][a-z0-9-]*))");

/// Whether one of `names` is among `documented`.
bool is_documented(const std::set<std::string>& names, const std::set<std::string>& documented) {
  return std::any_of(
      names.begin(), names.end(), [&](const auto& each) { return documented.contains(each); });
}

/// The synopses of all documents: lines of indented blocks that begin with "gpushm COMMAND", with
/// the lines that continue them.
std::map<std::string, std::string> synopses(const commands& table, const std::string& document) {
  std::map<std::string, std::string> texts;
  std::string current;
  std::istringstream lines(source_file(document));
  for (std::string line; std::getline(lines, line);) {
    const std::string start = "    gpushm ";
    if (line.starts_with(start)) {
      current = command_in(table, line.substr(start.size()));
    } else if (!line.starts_with("        ")) {
      current.clear();
    }
    if (!current.empty()) {
      texts[current] += line + "\n";
    }
  }
  return texts;
}

class command_table : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_source_tree()) {
      GTEST_SKIP() << "the source tree is not on this machine";
    }
    table_ = read_table();
    ASSERT_GT(table_.size(), 25U);
  }

  commands table_;
};

TEST_F(command_table, cli_md_lists_exactly_the_commands) {
  const std::string text = source_file("docs/cli.md");
  const std::string first_table = text.substr(0, text.find("\nSizes are"));
  std::set<std::string> documented;
  for (const auto& row : table_rows(first_table)) {
    documented.insert(row.at(0).substr(0, row.at(0).find(' ')));
  }
  std::set<std::string> declared;
  for (const auto& [name, entry] : table_) {
    declared.insert(name.substr(0, name.find(' ')));
  }
  EXPECT_EQ(documented, declared);
}

TEST_F(command_table, synopses_have_exactly_the_options) {
  std::map<std::string, std::set<std::string>> documented;
  for (const auto& [name, text] : synopses(table_, "docs/cli.md")) {
    documented[name].merge(matches_of(text, option_name));
  }
  for (const auto& [name, entry] : table_) {
    if (entry.has_commands || name == "help" || name == "version" || name.starts_with("cdi ")) {
      continue;
    }
    ASSERT_TRUE(documented.contains(name)) << "no synopsis of gpushm " << name;
    for (const auto& option : entry.shown) {
      EXPECT_TRUE(is_documented(option, documented[name]))
          << *option.rbegin() << " is not in the synopsis of gpushm " << name;
    }
    for (const std::string& option : documented[name]) {
      EXPECT_TRUE(entry.options.contains(option) || entry.takes_program)
          << "the synopsis of gpushm " << name << " has " << option;
    }
  }
}

TEST_F(command_table, cdi_md_names_the_options_of_cdi) {
  const std::set<std::string> documented = matches_of(source_file("docs/cdi.md"), option_name);
  for (const auto& [name, entry] : table_) {
    if (name.starts_with("cdi ")) {
      for (const auto& option : entry.shown) {
        EXPECT_TRUE(is_documented(option, documented)) << *option.rbegin() << " of gpushm " << name;
      }
    }
  }
}

TEST_F(command_table, json_is_an_option_of_every_command_but_the_documented_ones) {
  const std::string text = source_file("docs/cli.md");
  const std::string json_section = section(text, "## JSON");
  std::smatch exceptions;
  ASSERT_TRUE(std::regex_search(
      json_section, exceptions, std::regex(R"(Every command except ([^]*?) accepts `--json`)")));
  const std::set<std::string> documented =
      matches_of(exceptions[1].str(), std::regex("`([a-z0-9 -]+)`"));
  std::set<std::string> without;
  for (const auto& [name, entry] : table_) {
    if (!entry.has_commands && !entry.options.contains("--json")) {
      without.insert(name);
    }
  }
  EXPECT_EQ(documented, without);
}

// ---- mentions ----

/// Joins string literals that follow each other. By hand: std::regex takes minutes for all sources.
std::string joined_literals(const std::string& text) {
  std::string joined;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') {
      std::size_t next = text.find_first_not_of(" \t\n", at + 1);
      const bool is_next_line = next != std::string::npos && text.find('\n', at) < next;
      next += is_next_line && text[next] == 'f' ? 1U : 0U;  // Python's f"…"
      if (is_next_line && next < text.size() && text[next] == '"') {
        at = next;
        continue;
      }
    }
    joined += text[at];
  }
  return joined;
}

/// What follows "gpushm " in `text`, up to the end of the literal, the line or the command.
std::vector<std::string> mentions(const std::string& text) {
  const std::string name = "gpushm ";
  std::vector<std::string> result;
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const bool is_word = at == 0 || (std::isalnum(static_cast<unsigned char>(text[at - 1])) == 0 &&
                                     text[at - 1] != '_');
    const std::size_t begin = at + name.size();
    if (is_word && begin < text.size() && text[begin] >= 'a' && text[begin] <= 'z') {
      result.push_back(text.substr(begin, text.find_first_of("`\"'\\\n|;&()<>#", begin) - begin));
    }
  }
  return result;
}

std::vector<std::string> files_with_texts() {
  const std::filesystem::path root = std::filesystem::path(GPUSHM_SOURCE_DIR);
  std::vector<std::string> result;
  for (const char* const folder :
       {"apps", "src", "include", "python/gpushm", "python/src", "deploy", "docs", "examples"}) {
    for (const auto& each : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = each.path().extension().string();
      const std::string path = std::filesystem::relative(each.path(), root).string();
      constexpr auto extensions = std::to_array<std::string_view>({".cpp",
                                                                   ".hpp",
                                                                   ".h",
                                                                   ".py",
                                                                   ".md",
                                                                   ".json",
                                                                   ".yaml",
                                                                   ".service",
                                                                   ".path",
                                                                   ".sh",
                                                                   ".in"});
      if (each.is_regular_file() && !path.starts_with("docs/plan/") &&
          !path.starts_with("docs/adr/") &&
          std::find(extensions.begin(), extensions.end(), extension) != extensions.end()) {
        result.push_back(path);
      }
    }
  }
  result.emplace_back("README.md");
  return result;
}

/// Words that follow the name in sentences about it.
bool is_prose(const std::string& word) {
  static const std::set<std::string> words{
      "a",           "acts",     "again",     "allocates",    "alone",      "and",
      "are",         "by",       "can",       "cannot",       "checks",     "clears",
      "code",        "could",    "created",   "depends",      "did",        "describes",
      "differs",     "does",     "domain",    "error",        "errors",     "generated",
      "first",       "for",      "from",      "gives",        "has",        "have",
      "here",        "imports",  "in",        "is",           "itself",     "keeps",
      "knows",       "makes",    "must",      "name",         "needs",      "neither",
      "never",       "not",      "of",        "on",           "only",       "or",
      "plugins",     "protects", "reads",     "refuses",      "reports",    "requests",
      "rewrites",    "runs",     "segment",   "segments",     "shares",     "that",
      "the",         "to",       "too",       "tries",        "uses",       "was",
      "with",        "without",  "works",     "writes",       "names",      "command-table",
      "man-page",    "complete", "demo-role", "trial-worker", "trial-side", "measure-worker",
      "probe-driver"};
  return words.contains(word);
}

TEST_F(command_table, every_mentioned_command_exists) {
  std::size_t checked = 0;
  for (const std::string& path : files_with_texts()) {
    for (const std::string& words : mentions(joined_literals(source_file(path)))) {
      const std::string word =
          words.substr(0, words.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"));
      const std::string whole = path + ": \"gpushm " + words + "\"";
      const std::string name = command_in(table_, words);
      if (name.empty()) {
        EXPECT_TRUE(is_prose(word)) << whole << " is not a command";
        continue;
      }
      ++checked;
      const command& entry = table_.at(name);
      if (entry.has_commands) {
        std::istringstream next(words.substr(name.size()));
        std::string below;
        next >> below;
        // "gpushm channel" as a whole, "gpushm cdi …", "gpushm channel COMMAND"
        EXPECT_FALSE(!below.empty() && below[0] >= 'a' && below[0] <= 'z' && !is_prose(below))
            << whole << ": gpushm " << name << " has no command " << below;
        continue;
      }
      if (entry.takes_program) {
        continue;
      }
      for (const std::string& option : matches_of(words, option_name)) {
        EXPECT_TRUE(entry.options.contains(option)) << whole << " has no option " << option;
      }
    }
  }
  EXPECT_GT(checked, 200U);
}

// ---- gpushm(1) ----

TEST_F(command_table, man_page_has_every_command_and_option) {
  const auto printed = cli().run({"man-page"});
  ASSERT_EQ(printed.status, exited(0)) << printed.err;
  const std::string page = std::regex_replace(printed.out, std::regex(R"(\\-)"), "-");
  for (const auto& [name, entry] : table_) {
    if (entry.has_commands) {
      continue;
    }
    const std::string heading = "\n.SS gpushm " + name + "\n";
    const auto begin = page.find(heading);
    ASSERT_NE(begin, std::string::npos) << name;
    const std::string body = page.substr(begin, page.find("\n.S", begin + 2) - begin);
    for (const auto& names : entry.shown) {
      for (const std::string& option : names) {
        EXPECT_NE(body.find("\\fB" + option + "\\fR"), std::string::npos) << name << " " << option;
      }
    }
  }
}

}  // namespace
}  // namespace gpushm_tests
