// SPDX-License-Identifier: Apache-2.0
// Repeats every operation of a client, with its broker in the same process: after a warm-up the
// heap, the descriptors and the mappings of the process do not grow. $GPUSHM_LEAK_ROUNDS sets the
// number of rounds (default: 2,000; thorough: 100,000).

#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <optional>
#include <string>

#include "base/files/page_size.hpp"
#include "base/files/sanitizers.hpp"
#include "base/files/syscall.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/raw_session.hpp"

// Exists in the libraries of both sanitizers; GCC has the functions but not their header
// (sanitizer/allocator_interface.h).
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-redundant-declaration)
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();

namespace gpushm_tests {
namespace {

const std::uint64_t page = gpushm::base::host_page_bytes();
/// A client sweeps its table of ended segments once it has 64 of them (some 34 KiB), so the heap
/// varies with their number.
constexpr std::size_t heap_slack = 48UL << 10U;

std::size_t heap_bytes() {
  if constexpr (gpushm::base::under_sanitizer) {
    return __sanitizer_get_current_allocated_bytes();
  } else {
    const auto now = ::mallinfo2();
    return now.uordblks + now.hblkhd;
  }
}

std::size_t rounds() {
  return std::max<std::size_t>(
      100, gpushm_testing::number_from_environment<std::size_t>("GPUSHM_LEAK_ROUNDS", 2000));
}

/// A broker and two clients in this process.
struct world {
  gpushm_testing::temp_dir directory;
  gpushm::broker broker =
      gpushm::broker::start({.socket_path = directory / "socket", .mode = 0600});
  gpushm::client producer = connect();
  gpushm::client consumer = connect({.max_entries = 0});
  gpushm::client caching = connect();
  gpushm::segment kept = publish(
      "kept", {.size_bytes = page, .device = "host", .lifetime = gpushm::lifetime::persistent});
  gpushm::base::unique_fd file = gpushm_testing::make_chunk(page);
  void* mapped =
      ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);  // NOLINT
  std::size_t round = 0;

  [[nodiscard]] gpushm::client connect(const gpushm::cache_options& cache = {}) const {
    return gpushm::client::connect({.socket_path = directory / "socket", .cache = cache});
  }
  gpushm::segment publish(const std::string& name, const gpushm::create_options& options) {
    auto created = producer.create(name, options);
    created.publish("metadata of this one");
    return created;
  }
  [[nodiscard]] static gpushm::create_options host() {
    return {.size_bytes = page, .device = "host"};
  }
  /// Names repeat after some rounds, like those of a pool of blocks.
  [[nodiscard]] std::string name() const { return "round/" + std::to_string(round % 16); }
};

struct operation {
  const char* name;
  void (*run)(world& world);
};
void PrintTo(const operation& operation, std::ostream* to) {
  *to << operation.name;
}

void ignore(const gpushm::error&) {}

constexpr operation operations[] = {
    {"create_and_destroy",
     [](world& world) { (void)world.producer.create(world.name(), world::host()); }},
    {"create_publish_and_destroy",
     [](world& world) { (void)world.publish(world.name(), world::host()); }},
    {"create_many_chunks",
     [](world& world) {
       (void)world.publish(world.name(),
                           {.size_bytes = 8 * page, .device = "host", .chunk_bytes = page});
     }},
    {"share_and_unshare",
     [](world& world) {
       auto shared = world.producer.share(world.name(), world.mapped, page);
       shared.unshare();
     }},
    {"share_and_destroy",
     [](world& world) { (void)world.producer.share(world.name(), world.mapped, page); }},
    {"open_and_release", [](world& world) { (void)world.consumer.open("kept"); }},
    {"open_from_the_cache", [](world& world) { (void)world.caching.open("kept"); }},
    {"open_new_names_with_a_cache",
     [](world& world) {
       const auto created = world.publish(world.name(), world::host());
       (void)world.caching.open(world.name());
     }},
    {"open_in_the_creators_process", [](world& world) { (void)world.producer.open("kept"); }},
    {"open_many",
     [](world& world) {
       const std::string names[] = {"kept", "missing", "kept"};
       (void)world.consumer.open_many(names);
     }},
    {"removed_while_held",
     [](world& world) {
       const auto created = world.publish(
           world.name(),
           {.size_bytes = page, .device = "host", .lifetime = gpushm::lifetime::persistent});
       const auto held = world.consumer.open(world.name());
       const auto cached = world.caching.open(world.name());
       world.producer.remove(world.name());
     }},
    {"subscribe_and_unsubscribe", [](world& world) { (void)world.consumer.subscribe("round/"); }},
    {"events",
     [](world& world) {
       auto events = world.consumer.subscribe(world.name());
       const auto created = world.publish(world.name(), world::host());
       (void)events.next(std::chrono::seconds(5));
     }},
    {"connect_and_close", [](world& world) { (void)world.connect(); }},
    {"connect_without_hello",
     [](world& world) { const gpushm_testing::raw_session silent(world.directory / "socket"); }},
    {"failed_open",
     [](world& world) { (void)world.consumer.try_open("missing/" + std::to_string(world.round)); }},
    {"failed_create",
     [](world& world) {
       try {
         (void)world.producer.create("kept", world::host());
       } catch (const gpushm::error& expected) {
         ignore(expected);
       }
     }},
    {"failed_share",
     [](world& world) {
       try {
         (void)world.producer.share("kept", world.mapped, page);
       } catch (const gpushm::error& expected) {
         ignore(expected);
       }
     }},
    {"list_and_stat",
     [](world& world) {
       (void)world.consumer.list("k");
       (void)world.consumer.stat("kept");
     }},
};

double grown(std::size_t before, std::size_t after) {
  return static_cast<double>(after) - static_cast<double>(before);
}

class leak : public ::testing::TestWithParam<operation> {};

TEST_P(leak, leaves_nothing) {
  world in;
  const auto half = rounds() / 2;
  const auto run = [&] {
    for (std::size_t i = 0; i < half; ++i, ++in.round) {
      GetParam().run(in);
    }
  };
  const auto pid = ::getpid();
  run();  // the first half also warms up
  // Other threads free what the last round released.
  gpushm::base::pause_before_retry(std::chrono::milliseconds(100));
  const auto heap = heap_bytes();
  const auto descriptors = gpushm_testing::total(gpushm_testing::count_descriptors(pid));
  const auto mappings = gpushm_testing::count_mappings(pid, "gpushm");
  run();
  // Retried: the broker may still be busy with the last rounds.
  std::size_t heap_after = 0;
  gpushm_testing::descriptor_counts descriptors_after;
  std::size_t mappings_after = 0;
  const auto back = [&] {
    heap_after = heap_bytes();
    descriptors_after = gpushm_testing::count_descriptors(pid);
    mappings_after = gpushm_testing::count_mappings(pid, "gpushm");
    return heap_after <= heap + heap_slack &&
           gpushm_testing::total(descriptors_after) <= descriptors && mappings_after <= mappings;
  };
  const auto text = [&] {
    return std::to_string(grown(heap, heap_after) / static_cast<double>(half)) +
           " bytes of heap per round; mappings " + std::to_string(mappings_after) + " after " +
           std::to_string(mappings) + "; descriptors " +
           gpushm_testing::to_text(descriptors_after) + " after " + std::to_string(descriptors);
  };
  EXPECT_TRUE(gpushm_testing::eventually(back, std::chrono::seconds(4))) << text();
  RecordProperty("heap_bytes_a_round",
                 std::to_string(grown(heap, heap_after) / static_cast<double>(half)));
}

INSTANTIATE_TEST_SUITE_P(operation, leak, ::testing::ValuesIn(operations), [](const auto& tested) {
  return std::string(tested.param.name);
});

}  // namespace
}  // namespace gpushm_tests
