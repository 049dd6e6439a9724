// SPDX-License-Identifier: Apache-2.0
// Values read from CDI documents, and reported problems.
#include "containers/cdi/document/parse.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "containers/cdi/document/name.hpp"

namespace gpushm_tests {
namespace {

namespace cdi = gpushm::cdi;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<std::string> problems_in(const std::string& text) {
  std::vector<std::string> lines;
  for (const gpushm::yaml::problem& each : cdi::parse(text, "F").problems) {
    lines.push_back(gpushm::yaml::to_string(each));
  }
  return lines;
}

std::string with_edits(const std::string& edits) {
  return "cdiVersion: 1.1.0\nkind: a/b\ndevices:\n- name: d\n  containerEdits:\n" + edits;
}

TEST(cdi_parse, reports_all_problems_with_positions) {
  EXPECT_THAT(
      problems_in("kind: 1a/b\n"
                  "cdiVersion: 0.4.0\n"
                  "foo: 1\n"
                  "devices:\n"
                  "- name: \"0\"\n"
                  "  containerEdits:\n"
                  "    env: [A, B=c]\n"
                  "    deviceNodes:\n"
                  "    - {hostPath: /dev/x, permissions: rx, major: x}\n"
                  "    additionalGids: [-1]\n"
                  "- name: a-\n"),
      ElementsAre(
          "F:1:7: the vendor cannot be \"1a\": it must begin with a letter [kind]",
          "F:3:1: a CDI document has no field \"foo\"; remove it or correct its name "
          "(cdiVersion, kind, annotations, devices, containerEdits) [unknown-field]",
          "F:5:9: a device name that begins with a digit needs cdiVersion 0.5.0, but the document "
          "has 0.4.0; raise the version or remove this [version-too-low]",
          "F:7:11: an environment variable must be \"NAME=value\", not \"A\" [env]",
          "F:9:7: path of a device node must not be empty or missing [device-node]",
          "F:9:8: hostPath needs cdiVersion 0.5.0, but the document has 0.4.0; raise the version "
          "or remove this [version-too-low]",
          "F:9:39: permissions must consist of the letters r, w and m, or be \"none\", not \"rx\" "
          "[device-node]",
          "F:9:50: major must be an integer, not a string (\"x\") [type]",
          "F:10:22: additionalGids must be from 0 to 4294967295, not \"-1\" [range]",
          "F:11:3: containerEdits of a device must not be empty; add an edit "
          "[empty-device]",
          "F:11:9: the name of a device cannot be \"a-\": it must end with a letter or a "
          "digit [device-name]"));
}

TEST(cdi_parse, reports_problems_of_the_whole_file) {
  EXPECT_THAT(problems_in(""), ElementsAre("F: it contains no CDI document [empty]"));
  EXPECT_THAT(problems_in(std::string(cdi::max_document_bytes + 1, ' ')),
              ElementsAre("F: it is larger than 4 MiB; shorten it [too-large]"));
  EXPECT_THAT(problems_in("- 1\n"),
              ElementsAre("F:1:1: a CDI document must be a mapping with cdiVersion, kind and "
                          "devices [type]"));
}

TEST(cdi_parse, reports_position_of_syntax_error) {
  EXPECT_THAT(problems_in("a: b\nc: [d\n"),
              ElementsAre("F:3:1: not valid YAML or JSON: did not find expected ',' or ']' "
                          "while parsing a flow sequence [syntax]"));
  EXPECT_THAT(problems_in("a: b\nc: \xff\n"),
              ElementsAre("F:2:4: not valid YAML or JSON: invalid leading UTF-8 octet "
                          "[syntax]"));
}

TEST(cdi_parse, keeps_first_duplicate_key) {
  EXPECT_THAT(problems_in("cdiVersion: 0.3.0\nkind: a/b\nkind: 1/c\nKind: 1/d\n"
                          "devices: [{name: d, containerEdits: {env: [A=b]}}]\n"),
              ElementsAre("F:3:1: \"kind\" is duplicated, first in line 2; remove one "
                          "[duplicate-key]",
                          "F:4:1: \"Kind\" repeats the field kind of line 2; remove one "
                          "[duplicate-key]"));
}

TEST(cdi_parse, warns_about_ignored_text) {
  const auto read = cdi::parse(with_edits("    env: [A=b]\n") + "---\nmore\n", "F");
  EXPECT_THAT(read.problems, IsEmpty());
  ASSERT_THAT(read.warnings, SizeIs(1));
  EXPECT_EQ(gpushm::yaml::to_string(read.warnings[0]),
            "F:7:1: engines ignore everything from here on; move it to a separate file "
            "[ignored-rest]");
}

// Engines of the released library reject the file, gpushm and later ones do not.
TEST(cdi_parse, warns_about_permissions_that_released_engines_refuse) {
  const auto read = cdi::parse(
      with_edits("    deviceNodes: [{path: /dev/x, permissions: none}, {path: /dev/y}]\n"), "F");
  EXPECT_THAT(read.problems, IsEmpty());
  ASSERT_THAT(read.warnings, SizeIs(1));
  EXPECT_EQ(gpushm::yaml::to_string(read.warnings[0]),
            "F:6:47: engines with the CDI library 1.1.0 or older refuse the whole document because "
            "of permissions \"none\"; omit the node's permissions unless every engine is newer "
            "[newer-engine]");
}

TEST(cdi_parse, stops_after_a_thousand_problems) {
  std::string list = "    env: [";
  for (int count = 0; count < 5'000; ++count) {
    list += "A,";
  }
  const auto lines = problems_in(with_edits(list + "]\n"));
  ASSERT_THAT(lines, SizeIs(1'001));
  EXPECT_EQ(lines.back(),
            "F:6:2011: too many problems; fix the ones above first "
            "[too-many-problems]");
}

TEST(cdi_parse, reads_values_as_the_reference_does) {
  const auto read = cdi::parse(
      with_edits("    deviceNodes:\n"
                 "    - {path: /dev/x, major: 195.0, minor: 0xfe, fileMode: 0666, UID: 08}\n"
                 "    hooks:\n"
                 "    - hookName: prestart\n"
                 "      path: /h\n"
                 "      args: [010, 0x10, 1e3, 1.10, 1234567.0, .5, -0, 0o7, 1_000, yes, Off, ~,\n"
                 "             .inf, 18446744073709551615, 0b-11, 1e-7, \"5\", 2001-01-01, 1e400]\n"
                 "      timeout: 1e1\n"),
      "F");
  ASSERT_THAT(read.problems, IsEmpty());
  const cdi::edits& edits = read.content.devices.at(0).changes;
  const cdi::device_node& node = edits.device_nodes.at(0);
  EXPECT_EQ(node.major, 195);
  EXPECT_EQ(node.minor, 254);
  EXPECT_EQ(node.file_mode, 0666U);
  EXPECT_EQ(node.uid, 8U);
  EXPECT_EQ(node.gid, std::nullopt);
  EXPECT_EQ(edits.hooks.at(0).timeout_s, 10);
  EXPECT_THAT(edits.hooks.at(0).args,
              ElementsAre("8",
                          "16",
                          "1000",
                          "1.1",
                          "1.234567e+06",
                          "0.5",
                          "0",
                          "7",
                          "1000",
                          "true",
                          "false",
                          "",
                          "+Inf",
                          "18446744073709551615",
                          "-3",
                          "1e-07",
                          "5",
                          "2001-01-01",
                          "1e400"));
}

TEST(cdi_parse, follows_aliases_and_merge_keys) {
  const auto read = cdi::parse(
      "cdiVersion: 0.7.0\nkind: a/b\ndevices:\n"
      "- {name: d, containerEdits: &e {env: &v [A=b]}}\n"
      "- {name: f, containerEdits: *e}\n"
      "- {name: g, containerEdits: {<<: *e, additionalGids: [5]}}\n"
      "- {name: h, containerEdits: {env: *v}}\n",
      "F");
  ASSERT_THAT(read.problems, IsEmpty());
  ASSERT_THAT(read.content.devices, SizeIs(4));
  for (const cdi::device& each : read.content.devices) {
    EXPECT_THAT(each.changes.env, ElementsAre("A=b"));
  }
  EXPECT_THAT(read.content.devices[2].changes.additional_gids, ElementsAre(5U));
}

TEST(cdi_parse, strips_leading_v_of_version) {
  EXPECT_EQ(cdi::parse("cdiVersion: v0.5.0\nkind: a/b\n"
                       "devices: [{name: d, containerEdits: {env: [A=b]}}]\n",
                       "F")
                .content.version,
            "0.5.0");
}

TEST(cdi_name, is_split) {
  const auto name = cdi::parse_qualified_name("nvidia.com/gpu=GPU-1:0");
  ASSERT_TRUE(name);
  EXPECT_EQ(*name, (cdi::qualified_name{"nvidia.com/gpu", "GPU-1:0"}));
  for (const char* wrong : {"",
                            "0",
                            "nvidia.com/gpu",
                            "nvidia.com/gpu=",
                            "nvidia.com=0",
                            "/gpu=0",
                            "nvidia.com/=0",
                            "1v/gpu=0",
                            "v/gpu=a=b",
                            "v/g/u=0",
                            "v/gpu=-0",
                            "v/gpu=0 ",
                            "/dev/nvidia0"}) {
    EXPECT_FALSE(cdi::parse_qualified_name(wrong)) << wrong;
  }
}

TEST(cdi_name, invalid_name_is_rejected_with_reason) {
  EXPECT_EQ(cdi::why_invalid_vendor("v.x_y-z1"), std::nullopt);
  EXPECT_EQ(cdi::why_invalid_vendor(""), "it must not be empty");
  EXPECT_EQ(cdi::why_invalid_class("1g"), "it must begin with a letter");
  EXPECT_EQ(cdi::why_invalid_class("a:b"), "it may contain only ASCII letters, digits and _ - .");
  EXPECT_EQ(cdi::why_invalid_device("1:0"), std::nullopt);
  EXPECT_EQ(cdi::why_invalid_device(":0"), "it must begin with a letter or a digit");
  EXPECT_EQ(cdi::why_invalid_device("a b"),
            "it may contain only ASCII letters, digits and _ - . :");
  EXPECT_EQ(cdi::why_invalid_device("a."), "it must end with a letter or a digit");
}

}  // namespace
}  // namespace gpushm_tests
