// SPDX-License-Identifier: Apache-2.0
// Floods that use up the broker's time: a good client makes progress, and its share does not depend
// on the number of processes that an attacker forks.

#include <algorithm>
#include <atomic>

#include "protocol/wire/codec.hpp"
#include "tests/hostile/hostile_world.hpp"
#include "tests/support/raw_session/floods.hpp"
#include "tests/support/raw_session/pump.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
namespace wire = gpushm::wire;

class fairness : public hostile, public ::testing::WithParamInterface<std::string> {};

TEST_P(fairness, good_client_makes_progress_under) {
  const auto* flood = gpushm_testing::find_flood(GetParam());
  ASSERT_NE(flood, nullptr);
  constexpr auto window = seconds(2);
  auto attack = attacker([&](forked_process::parent_link&) {
    flood->run(socket(), clock::now() + scaled_timeout(window));
  });
  expect_progress(window);
}

INSTANTIATE_TEST_SUITE_P(flood,
                         fairness,
                         ::testing::Values("stat-64",
                                           "list",
                                           "similar-names",
                                           "open-many-16",
                                           "open-many-missing",
                                           "descriptors",
                                           "connect",
                                           "connect-garbage",
                                           "fork",
                                           "killed",
                                           "orphans"),
                         [](const auto& tested) { return identifier(tested.param); });

/// Counts the Stat requests of one pipelining connection that are answered until `until`.
std::uint64_t work(const std::string& socket, clock::time_point until) {
  return gpushm_testing::pump(
             socket, {.packet = wire::encode({1, wire::stat{"good/segment"}})}, until)
      .replies;
}

class fair_share : public hostile {};

TEST_F(fair_share, fifty_processes_of_one_user_get_one_share) {
  constexpr auto window = seconds(2);
  constexpr unsigned forks = 50;
  auto crowd = attacker([&](forked_process::parent_link& parent) {
    parent.send_line("started");
    parent.wait_for_go();
    const auto until = clock::now() + window;
    std::vector<forked_process> others;
    for (unsigned i = 0; i < forks; ++i) {
      others.push_back(forked_process::start({}, [&](forked_process::parent_link& link) {
        link.send_line(std::to_string(work(socket(), until)));
      }));
    }
    std::uint64_t sum = 0;
    for (auto& other : others) {
      sum += std::stoull(other.wait_line(window + seconds(10)));
    }
    parent.send_line(std::to_string(sum));
  });
  auto alone = attacker(
      [&](forked_process::parent_link& parent) {
        parent.wait_for_go();
        parent.send_line(std::to_string(work(socket(), clock::now() + window)));
      },
      {.uid = good_uid + 1});
  ASSERT_EQ(crowd.wait_line(seconds(10)), "started");
  crowd.go();
  alone.go();
  const auto of_one = std::stoull(alone.wait_line(window + seconds(20)));
  const auto of_crowd = std::stoull(crowd.wait_line(window + seconds(20)));
  std::cout << "  one process of another user: " << of_one << ", fifty of one user: " << of_crowd
            << '\n';
  // Half of the broker's time would be fair; the processes themselves also compete for two CPUs.
  EXPECT_GT(of_one * 3, of_crowd);
}

}  // namespace
}  // namespace gpushm_tests
