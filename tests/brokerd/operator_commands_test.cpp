// SPDX-License-Identifier: Apache-2.0
// The commands with which operators look into gpushm-brokerd, and what to do when a domain is full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::run_result;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class operator_commands : public testing::Test {
 protected:
  gpushm::segment make(const std::string& name) {
    gpushm::segment result = member_.create(
        name, {.size_bytes = 4096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    result.publish();
    return result;
  }
  /// A segment that no process has open.
  void leave(const std::string& name) {
    static_cast<void>(make(name));
    ASSERT_TRUE(gpushm_testing::eventually([&] { return member_.stat(name).leases == 0; }, 60s));
  }
  [[nodiscard]] run_result run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), gpushm_testing::own_program("gpushm"));
    arguments.insert(arguments.end(), {"--run-dir", directory_ / "run"});
    return gpushm_testing::run_program({.argv = std::move(arguments)}, 60s);
  }
  [[nodiscard]] bool exists(const std::string& name) { return member_.try_open(name).has_value(); }

  gpushm_testing::temp_dir directory_{0755};
  gpushm_testing::brokerd broker_{directory_ / "run", {"--domain", "default"}};
  gpushm::client member_ = gpushm_testing::patient_client(directory_ / "run/d/default/socket");
};

TEST_F(operator_commands, remove_what_no_process_has_open) {
  const gpushm::segment held = make("held");
  leave("left");
  leave("left too");
  // What is reported as removed, is; nothing else changes.
  const run_result tried = run({"rm", "--unheld", "--dry-run"});
  ASSERT_EQ(tried.status.code, 0) << tried.err;
  EXPECT_THAT(tried.out, ContainsRegex("would remove \"left\" \\(4 KiB, [a-z]+ [^,]+, [0-9]+s\\)"));
  EXPECT_THAT(tried.out, HasSubstr("would remove \"left too\""));
  EXPECT_THAT(tried.out, Not(HasSubstr("held")));
  EXPECT_THAT(tried.err, HasSubstr("2 segments of 8 KiB"));

  const run_result none = run({"rm", "--unheld", "--principal", "pod of another one", "--json"});
  EXPECT_EQ(none.out, "{\"removed\":[],\"bytes\":0,\"failed\":[]}\n") << none.err;

  const run_result done = run({"rm", "--unheld"});
  ASSERT_EQ(done.status.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("removed \"left\""));
  EXPECT_TRUE(exists("held"));
  EXPECT_FALSE(exists("left"));
  EXPECT_FALSE(exists("left too"));
  EXPECT_NE(broker_.keeper().wait_for_line(
                "removed \"left\" \\(4 KiB\\) for an operator", 60s, gpushm_testing::stream::err),
            "");
}

TEST_F(operator_commands, remove_those_of_one_principal) {
  leave("left");
  const run_result listed = run({"ls", "--by", "principal", "--json"});
  ASSERT_EQ(listed.status.code, 0) << listed.err;
  const std::string key = "\"principal\":\"";
  const auto begin = listed.out.find(key) + key.size();
  const std::string principal = listed.out.substr(begin, listed.out.find('"', begin) - begin);
  const run_result done = run({"rm", "--unheld", "--principal", principal, "--json"});
  EXPECT_EQ(done.out, "{\"removed\":[\"left\"],\"bytes\":4096,\"failed\":[]}\n") << done.err;
}

TEST_F(operator_commands, list_who_has_what) {
  const gpushm::segment held = make("held");
  leave("left");
  const run_result listed = run({"ls", "--by", "principal"});
  ASSERT_EQ(listed.status.code, 0) << listed.err;
  EXPECT_THAT(listed.out, ContainsRegex("PRINCIPAL +NAME +SIZE +DEVICE +LIFETIME +STATE +AGE"));
  EXPECT_THAT(listed.out, ContainsRegex("held +4 KiB +host +persistent +live +[0-9]+s +1 +[a-z]"));
  EXPECT_THAT(listed.out, ContainsRegex("left +4 KiB +host +persistent +live +[0-9]+s +0 +-"));
  EXPECT_EQ(run({"ls", "--by", "principal", "-q", "le"}).out, "left\n");

  ASSERT_TRUE(broker_.kill());
  static_cast<void>(member_.list());  // of the next one
  const run_result later = run({"ls", "--by", "principal"});
  EXPECT_THAT(later.out, ContainsRegex("left +4 KiB +host +persistent +live +>[0-9]+s"))
      << "older than the broker: " << later.err;
}

TEST_F(operator_commands, name_the_pods_of_a_list) {
  const gpushm::segment held = make("held");
  const std::string path = directory_ / "pods";
  const auto listed_with = [&](const std::string& pods) {
    std::ofstream(path) << pods;
    return run({"ls", "--by", "principal", "--pods", path});
  };
  // This process is in no pod: its principal stays as it is.
  const run_result plain = run({"ls", "--by", "principal"});
  const run_result other = listed_with("UID NS NAME\n11111111-2222 ml trainer-0\n");
  EXPECT_EQ(other.status.code, 0) << other.err;
  EXPECT_THAT(other.out, HasSubstr("held"));
  EXPECT_THAT(other.out, Not(HasSubstr("trainer-0")));
  EXPECT_THAT(run({"ls", "--by", "principal", "--pods", path, "--json"}).out,
              HasSubstr("\"pod\":null,\"holder_pods\":{}"));
  const run_result wrong = listed_with("11111111-2222 ml trainer-0\nnonsense\n");
  EXPECT_EQ(wrong.status.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("line 2 is not a uid, a namespace and a name"));
  EXPECT_EQ(run({"ls", "--by", "principal", "--pods", directory_ / "missing"}).status.code, 1);
  EXPECT_EQ(run({"ls", "--pods", path}).status.code, 2) << "of segments by principal only";
  EXPECT_EQ(plain.status.code, 0);
}

TEST_F(operator_commands, show_the_broker) {
  const gpushm::segment held = make("held");
  leave("left");
  const run_result shown = run({"stat", "--broker"});
  ASSERT_EQ(shown.status.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("gpushm-brokerd " GPUSHM_VERSION ", started at 20"));
  EXPECT_THAT(shown.out, ContainsRegex("\nmemory_bytes +[0-9.]+ [KM]?i?B +[0-9.]+ [KMG]iB\n"));
  EXPECT_THAT(shown.out, HasSubstr("\ndomain default\n"));
  EXPECT_THAT(shown.out, HasSubstr("segments that no process has open: 1 of 4 KiB"));
  EXPECT_THAT(shown.out, ContainsRegex("\nsegments +2 +4096\n"));
  const run_result document = run({"stat", "--broker", "--json"});
  EXPECT_THAT(document.out, HasSubstr("\"unheld\":{\"segments\":1,\"bytes\":4096,"));
  EXPECT_EQ(run({"stat", "--broker", "--domain", "other"}).status.code, 1);
  EXPECT_EQ(run({"stat", "held"}).status.code, 2) << "--run-dir is not for a segment";
}

}  // namespace
