// SPDX-License-Identifier: Apache-2.0
// CDI documents as text, their minimum versions, and files.
#include "containers/cdi/document/write.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "containers/cdi/document/parse.hpp"
#include "gpushm/error.hpp"
#include "tests/cdi/world.hpp"

namespace gpushm_tests {
namespace {

namespace cdi = gpushm::cdi;
using cdi::format;
using testing::ElementsAre;
using testing::IsEmpty;

cdi::document with_args(std::vector<std::string> args) {
  cdi::document created;
  created.version = "0.5.0";
  created.kind = "a/b";
  cdi::device& one = created.devices.emplace_back();
  one.name = "d";
  one.changes.hooks.push_back({"prestart", "/h", std::move(args), {}, 5});
  return created;
}

cdi::device_node node(std::string path, std::string host_path) {
  cdi::device_node created;
  created.path = std::move(path);
  created.host_path = std::move(host_path);
  return created;
}

std::string refusal(cdi::document content, std::string_view version) {
  const cdi::document before = content;
  try {
    cdi::lower_to(content, version);
    return "done";
  } catch (const gpushm::error& failure) {
    EXPECT_EQ(failure.code(), gpushm::errc::invalid_argument);
    EXPECT_EQ(content, before);
    return failure.what();
  }
}

TEST(cdi_write, yaml_is_plain_where_unambiguous) {
  EXPECT_EQ(cdi::to_text(with_args({"--link", "a::b", "yes", "0", "", "A=b c", "~", "é\n\"\\"}),
                         format::yaml),
            "---\n"
            "cdiVersion: \"0.5.0\"\n"
            "kind: a/b\n"
            "devices:\n"
            "  - name: d\n"
            "    containerEdits:\n"
            "      hooks:\n"
            "        - hookName: prestart\n"
            "          path: /h\n"
            "          args:\n"
            "            - --link\n"
            "            - a::b\n"
            "            - \"yes\"\n"
            "            - \"0\"\n"
            "            - \"\"\n"
            "            - \"A=b c\"\n"
            "            - \"~\"\n"
            "            - \"é\\n\\\"\\\\\"\n"
            "          timeout: 5\n");
}

TEST(cdi_write, json_is_indented) {
  cdi::document created = with_args({"x"});
  created.devices[0].changes = {};
  created.devices[0].changes.rdt.emplace();
  created.notes["k"] = "v";
  EXPECT_EQ(cdi::to_text(created, format::json),
            "{\n"
            "  \"cdiVersion\": \"0.5.0\",\n"
            "  \"kind\": \"a/b\",\n"
            "  \"annotations\": {\n"
            "    \"k\": \"v\"\n"
            "  },\n"
            "  \"devices\": [\n"
            "    {\n"
            "      \"name\": \"d\",\n"
            "      \"containerEdits\": {\n"
            "        \"intelRdt\": {}\n"
            "      }\n"
            "    }\n"
            "  ]\n"
            "}\n");
}

TEST(cdi_write, every_string_round_trips) {
  std::vector<std::string> texts{"",
                                 " ",
                                 "y",
                                 "No",
                                 "on",
                                 "NULL",
                                 ".inf",
                                 "-.5",
                                 "1e3",
                                 "0x10",
                                 "0o7",
                                 "1:30",
                                 "1_0",
                                 "#a",
                                 "a #b",
                                 "a: b",
                                 "a:",
                                 "- a",
                                 "-",
                                 "--",
                                 "---",
                                 "--- a",
                                 "...",
                                 "?",
                                 "? a",
                                 "!a",
                                 "&a",
                                 "*a",
                                 "%a",
                                 "@a",
                                 "`a",
                                 "|",
                                 ">",
                                 "'a'",
                                 "\"a\"",
                                 "[a",
                                 "{a",
                                 "a,b",
                                 "a\tb",
                                 "a\nb",
                                 "a\n",
                                 "\r",
                                 "\x01\x7f",
                                 "\\",
                                 "\\/",
                                 "\u0085",
                                 "\u2028",
                                 "\ufeff",
                                 "\U0001F600",
                                 "<<",
                                 "=",
                                 "2001-01-01",
                                 "a  b",
                                 " a ",
                                 std::string(3'000, 'x'),
                                 std::string(3'000, ' '),
                                 std::string("a\0b", 3)};
  const cdi::document created = with_args(texts);
  for (const format form : {format::yaml, format::json}) {
    const auto read = cdi::parse(cdi::to_text(created, form), "F");
    ASSERT_THAT(read.problems, IsEmpty());
    EXPECT_EQ(read.content.devices[0].changes.hooks[0].args, texts);
    EXPECT_EQ(read.content, created);
  }
}

TEST(cdi_write, invalid_utf8_becomes_replacement_character) {
  const auto read = cdi::parse(cdi::to_text(with_args({"a\xff"
                                                       "b",
                                                       "\xc3",
                                                       "\xed\xa0\x80",
                                                       "\xf5\x80\x80\x80"}),
                                            format::json),
                               "F");
  ASSERT_THAT(read.problems, IsEmpty());
  EXPECT_THAT(read.content.devices[0].changes.hooks[0].args,
              ElementsAre("a\ufffdb", "\ufffd", "\ufffd\ufffd\ufffd", "\ufffd\ufffd\ufffd\ufffd"));
}

TEST(cdi_versions, lowest_sufficient_is_found) {
  const auto needs = [](const std::string& version, auto change) {
    cdi::document created = with_args({});
    change(created);
    EXPECT_EQ(cdi::minimum_version(created), version);
  };
  needs("0.3.0", [](auto&) {});
  needs("0.4.0", [](auto& document) {
    document.changes.mounts.push_back({"/a", "/b", {}, "bind"});
  });
  needs("0.5.0", [](auto& document) {
    document.devices[0].changes.device_nodes.push_back(node("/a", "/b"));
  });
  needs("0.5.0", [](auto& document) { document.devices[0].name = "0"; });
  needs("0.6.0", [](auto& document) { document.kind = "a/b.c"; });
  needs("0.6.0", [](auto& document) { document.notes["a"] = "b"; });
  needs("0.6.0", [](auto& document) { document.devices[0].notes["a"] = "b"; });
  needs("0.7.0", [](auto& document) { document.changes.additional_gids.push_back(0); });
  needs("0.7.0", [](auto& document) { document.devices[0].changes.rdt.emplace(); });
  needs("1.1.0", [](auto& document) { document.changes.rdt.emplace().schemata.emplace(); });
  needs("1.1.0", [](auto& document) { document.changes.rdt.emplace().enable_monitoring = true; });
  needs("1.1.0", [](auto& document) {
    document.devices[0].changes.net_devices.push_back({"a", "b"});
  });
}

TEST(cdi_versions, older_one_drops_newer_fields) {
  cdi::document created = with_args({});
  created.notes["a"] = "b";
  created.devices[0].notes["a"] = "b";
  created.changes.mounts = {{"tmpfs", "/t", {}, "tmpfs"}, {"/a", "/b", {}, "bind"}};
  created.devices[0].changes.device_nodes = {node("/dev/x", "/dev/x")};
  created.devices[0].changes.net_devices = {{"a", "b"}};
  created.devices[0].changes.additional_gids = {5};
  created.devices[0].changes.rdt.emplace();
  cdi::document middle = created;
  EXPECT_THAT(
      cdi::lower_to(created, "0.3.0"),
      ElementsAre("a/b: annotations is left out: it needs cdiVersion 0.6.0, not 0.3.0",
                  "a/b: the mount \"/t\" of type \"tmpfs\" is left out: it needs cdiVersion 0.4.0, "
                  "not 0.3.0",
                  "a/b: type of the mount \"/b\" is left out: it needs cdiVersion 0.4.0, not 0.3.0",
                  "a/b=d: annotations is left out: it needs cdiVersion 0.6.0, not 0.3.0",
                  "a/b=d: netDevices is left out: it needs cdiVersion 1.1.0, not 0.3.0",
                  "a/b=d: additionalGids is left out: it needs cdiVersion 0.7.0, not 0.3.0",
                  "a/b=d: intelRdt is left out: it needs cdiVersion 0.7.0, not 0.3.0"));
  EXPECT_EQ(created.version, "0.3.0");
  EXPECT_EQ(cdi::minimum_version(created), "0.3.0");
  EXPECT_THAT(cdi::parse(cdi::to_text(created, format::yaml), "F").problems, IsEmpty());

  middle.changes.rdt.emplace().schemata.emplace();
  EXPECT_THAT(cdi::lower_to(middle, "0.7.0"),
              ElementsAre("a/b: schemata is left out: it needs cdiVersion 1.1.0, not 0.7.0",
                          "a/b=d: netDevices is left out: it needs cdiVersion 1.1.0, not 0.7.0"));
  middle.changes.rdt->enable_cmt = true;
  EXPECT_THAT(
      cdi::lower_to(middle, "1.1.0"),
      ElementsAre("a/b: enableCMT and enableMBM are left out: cdiVersion 1.1.0 removed them"));
}

TEST(cdi_versions, incompatible_content_is_rejected) {
  cdi::document created = with_args({});
  EXPECT_EQ(refusal(created, "0.9.0"),
            "write CDI document for version 0.9.0 \"a/b\": unknown version (the versions "
            "are 0.3.0, 0.4.0, 0.5.0, 0.6.0, 0.7.0, 0.8.0, 1.0.0 and 1.1.0)");
  created.devices[0].name = "0";
  EXPECT_EQ(refusal(created, "0.4.0"),
            "write CDI document for version 0.4.0 \"a/b=0\": its name begins with a digit, which "
            "that version does not allow (choose another strategy for device names, or request "
            "version 0.5.0 or newer)");
  EXPECT_EQ(refusal(created, "0.5.0"), "done");
  created.kind = "a/b.c";
  EXPECT_EQ(
      refusal(created, "0.5.0"),
      "write CDI document for version 0.5.0 \"a/b.c\": its class has a dot, which that version "
      "does not allow (choose another class, or request version 0.6.0 or newer)");
  created = with_args({});
  created.devices[0].changes.device_nodes = {node("/dev/x", "/dev/y")};
  EXPECT_EQ(
      refusal(created, "0.4.0"),
      "write CDI document for version 0.4.0 \"a/b=d\": device node \"/dev/x\" needs its "
      "hostPath \"/dev/y\", which that version does not have (request version 0.5.0 or newer)");
  created.devices[0].changes = {};
  created.devices[0].changes.additional_gids = {5};
  EXPECT_EQ(refusal(created, "0.6.0"),
            "write CDI document for version 0.6.0 \"a/b=d\": that version supports none of the "
            "device's edits (request version 0.7.0)");
}

TEST(cdi_write_file, replaces_atomically_and_creates_directory) {
  const scratch_directory scratch;
  const std::string path = scratch.path("a/b/nvidia.yaml");
  cdi::write_file(with_args({"one"}), path, format::yaml);
  cdi::write_file(with_args({"two"}), path, format::yaml);
  EXPECT_EQ(cdi::load(path).content, with_args({"two"}));
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0644U);
  EXPECT_EQ(scratch.names("a/b"), std::vector<std::string>{"nvidia.yaml"});
}

TEST(cdi_write_file, leaves_nothing_after_failure) {
  const scratch_directory scratch;
  std::filesystem::create_directories(scratch.path("nvidia.yaml/in-the-way"));
  try {
    cdi::write_file(with_args({}), scratch.path("nvidia.yaml"), format::yaml);
    ADD_FAILURE();
  } catch (const gpushm::error& failure) {
    EXPECT_EQ(failure.operation(), "write CDI document");
    EXPECT_EQ(failure.cause(), "rename: Is a directory (EISDIR)");
  }
  EXPECT_EQ(scratch.names("."), std::vector<std::string>{"nvidia.yaml"});
}

}  // namespace
}  // namespace gpushm_tests
