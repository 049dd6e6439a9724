// SPDX-License-Identifier: Apache-2.0
// A manager leaks no descriptor, no thread and no socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/kubelet/server/server_test_support.hpp"
#include "tests/support/process/proc_counters.hpp"

namespace gpushm_tests {
namespace {

using gpushm::device_plugin::manager;
using gpushm_testing::count_descriptors;
using gpushm_testing::count_threads;
using gpushm_testing::eventually;
using gpushm_testing::to_text;
using gpushm_testing::total;
using ::testing::ElementsAre;

class server_leaks : public ::testing::Test, protected server_test_base {
 protected:
  void run_lifecycle() {
    manager served(options());
    const auto resource = std::make_shared<test_resource>(gpu, 4);
    served.set_resources({resource, std::make_shared<test_resource>("gpushm.dev/share", 8)});
    ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
    ASSERT_TRUE(kubelet_.wait_for_healthy("gpushm.dev/share", 8, seconds(20)));
    kubelet_.stop();
    kubelet_.start();
    ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
    served.set_resources({resource});
    kubelet_.stop();
    served.set_resources({});
    ASSERT_TRUE(eventually([&] { return served.status().empty(); }, seconds(20)));
    kubelet_.start();
  }
};

TEST_F(server_leaks, descriptors_and_threads_are_freed) {
  kubelet_.start();
  // gRPC keeps some descriptors and threads from its first use on.
  run_lifecycle();
  run_lifecycle();
  const auto descriptors = count_descriptors(::getpid());
  const auto threads = count_threads(::getpid());
  // gRPC's pools of threads and connections grow by a few with concurrent calls and shrink at any
  // time. A leak would occur in every cycle.
  constexpr std::size_t cycles = 16;
  constexpr std::size_t pool_margin = cycles / 2;
  for (std::size_t time = 0; time < cycles; ++time) {
    run_lifecycle();
  }
  EXPECT_TRUE(eventually(
      [&] { return total(count_descriptors(::getpid())) < total(descriptors) + pool_margin; },
      seconds(20)))
      << to_text(descriptors) << " became " << to_text(count_descriptors(::getpid()));
  EXPECT_TRUE(
      eventually([&] { return count_threads(::getpid()) < threads + pool_margin; }, seconds(20)))
      << threads << " became " << count_threads(::getpid());
  EXPECT_THAT(sockets(), ElementsAre("kubelet.sock"));
}

TEST_F(server_leaks, idle_manager_uses_no_cpu) {
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
  // Checks that no list is sent.
  EXPECT_FALSE(kubelet_.wait_for(
      gpu, [&](const auto& view) { return view.lists != lists; }, std::chrono::seconds(2)));
  EXPECT_LT(cpu_time() - before, gpushm_testing::scaled_timeout(milliseconds(200)));
}

}  // namespace
}  // namespace gpushm_tests
