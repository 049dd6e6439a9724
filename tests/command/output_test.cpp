// SPDX-License-Identifier: Apache-2.0
// Text from a peer, a file or an argument cannot control a terminal or be invisible.

#include "apps/gpushm/output.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "base/report/log.hpp"
#include "base/segments/names.hpp"
#include "base/text/text.hpp"
#include "base/text/text_layout.hpp"
#include "inspect/topology/topology.hpp"

namespace gpushm::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

/// One text of each class that a terminal interprets or hides, and its escaped form.
struct hostile {
  std::string text;
  std::string escaped;
};

const std::vector<hostile>& hostile_texts() {
  static const std::vector<hostile> text{
      {"\x1b]0;title\x07", R"(\x1b]0;title\x07)"},
      {"\r", R"(\x0d)"},
      {"x\nGPU-0  forged", R"(x\x0aGPU-0  forged)"},
      {"\t", R"(\x09)"},
      {"\x7f", R"(\x7f)"},
      {"\xc2\x9b"
       "2J",
       R"(\u009b2J)"},
      {"\xff\xfe", R"(\xff\xfe)"},
      {"\xe2\x80\xae", R"(\u202e)"},
      {"\xe2\x81\xa6", R"(\u2066)"},
      {"\xe2\x80\x8f", R"(\u200f)"},
      {"\xe2\x80\x8b", R"(\u200b)"},
      {"\xe2\x80\xa8", R"(\u2028)"},
      {"\xef\xbb\xbf", R"(\ufeff)"},
      {"\xf3\xa0\x81\x81", R"(\U000e0041)"},
  };
  return text;
}

void expect_escaped(const std::string& printed, const hostile& hostile) {
  EXPECT_THAT(printed, HasSubstr(hostile.escaped));
  for (std::string_view rest = printed; !rest.empty();) {
    const base::character next = base::first_character(rest);
    ASSERT_NE(next.length, 0U) << "not UTF-8: " << hostile.escaped;
    ASSERT_TRUE(next.value == U'\n' || !base::is_control_or_invisible(next.value))
        << hostile.escaped;
    rest.remove_prefix(next.length);
  }
}

segment_info info_with(const std::string& text) {
  segment_info info;
  info.name = "name" + text;
  info.device.kind = device_kind::gpu;
  // `ls` shows only the beginning of a UUID.
  info.device.uuid = text;
  info.device.pci_address = "0000" + text;
  info.published = true;
  return info;
}

TEST(output, lines_are_escaped) {
  for (const hostile& each : hostile_texts()) {
    CaptureStdout();
    print_line("before " + each.text + " after");
    static_cast<void>(std::fflush(stdout));
    const std::string out = GetCapturedStdout();
    expect_escaped(out, each);
    EXPECT_EQ(out, "before " + each.escaped + " after\n");
    CaptureStderr();
    note("before " + each.text + " after");
    EXPECT_EQ(GetCapturedStderr(), "gpushm: before " + each.escaped + " after\n");
  }
}

TEST(output, library_warnings_are_escaped) {
  for (const hostile& each : hostile_texts()) {
    CaptureStderr();
    print_warnings();
    base::log(log_level::warning, "peer " + each.text);
    set_log_sink({});
    EXPECT_EQ(GetCapturedStderr(), "gpushm: warning: peer " + each.escaped + "\n");
  }
}

TEST(output, tables_are_escaped_and_aligned) {
  for (const hostile& each : hostile_texts()) {
    base::table table({{"A"}, {"B"}});
    table.add({each.text, "b"});
    const std::string text = table.text();
    expect_escaped(text, each);
    EXPECT_EQ(text.substr(text.find('\n') + 1), each.escaped + "  b\n");
    expect_escaped(base::fields_text({{"name", each.text}}, 2), each);
    EXPECT_EQ(base::fields_text({{"name", each.text}}, 2), "  name  " + each.escaped + "\n");
  }
}

TEST(output, ls_and_stat_are_escaped) {
  for (const hostile& each : hostile_texts()) {
    const segment_info info = info_with(each.text);
    const std::string text = segments_text({info});
    expect_escaped(text, each);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
    const std::string one = segment_text(info);
    expect_escaped(one, each);
    EXPECT_THAT(one,
                HasSubstr("  device         " + each.escaped + " (0000" + each.escaped + ")\n"));
    EXPECT_EQ(one.substr(0, one.find('\n')), "name" + each.escaped);
  }
}

TEST(output, json_is_one_line_of_utf8) {
  for (const hostile& each : hostile_texts()) {
    CaptureStdout();
    print_json(json{{"segment", to_json(info_with(each.text))}});
    const std::string line = GetCapturedStdout();
    EXPECT_TRUE(base::is_utf8(line));
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    const json read = json::parse(line);
    if (base::is_utf8(each.text)) {
      EXPECT_EQ(read["segment"]["name"], "name" + each.text);
    }
  }
}

TEST(output, topologies_are_escaped) {
  for (const hostile& each : hostile_texts()) {
    inspect::topology text;
    inspect::gpu_facts gpu;
    gpu.name = "NVIDIA" + each.text;
    gpu.uuid = each.text;
    text.machine.gpus.push_back(gpu);
    expect_escaped(inspect::topology_text(text), each);
    const std::string dot = inspect::topology_dot(text);
    const std::string svg = inspect::topology_svg(text);
    for (const std::string& drawn : {dot, svg}) {
      for (std::string_view rest = drawn; !rest.empty();) {
        const base::character next = base::first_character(rest);
        ASSERT_NE(next.length, 0U);
        ASSERT_TRUE(next.value == U'\n' || !base::is_control_or_invisible(next.value));
        rest.remove_prefix(next.length);
      }
    }
  }
}

}  // namespace
}  // namespace gpushm::cli
