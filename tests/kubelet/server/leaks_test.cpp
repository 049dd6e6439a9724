// SPDX-License-Identifier: Apache-2.0
// Nothing is left of a manager: no descriptor, no thread, no socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "testing/process/proc_counters.hpp"
#include "tests/kubelet/server/server_test_support.hpp"

namespace gpushm_tests {
namespace {

using gpushm::kubelet::manager;
using gpushm_testing::count_descriptors;
using gpushm_testing::count_threads;
using gpushm_testing::eventually;
using gpushm_testing::to_text;
using gpushm_testing::total;
using ::testing::ElementsAre;

class server_leaks : public ::testing::Test, protected server_test_base {
 protected:
  void a_whole_life() {
    manager served(options());
    const auto what = std::make_shared<test_resource>(gpu, 4);
    served.set_resources({what, std::make_shared<test_resource>("gpushm.dev/share", 8)});
    ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
    ASSERT_TRUE(kubelet_.wait_for_healthy("gpushm.dev/share", 8, seconds(20)));
    kubelet_.stop();
    kubelet_.start();
    ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
    served.set_resources({what});
    kubelet_.stop();
    served.set_resources({});
    ASSERT_TRUE(eventually([&] { return served.status().empty(); }, seconds(20)));
    kubelet_.start();
  }
};

TEST_F(server_leaks, as_many_descriptors_and_threads_as_before) {
  kubelet_.start();
  // gRPC keeps some of its own from its first use on.
  a_whole_life();
  a_whole_life();
  const auto descriptors = count_descriptors(::getpid());
  const auto threads = count_threads(::getpid());
  // gRPC's own pools of threads and connections grow by a few with what runs at once, and shrink
  // when they like. What a life left behind would be there for each of them.
  constexpr std::size_t lives = 16;
  constexpr std::size_t of_pools = lives / 2;
  for (std::size_t time = 0; time < lives; ++time) {
    a_whole_life();
  }
  EXPECT_TRUE(eventually(
      [&] { return total(count_descriptors(::getpid())) < total(descriptors) + of_pools; },
      seconds(20)))
      << to_text(descriptors) << " became " << to_text(count_descriptors(::getpid()));
  EXPECT_TRUE(
      eventually([&] { return count_threads(::getpid()) < threads + of_pools; }, seconds(20)))
      << threads << " became " << count_threads(::getpid());
  EXPECT_THAT(sockets(), ElementsAre("kubelet.sock"));
}

TEST_F(server_leaks, an_idle_manager_does_nothing) {
  kubelet_.start();
  manager served(options());
  served.set_resources({std::make_shared<test_resource>(gpu, 6'400)});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 6'400, seconds(30)));
  const auto lists = kubelet_.resource(gpu).lists;
  const auto cpu_time = [] {
    timespec spent{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return std::chrono::seconds(spent.tv_sec) + std::chrono::nanoseconds(spent.tv_nsec);
  };
  const auto before = cpu_time();
  // Not to wait for something: to see that nothing comes.
  EXPECT_FALSE(kubelet_.wait_for(
      gpu, [&](const auto& view) { return view.lists != lists; }, std::chrono::seconds(2)));
  EXPECT_LT(cpu_time() - before, gpushm_testing::patience(milliseconds(200)));
}

}  // namespace
}  // namespace gpushm_tests
