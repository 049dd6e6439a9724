// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/raw_session/raw_session.hpp"

/// What clients ask of a broker that is disturbed meanwhile, and what they must see: the same as
/// from one that is not.
namespace gpushm_tests {

using namespace std::chrono_literals;
using gpushm_testing::eventually;

inline constexpr std::size_t segment_bytes = 8'192;
/// Chunks of a segment: more than fit into two packets.
inline constexpr std::size_t several_batches = 600;

/// Clients of a broker. Each part of a scenario may use what the parts before it have left here.
struct world {
  std::string socket;
  std::optional<gpushm::client> exporter;
  std::optional<gpushm::client> importer;
  std::vector<gpushm::segment> created;
  std::vector<gpushm::segment> opened;
  std::optional<gpushm::subscription> events;
  std::future<void> waiting;
  std::optional<gpushm_testing::child> process;
  std::optional<gpushm_testing::raw_session> asking;
  std::optional<gpushm_testing::raw_session> asked;

  [[nodiscard]] gpushm::client connect() const { return gpushm_testing::patient_client(socket); }
  void create(const std::string& name, bool published = true, std::size_t chunks = 1) {
    created.push_back(exporter->create(
        name,
        {.size_bytes = segment_bytes * chunks, .device = "host", .chunk_bytes = segment_bytes}));
    created.back().write(0, std::as_bytes(std::span(name)));
    if (published) {
      created.back().publish("about " + name);
    }
  }
  void open(const std::string& name) {
    opened.push_back(importer->open(name, {.timeout = gpushm_testing::scaled_timeout(20s)}));
  }
  /// Every opened segment has the contents of its name.
  void expect_contents() const {
    for (const gpushm::segment& each : opened) {
      const std::string name = each.name();
      std::string found(name.size(), ' ');
      each.read(0, std::as_writable_bytes(std::span(found)));
      EXPECT_EQ(found, name);
      EXPECT_EQ(each.state(), gpushm::segment_state::live);
    }
  }
  void expect_leases(const std::string& name, std::uint32_t leases) {
    EXPECT_TRUE(eventually([&] { return exporter->stat(name).leases == leases; }, 10s))
        << name << " has " << exporter->stat(name).leases;
  }
};

struct scenario {
  const char* name;
  std::function<void(world&)> before;
  std::function<void(world&)> traced;  ///< while the broker is disturbed, in another thread
  std::function<void(world&)> after;
};

/// For GoogleTest's messages.
inline void PrintTo(const scenario& scenario, std::ostream* to) {
  *to << scenario.name;
}

/// One for each kind of request.
[[nodiscard]] const std::vector<scenario>& scenarios();
/// By name.
[[nodiscard]] const scenario& scenario_of(const std::string& name);

}  // namespace gpushm_tests
