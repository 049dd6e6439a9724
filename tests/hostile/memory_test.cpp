// SPDX-License-Identifier: Apache-2.0
// The broker's memory stays bounded and below its cgroup's limit, whatever clients send.

#include <algorithm>

#include "protocol/wire/codec.hpp"
#include "tests/hostile/hostile_world.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/spawn.hpp"
#include "tests/support/raw_session/floods.hpp"
#include "tests/support/raw_session/memory_group.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::clock;
using std::chrono::seconds;

struct memory_bound {
  const char* flood;
  std::uint64_t mebibytes;
};
void PrintTo(const memory_bound& bound, std::ostream* to) {
  *to << bound.flood << " within " << bound.mebibytes << " MiB";
}

/// Floods that use up memory, and the upper bound of the broker's growth under each.
class memory : public hostile, public ::testing::WithParamInterface<memory_bound> {
 protected:
  memory() : hostile({"memory_bytes=" + std::to_string(64 * mebibyte)}) {}
};

TEST_P(memory, stays_bounded_under) {
  const auto* flood = gpushm_testing::find_flood(GetParam().flood);
  ASSERT_NE(flood, nullptr);
  constexpr auto window = seconds(2);
  auto attack = attacker([&](forked_process::parent_link&) {
    flood->run(socket(), clock::now() + scaled_timeout(window));
  });
  expect_progress(window);
  if (gpushm_testing::timeout_factor == 1) {  // instrumented programs keep what they freed
    EXPECT_LT(peak_growth_, GetParam().mebibytes * mebibyte);
  }
}

INSTANTIATE_TEST_SUITE_P(flood,
                         memory,
                         ::testing::Values(memory_bound{"large-answers", 96},
                                           memory_bound{"waiting-opens", 96},
                                           memory_bound{"confirms", 64},
                                           memory_bound{"events", 96},
                                           memory_bound{"connect-hello", 48},
                                           memory_bound{"reserve", 64},
                                           memory_bound{"publish-metadata", 96},
                                           memory_bound{"not-reading-32", 96},
                                           memory_bound{"garbage", 64}),
                         [](const auto& tested) { return identifier(tested.param.flood); });

/// Each flood against a broker with the memory limit of the node agent's container.
class memory_limit : public ::testing::TestWithParam<std::string> {};

TEST_P(memory_limit, of_256_mib_is_not_reached_under) {
  if (gpushm_testing::timeout_factor > 1) {
    GTEST_SKIP() << "instrumented programs use more memory than the agent's container has";
  }
  std::string why_not;
  const auto group = gpushm_testing::memory_group::make(256 * mebibyte, why_not);
  if (!group) {
    GTEST_SKIP() << why_not;
  }
  const gpushm_testing::temp_dir directory(0755);
  const auto socket = directory / "socket";
  auto broker = gpushm_testing::child::start({.argv = {"/bin/sh",
                                                       "-c",
                                                       "read go; exec \"$0\" \"$1\"",
                                                       gpushm_testing::own_program("test_broker"),
                                                       socket}});
  if (!group->add(broker.pid())) {
    GTEST_SKIP() << "a process cannot be moved into the cgroup";
  }
  broker.write("go\n");
  broker.wait_for_line("^ready$", seconds(20));
  {
    gpushm_testing::good_client good(socket, {.process = {.uid = good_uid}});
    const auto* flood = gpushm_testing::find_flood(GetParam());
    ASSERT_NE(flood, nullptr);
    constexpr auto window = seconds(2);
    auto attack = forked_process::start({.uid = gpushm_testing::hostile_uid, .niceness = 5},
                                        [&](forked_process::parent_link&) {
                                          flood->run(socket, clock::now() + scaled_timeout(window));
                                        });
    const auto figures = good.measure(window);
    EXPECT_EQ(group->kills(), 0U);
    EXPECT_TRUE(broker.running()) << broker.output().all_output();
    EXPECT_FALSE(figures.dropped);
    EXPECT_GT(figures.replies, 0U);
    std::cout << "  " << group->peak_bytes() / mebibyte << " MiB at most\n";
  }
  broker.kill(SIGKILL);
  (void)broker.wait_exit(seconds(10));
}

INSTANTIATE_TEST_SUITE_P(flood,
                         memory_limit,
                         ::testing::Values("metadata",
                                           "chunks",
                                           "large-answers",
                                           "waiting-opens",
                                           "confirms",
                                           "events",
                                           "reserve",
                                           "publish-metadata",
                                           "connect-hello",
                                           "killed"),
                         [](const auto& tested) { return identifier(tested.param); });

}  // namespace
}  // namespace gpushm_tests
