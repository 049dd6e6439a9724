// SPDX-License-Identifier: Apache-2.0
// Many segments, many chunks, many clients, against a real broker.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/files/page_size.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/broker_process.hpp"
#include "tests/support/broker_process/holdings.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::own_program;
using gpushm_testing::temp_dir;
using std::chrono::seconds;

unsigned hard_limit_of_descriptors() {
  rlimit limit{};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  return static_cast<unsigned>(std::min<rlim_t>(limit.rlim_max, 1U << 20U));
}

class scale : public ::testing::Test {
 protected:
  [[nodiscard]] static gpushm::client connect(const broker_process& broker) {
    return gpushm::client::connect({.socket_path = broker.socket_path()});
  }

  /// Creates one-chunk segments until the broker refuses. It must refuse with the right error, keep
  /// its reserve, and continue to serve.
  static void fill_descriptors(broker_process& broker, unsigned limit, std::size_t at_most) {
    auto client = connect(broker);
    const auto before = settled_holdings_of({broker.pid(), ::getpid()});
    std::vector<gpushm::segment> created;
    std::optional<gpushm::error> refusal;
    while (!refusal && created.size() < at_most) {
      try {
        created.push_back(client.create("scale/" + std::to_string(created.size()),
                                        {.size_bytes = 4096, .device = "host"}));
        created.back().publish();
      } catch (const gpushm::error& failure) {
        refusal = failure;
      }
    }
    ASSERT_TRUE(refusal.has_value()) << "no refusal after " << created.size() << " segments";
    EXPECT_EQ(refusal->code(), gpushm::errc::too_many_descriptors) << refusal->what();
    const auto used = gpushm_testing::total(gpushm_testing::count_descriptors(broker.pid()));
    EXPECT_LE(used + 32, limit) << "the reserve was used";
    // One chunk each; all descriptors but the reserve, the connections and the broker's own.
    EXPECT_GE(created.size() + 200, limit) << "refused too early";

    EXPECT_EQ(client.list().size(), created.size());
    EXPECT_EQ(client.open("scale/0").size_bytes(), 4096U);
    created.pop_back();
    EXPECT_TRUE(eventually(
        [&] {
          try {
            created.push_back(client.create("scale/again", {.size_bytes = 4096, .device = "host"}));
            return true;
          } catch (const gpushm::error&) {
            return false;
          }
        },
        seconds(20)));
    created.clear();
    EXPECT_TRUE(back_to(before, {broker.pid(), ::getpid()}, seconds(10)));
  }

  temp_dir directory_;
};

TEST_F(scale, refuses_before_its_descriptors_run_out) {
  constexpr unsigned limit = 600;
  broker_process broker(directory_ / "socket", {}, limit);
  fill_descriptors(broker, limit, limit);
}

TEST_F(scale, slow_creates_segments_up_to_the_descriptor_limit) {
  // Shadow mappings count as mappings, too, and a process may have 65,530.
  const auto most = gpushm_testing::number_from_environment("GPUSHM_SCALE_DESCRIPTORS", 6'000U);
  const unsigned limit = std::min(hard_limit_of_descriptors(), most);
  broker_process broker(directory_ / "socket", {}, limit);
  fill_descriptors(broker, limit, limit);
}

TEST_F(scale, segment_with_four_thousand_chunks) {
  constexpr std::uint64_t chunks = 4'000;
  const std::uint64_t chunk_bytes = gpushm::base::host_page_bytes();
  if (hard_limit_of_descriptors() < chunks + 200) {
    GTEST_SKIP() << "the hard limit of descriptors is " << hard_limit_of_descriptors();
  }
  broker_process broker(directory_ / "socket");
  auto producer = connect(broker);
  auto consumer = connect(broker);
  const auto before = settled_holdings_of({broker.pid(), ::getpid()});
  {
    auto created = producer.create(
        "scale/chunks",
        {.size_bytes = chunks * chunk_bytes, .device = "host", .chunk_bytes = chunk_bytes});
    for (std::uint64_t i = 0; i < chunks; ++i) {
      std::array<std::byte, sizeof i> number{};
      std::memcpy(number.data(), &i, sizeof i);
      created.write(i * chunk_bytes, number);
    }
    created.publish();
    EXPECT_EQ(consumer.stat("scale/chunks").chunks, chunks);
    const auto opened = consumer.open("scale/chunks");
    // One address range, in order.
    for (std::uint64_t i = 0; i < chunks; ++i) {
      std::uint64_t number = 0;
      std::memcpy(
          &number, static_cast<const std::byte*>(opened.data()) + i * chunk_bytes, sizeof number);
      ASSERT_EQ(number, i);
    }
    // Descriptors are closed once sent and once mapped.
    EXPECT_LT(
        gpushm_testing::total(gpushm_testing::count_descriptors(::getpid()), "memfd:gpushm-chunk"),
        10U);
  }
  EXPECT_TRUE(back_to(before, {broker.pid(), ::getpid()}, seconds(5)));
}

TEST_F(scale, thousand_concurrent_clients) {
  constexpr std::uint32_t processes = 4;
  constexpr std::uint32_t clients_each = 250;
  broker_process broker(directory_ / "socket");
  auto client = connect(broker);
  auto created = client.create("scale/clients", {.size_bytes = 64U << 10U, .device = "host"});
  created.fill(std::byte{0x33});
  created.publish();
  const auto before = settled_holdings_of({broker.pid()});
  std::vector<child> crowds;
  for (std::uint32_t i = 0; i < processes; ++i) {
    crowds.push_back(child::start({.argv = {own_program("client_crowd"),
                                            broker.socket_path(),
                                            "scale/clients",
                                            std::to_string(clients_each)}}));
  }
  for (auto& crowd : crowds) {
    crowd.wait_for_line("^all open$", seconds(60));
  }
  EXPECT_EQ(client.stat("scale/clients").leases, processes * clients_each + 1);
  for (auto& crowd : crowds) {
    crowd.write("leave\n");
    EXPECT_EQ(crowd.wait_exit(seconds(60)), exited(0)) << crowd.output().all_output();
  }
  EXPECT_TRUE(eventually([&] { return client.stat("scale/clients").leases == 1; }, seconds(4)));
  EXPECT_TRUE(back_to(before, {broker.pid()}));
}

}  // namespace
}  // namespace gpushm_tests
