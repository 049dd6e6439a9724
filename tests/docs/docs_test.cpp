// SPDX-License-Identifier: Apache-2.0
// Compares the documents with the sources.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "core/domain.hpp"
#include "gpushm/error.hpp"
#include "protocol/wire/messages.hpp"
#include "protocol/wire/state_table.hpp"
#include "protocol/wire/ticket.hpp"
#include "tests/docs/docs_text.hpp"

namespace gpushm_tests {
namespace {

namespace wire = gpushm::wire;

/// Tests also run on machines without sources; there is nothing to compare then.
class docs : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_source_tree()) {
      GTEST_SKIP() << "the source tree is not on this machine";
    }
  }
};

std::string protocol() {
  return source_file("docs/protocol.md");
}

/// The first two cells of each row, as name and number.
std::map<std::string, std::uint64_t> named_numbers(
    const std::vector<std::vector<std::string>>& rows) {
  std::map<std::string, std::uint64_t> result;
  for (const auto& row : rows) {
    EXPECT_TRUE(result.emplace(row.at(0), number(row.at(1))).second) << row.at(0) << " twice";
  }
  return result;
}

// ---- errors.md
// -------------------------------------------------------------------------------------

TEST_F(docs, errors_md_lists_exactly_the_errcs) {
  const std::string text = source_file("docs/errors.md");
  const auto declared = enumerators(source_file("include/gpushm/error.hpp"), "errc");
  ASSERT_GT(declared.size(), 30U);
  std::string expected;
  for (const auto& [value, name] : declared) {
    const std::string heading = "### " + std::to_string(value) + ". " + name;
    expected += heading + '\n';
    EXPECT_EQ(gpushm::to_string(static_cast<gpushm::errc>(value)), name);
    const std::string body = section(text, heading);
    for (const char* part : {"\n- Causes: ", "\n- Remedy: "}) {
      EXPECT_NE(body.find(part), std::string::npos) << heading << " is missing" << part;
    }
    EXPECT_GT(body.find("- Causes:"), 10U) << heading << " has no description";
  }
  std::string documented;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    documented += line.starts_with("### ") ? line + '\n' : "";
  }
  EXPECT_EQ(documented, expected);
}

// ---- gpushm(3)
// -----------------------------------------------------------------------------------

TEST_F(docs, man_page_lists_exactly_the_functions) {
  std::set<std::string> declared;
  const std::regex declaration(R"(GPUSHM_API [^;(]*?\b(gpushm_\w+)\()");
  for (const char* path : {"include/gpushm/gpushm.h",
                           "include/gpushm/descriptor.h",
                           "include/gpushm/versions.h",
                           "include/gpushm/window.h",
                           "include/gpushm/broker.h"}) {
    const std::string header = source_file(path);
    for (std::sregex_iterator at(header.begin(), header.end(), declaration);
         at != std::sregex_iterator();
         ++at) {
      declared.insert((*at)[1].str());
    }
  }
  ASSERT_GT(declared.size(), 80U);
  const std::string page = source_file("docs/man/gpushm.3");
  const std::string functions =
      page.substr(page.find(".SH FUNCTIONS"), page.find(".SH ENVIRONMENT") - page.find(".SH FUNC"));
  std::set<std::string> named;
  const std::regex name(R"(\bgpushm_\w+)");
  for (std::sregex_iterator at(functions.begin(), functions.end(), name);
       at != std::sregex_iterator();
       ++at) {
    named.insert(at->str());
  }
  EXPECT_EQ(named, declared);
}

// ---- protocol.md
// -----------------------------------------------------------------------------------

TEST_F(docs, protocol_md_has_every_schema_table_and_field) {
  const std::string text = protocol();
  const std::string schema = source_file("src/protocol/wire/protocol.fbs");
  std::map<std::string, std::string> headings;
  const auto members = schema_union(schema, "Body");
  for (std::size_t i = 0; i < members.size(); ++i) {
    headings[members[i]] = "### " + std::to_string(i + 1) + ". " + members[i];
  }
  const auto tables = schema_tables(schema);
  ASSERT_EQ(members.size(), std::variant_size_v<wire::body>);
  ASSERT_GT(tables.size(), members.size());
  for (const auto& table : tables) {
    const auto numbered = headings.find(table.name);
    const std::string heading = numbered == headings.end() ? "### " + table.name : numbered->second;
    const std::string body = section(text, heading);
    EXPECT_FALSE(body.empty()) << "no heading \"" << heading << '"';
    std::vector<std::pair<std::string, std::string>> fields;
    for (const auto& row : table_rows(body)) {
      fields.emplace_back(row.at(0), row.at(1));
    }
    EXPECT_EQ(fields, table.fields) << table.name;
  }
}

TEST_F(docs, protocol_md_has_no_unknown_table) {
  std::set<std::string> known;
  for (const auto& table : schema_tables(source_file("src/protocol/wire/protocol.fbs"))) {
    known.insert(table.name);
  }
  const std::string text = protocol();
  const std::regex heading("(?:^|\n)### (?:\\d+\\. )?(\\w+)");
  std::size_t count = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), heading); at != std::sregex_iterator();
       ++at, ++count) {
    EXPECT_TRUE(known.count((*at)[1].str())) << (*at)[1];
  }
  EXPECT_EQ(count, known.size());
}

TEST_F(docs, protocol_md_lists_wire_values) {
  const std::map<std::string, std::string> sources{
      {"backend", "include/gpushm/types.hpp"},
      {"lifetime", "include/gpushm/types.hpp"},
      {"device_kind", "include/gpushm/types.hpp"},
      {"event_kind", "include/gpushm/client.hpp"},
      {"slot_state", "src/protocol/wire/state_table.hpp"},
      {"fence", "include/gpushm/types.hpp"},
      {"fence_wait", "include/gpushm/types.hpp"},
      {"loss_cause", "include/gpushm/types.hpp"},
      {"version_state", "include/gpushm/types.hpp"},
      {"version_change", "src/protocol/wire/messages.hpp"},
      {"verdict", "src/protocol/wire/messages.hpp"}};
  using entry = std::tuple<std::string, std::uint64_t, std::string>;
  std::set<entry> declared;
  for (const auto& [name, path] : sources) {
    for (const auto& [value, enumerator] : enumerators(source_file(path), name)) {
      declared.emplace(name, value, enumerator);
    }
  }
  std::set<entry> documented;
  for (const auto& row : table_rows(section(protocol(), "## Values"))) {
    documented.emplace(row.at(0), number(row.at(1)), row.at(2));
  }
  EXPECT_EQ(documented, declared);
}

TEST_F(docs, protocol_md_has_limits_and_defaults) {
  const std::string limits = section(protocol(), "## Limits");
  const auto fixed_from = limits.find("These are fixed");
  ASSERT_NE(fixed_from, std::string::npos);

  std::map<std::string, std::uint64_t> settings;
  const std::string header = source_file("include/gpushm/broker.hpp");
  const std::string declaration = header.substr(
      header.find("struct broker_limits"), header.find("};") - header.find("struct broker_limits"));
  const std::regex member(R"((\w+) = ([0-9']+);)");
  for (std::sregex_iterator at(declaration.begin(), declaration.end(), member);
       at != std::sregex_iterator();
       ++at) {
    settings[(*at)[1]] = number((*at)[2]);
  }
  ASSERT_GT(settings.size(), 5U);
  EXPECT_EQ(named_numbers(table_rows(limits.substr(0, fixed_from))), settings);

  const auto constant = [](const std::string& path, const std::string& name) {
    const std::string source = source_file(path);
    std::smatch found;
    EXPECT_TRUE(std::regex_search(source, found, std::regex(name + R"( = ([0-9']+);)"))) << name;
    return found.empty() ? 0 : number(found[1]);
  };
  const std::map<std::string, std::uint64_t> fixed{
      {"max_packet_bytes", wire::max_packet_bytes},
      {"max_batch", wire::max_batch},
      {"max_open_many", wire::max_open_many},
      {"max_name_bytes", gpushm::max_name_bytes},
      {"max_metadata_bytes", gpushm::max_metadata_bytes},
      {"longest_device_text", constant("src/core/domain.cpp", "longest_device_text")},
      {"max_subscriptions", gpushm::core::limits{}.max_subscriptions},
      {"descriptors_per_session", gpushm::core::limits{}.descriptors_per_session},
      {"descriptors_per_ending_session", gpushm::core::limits{}.descriptors_per_ending_session},
      {"max_keep", wire::max_keep},
      {"max_all_subscriptions", gpushm::core::limits{}.max_all_subscriptions},
      {"max_waiting_opens", gpushm::core::limits{}.max_waiting_opens},
      {"max_confirmations", gpushm::core::limits{}.max_confirmations},
      {"largest_segment_bytes", gpushm::core::largest_segment_bytes},
      {"max_queued_events", constant("src/broker/session/sender.cpp", "max_queued_events")}};
  EXPECT_EQ(named_numbers(table_rows(limits.substr(fixed_from))), fixed);
}

/// Offset and name of each row of a layout table.
std::map<std::string, std::uint64_t> offsets(const std::string& heading) {
  std::map<std::string, std::uint64_t> result;
  for (const auto& row : table_rows(section(protocol(), heading))) {
    result[row.at(2)] = number(row.at(0));
  }
  return result;
}

TEST_F(docs, protocol_md_has_shared_memory_layouts) {
  using table = wire::state_table_header;
  EXPECT_EQ(offsets("## State table"),
            (std::map<std::string, std::uint64_t>{{"magic", offsetof(table, magic)},
                                                  {"version", offsetof(table, version)},
                                                  {"slots", offsetof(table, slots)},
                                                  {"epoch", offsetof(table, epoch)},
                                                  {"resumable", offsetof(table, resumable)},
                                                  {"reserved", offsetof(table, reserved)},
                                                  {"owner_futex", offsetof(table, owner_futex)},
                                                  {"owner_rest", offsetof(table, owner_rest)},
                                                  {"words", wire::state_table_words_offset}}));
}

// ---- ticket.md
// ---------------------------------------------------------------------------------

TEST_F(docs, ticket_md_has_limits_and_versions) {
  const std::string text = source_file("docs/ticket.md");
  const auto number_in = [&](const char* pattern) {
    std::smatch found;
    EXPECT_TRUE(std::regex_search(text, found, std::regex(pattern))) << pattern;
    return found.empty() ? 0 : number(found[1]);
  };
  EXPECT_EQ(number_in("A ticket is at most ([0-9,]+) bytes"), wire::max_ticket_bytes);
  EXPECT_EQ(number_in("number of bytes, and at most ([0-9,]+)\\)"), wire::max_ticket_bytes);
  EXPECT_EQ(number_in("\\| version of the writer, ([0-9]+) \\|"), wire::ticket_version);
  EXPECT_EQ(number_in("\\| oldest version of a reader that can read it, ([0-9]+) \\|"),
            wire::oldest_ticket_reader);

  std::string kinds;
  for (const auto& [value, name] :
       enumerators(source_file("include/gpushm/types.hpp"), "backend")) {
    if (value == static_cast<int>(gpushm::backend::signals) ||
        value == static_cast<int>(gpushm::backend::descriptor)) {
      continue;  // nothing that a process could import without a broker
    }
    kinds += (kinds.empty() ? "" : ", ") + std::to_string(value) + ' ' +
             std::string(to_string(static_cast<gpushm::backend>(value)));
  }
  EXPECT_NE(text.find("| kind of memory: " + kinds + " |"), std::string::npos) << kinds;
}

// ---- all documents
// ---------------------------------------------------------------------------------

TEST_F(docs, local_links_resolve) {
  const std::filesystem::path root(GPUSHM_SOURCE_DIR);
  for (const auto& path : documents()) {
    for (const auto& target : local_links(source_file(path))) {
      const auto file = root / std::filesystem::path(path).parent_path() / target;
      EXPECT_TRUE(std::filesystem::exists(file)) << path << " links to " << target;
    }
  }
}

/// A first page: what does not fit belongs to a page that it links to.
TEST_F(docs, readme_has_at_most_120_lines) {
  const std::string text = source_file("README.md");
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 120);
}

TEST_F(docs, cpp_examples_are_compiled) {
  std::string compiled;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(GPUSHM_SOURCE_DIR) / "examples")) {
    if (entry.path().extension() == ".cpp") {
      compiled += source_file("examples/" + entry.path().filename().string());
    }
  }
  const auto blocks = code_blocks(source_file("examples/README.md"), "cpp");
  ASSERT_FALSE(blocks.empty());
  for (const auto& block : blocks) {
    EXPECT_NE(compiled.find(block), std::string::npos) << "not in examples/*.cpp:\n" << block;
  }
}

TEST_F(docs, threat_model_names_existing_tests) {
  const std::filesystem::path root(GPUSHM_SOURCE_DIR);
  std::string sources;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "tests")) {
    if (entry.path().extension() == ".cpp") {
      sources += source_file(entry.path().lexically_relative(root).string());
    }
  }
  std::set<std::string> defined;
  const std::regex definition(R"(\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\))");
  for (std::sregex_iterator at(sources.begin(), sources.end(), definition);
       at != std::sregex_iterator();
       ++at) {
    defined.insert((*at)[1].str() + '.' + (*at)[2].str());
  }
  const std::string text = source_file("docs/threat-model.md");
  const std::regex name(R"(`([a-z]\w*\.[a-z]\w*)`)");
  std::size_t count = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), name); at != std::sregex_iterator();
       ++at) {
    EXPECT_TRUE(defined.count((*at)[1])) << (*at)[1];
    ++count;
  }
  EXPECT_GT(count, 10U);
}

}  // namespace
}  // namespace gpushm_tests
