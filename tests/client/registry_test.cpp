// SPDX-License-Identifier: Apache-2.0
// The clients that this process has for imported tickets.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "client/client_registry.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "testing/process/deadline.hpp"
#include "testing/process/temp_dir.hpp"

namespace gpushm {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;

/// A broker with one published segment, and its ticket.
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
  /// Connections other than the exporter's own.
  [[nodiscard]] std::uint64_t importers() const { return broker_.statistics().connections - 1; }
  [[nodiscard]] std::uint64_t opens() const { return broker_.statistics().opens; }

 private:
  gpushm_testing::temp_dir directory_;
  broker broker_;
  client client_;
  segment made_;
  std::vector<std::byte> bytes_;
};

TEST(client_registry, imports_of_one_broker_share_client_and_mapping) {
  const exporter from;
  {
    const segment kept = from.import();
    for (int i = 0; i < 5; ++i) {
      const segment got = from.import();
      EXPECT_EQ(got.data(), kept.data());
      EXPECT_EQ(static_cast<const unsigned char*>(got.data())[4095], 7);
      EXPECT_EQ(from.importers(), 1U);
    }
    EXPECT_EQ(from.opens(), 1U);
  }
  EXPECT_TRUE(eventually([&] { return from.importers() == 0; }, 20s));
}

TEST(client_registry, view_keeps_client_for_next_import) {
  const exporter from;
  segment_view view = from.import().view();
  EXPECT_EQ(from.importers(), 1U);
  static_cast<void>(from.import());
  EXPECT_EQ(from.importers(), 1U);
  EXPECT_EQ(from.opens(), 1U);
  view = {};
  EXPECT_TRUE(eventually([&] { return from.importers() == 0; }, 20s));
}

}  // namespace
}  // namespace gpushm
