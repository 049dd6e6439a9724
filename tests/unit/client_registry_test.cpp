// SPDX-License-Identifier: Apache-2.0
// The clients that this process has because of bytes that it imports.
#include "client/client_registry.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <list>
#include <string>
#include <vector>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "process/deadline.hpp"
#include "process/temp_dir.hpp"

namespace gpushm {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;

/// A broker with one published segment, and the bytes that lead to it.
class exporter {
 public:
  exporter()
      : broker_(broker::start({.socket_path = directory_ / "socket"})),
        client_(client::connect({.socket_path = directory_ / "socket"})),
        made_(client_.create(
            "w", {.size_bytes = 4096, .device = "host", .lifetime = lifetime::persistent})) {
    made_.fill(std::byte{7});
    made_.publish();
    bytes_ = export_segment(made_);
  }

  [[nodiscard]] segment import() const { return import_memory(bytes_); }
  /// Besides its own.
  [[nodiscard]] std::uint64_t importers() const { return broker_.statistics().connections - 1; }
  [[nodiscard]] std::uint64_t opens() const { return broker_.statistics().opens; }

 private:
  gpushm_testing::temp_dir directory_;
  broker broker_;
  client client_;
  segment made_;
  std::vector<std::byte> bytes_;
};

TEST(client_registry, importing_again_neither_connects_nor_opens_anew) {
  const exporter from;
  for (int i = 0; i < 5; ++i) {
    const segment got = from.import();
    std::byte first{};
    got.read(0, std::span(&first, 1));
    EXPECT_EQ(first, std::byte{7});
    EXPECT_EQ(from.importers(), 1U);
  }
  EXPECT_EQ(from.opens(), 1U);
}

TEST(client_registry, few_clients_stay_that_nothing_uses_and_the_latest_are_those) {
  std::list<exporter> all;
  for (std::size_t i = 0; i < detail::client_registry::most_idle + 2; ++i) {
    all.emplace_back();
    static_cast<void>(all.back().import());
  }
  auto at = all.begin();
  for (std::size_t i = 0; i < all.size(); ++i, ++at) {
    const std::uint64_t expected = i < 2 ? 0 : 1;
    EXPECT_TRUE(eventually([&] { return at->importers() == expected; }, 5s)) << i;
  }
}

TEST(client_registry, a_client_that_is_used_stays_whatever_comes_after_it) {
  const exporter first;
  const segment used = first.import();
  std::list<exporter> others;
  for (std::size_t i = 0; i < detail::client_registry::most_idle + 1; ++i) {
    others.emplace_back();
    static_cast<void>(others.back().import());
  }
  EXPECT_EQ(first.importers(), 1U);
  EXPECT_EQ(used.state(), segment_state::live);
  static_cast<void>(first.import());
  EXPECT_EQ(first.importers(), 1U);
}

}  // namespace
}  // namespace gpushm
