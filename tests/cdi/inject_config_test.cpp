// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "containers/cdi/inject/config.hpp"
#include "gpushm/error.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::cdi {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string problem_of(std::string_view text) {
  try {
    (void)parse_config(text, "config.json");
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), errc::invalid_argument);
    return failure.what();
  }
  return "none";
}

TEST(inject_config, round_trips) {
  for (const std::string text : {
           R"({})",
           R"({"z":1,"a":{"c":[1,2.5,-3,true,null,"x"],"b":{}},"m":[]})",
           R"({"big":18446744073709551615,"small":-9223372036854775808,"f":0.1,"e":1e+100})",
           R"({"text":"quote \" slash \\ tab \t umlaut ü smile 😀 nul \u0000"})",
           "{\n  \"a\": {\n    \"b\": [\n      1\n    ]\n  }\n}\n",
           "{\n\t\"a\": {\n\t\t\"b\": 1\n\t}\n}",
           "{\n    \"a\": 1\n}\n",
       }) {
    EXPECT_EQ(to_text(parse_config(text, "c"), text), text);
  }
}

TEST(inject_config, many_keys_are_read_fast) {
  constexpr int count = 200'000;
  std::string text = "{";
  for (int i = 0; i < count; ++i) {
    text.append(i == 0 ? "\"k" : ",\"k").append(std::to_string(i)).append("\":1");
  }
  EXPECT_EQ(parse_config(text + "}", "c").size(), static_cast<std::size_t>(count));
  EXPECT_EQ(problem_of(text + ",\"k7\":2}"),
            "read config \"config.json\": duplicate key \"k7\" in one object");
}

TEST(inject_config, lossy_input_is_rejected) {
  EXPECT_EQ(problem_of(R"({"a":1,"b":{"c":1,"c":2}})"),
            "read config \"config.json\": duplicate key \"c\" in one object");
  EXPECT_EQ(problem_of(R"({"a":18446744073709551616})"),
            "read config \"config.json\": the number \"18446744073709551616\" has more than 64 "
            "bits");
  EXPECT_EQ(problem_of("[1]"), "read config \"config.json\": it is not a JSON object");
  EXPECT_EQ(problem_of("7"), "read config \"config.json\": it is not a JSON object");
}

TEST(inject_config, error_has_position) {
  EXPECT_THAT(problem_of("{\n  \"a\": nul\n}"),
              StartsWith("read config \"config.json\": line 2, column "));
  EXPECT_THAT(problem_of("{} x"), StartsWith("read config \"config.json\": line 1, column "));
  EXPECT_THAT(problem_of("{} {}"), HasSubstr("line 1, column "));
  EXPECT_THAT(problem_of(""), HasSubstr("line 1, column 1: "));
  EXPECT_THAT(problem_of("{\"a\": \"\xff\"}"), HasSubstr("invalid string"));
  EXPECT_THAT(problem_of("{\"a\": 1e999}"), HasSubstr("number overflow"));
  EXPECT_THAT(problem_of(R"({"a":"half)"), HasSubstr("missing closing quote"));
  EXPECT_THAT(problem_of(R"({"a":"\ud800"})"), HasSubstr("surrogate"));
}

TEST(inject_config, depth_is_limited) {
  const auto nested = [](std::size_t depth) {
    std::string text = "{\"a\":";
    text.append(depth - 1, '[').append(depth - 1, ']').append("}");
    return text;
  };
  EXPECT_EQ(problem_of(nested(max_config_depth)), "none");
  EXPECT_EQ(problem_of(nested(max_config_depth + 1)),
            "read config \"config.json\": it is nested more than 256 levels deep");
  EXPECT_THAT(problem_of(std::string(1'000'000, '[')),
              HasSubstr("nested more than 256 levels deep"));
}

class inject_file : public ::testing::Test {
 protected:
  static std::string contents(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  gpushm_testing::temp_dir directory_;
};

TEST_F(inject_file, is_replaced_with_mode_and_owner) {
  const std::string path = directory_ / "config.json";
  std::ofstream(path) << "{}";
  ::chmod(path.c_str(), 0640);
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::chown(path.c_str(), 1234, 4321), 0);
  }
  struct stat before {};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  const std::string link = directory_ / "link";
  ASSERT_EQ(::symlink("config.json", link.c_str()), 0);
  replace_file(link, "{\"a\":1}");
  struct stat after {};
  ASSERT_EQ(::lstat(path.c_str(), &after), 0);
  EXPECT_EQ(contents(path), "{\"a\":1}");
  EXPECT_EQ(after.st_mode, before.st_mode);
  EXPECT_EQ(after.st_uid, before.st_uid);
  EXPECT_EQ(after.st_gid, before.st_gid);
  EXPECT_NE(after.st_ino, before.st_ino);
  ASSERT_EQ(::lstat(link.c_str(), &after), 0);
  EXPECT_TRUE(S_ISLNK(after.st_mode));
}

TEST_F(inject_file, unreadable_is_reported) {
  const auto problem = [](const std::string& path) -> std::string {
    try {
      (void)read_config_text(path);
    } catch (const error& failure) {
      return failure.what();
    }
    return "none";
  };
  const std::string missing = directory_ / "missing";
  EXPECT_EQ(
      problem(missing),
      "read config \"" + missing + "\": open: No such file or directory (ENOENT) (check the path)");
  EXPECT_EQ(problem(directory_.path()),
            "read config \"" + directory_.path() + "\": it is not a regular file");
  const std::string fifo = directory_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(problem(fifo), "read config \"" + fifo + "\": it is not a regular file");
  const std::string loop = directory_ / "loop";
  ASSERT_EQ(::symlink("loop", loop.c_str()), 0);
  EXPECT_EQ(problem(loop),
            "read config \"" + loop +
                "\": open: Too many levels of symbolic links (ELOOP) (see errno(3))");
  const std::string huge = directory_ / "huge";
  std::ofstream(huge).flush();
  ASSERT_EQ(::truncate(huge.c_str(), off_t{1} << 30), 0);
  EXPECT_EQ(problem(huge), "read config \"" + huge + "\": it is larger than 64 MiB");
}

}  // namespace
}  // namespace gpushm::cdi
