// SPDX-License-Identifier: Apache-2.0
// Registered descriptors in the state of a domain: names, charges, opens without leases, what
// others see of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const peer alice{101, 1000, true, {"pod a"}};
const peer bob{201, 2000, true, {"pod b"}};
constexpr session_id exporter = 1;
constexpr session_id importer = 2;

class registered_descriptors : public testing::Test {
 protected:
  registered_descriptors() { connect(domain_); }
  static void connect(domain& domain) {
    domain.connect(exporter, alice);
    domain.connect(importer, bob);
  }
  gpushm::generation add(std::uint32_t number) {
    const auto generation = domain_.reserve(exporter, registration(number)).generation;
    domain_.attach(exporter, generation, 0, 1);
    domain_.publish(exporter, generation, {});
    return generation;
  }
  [[nodiscard]] std::vector<std::string> names(const std::string& prefix,
                                               const std::string& after = {}) const {
    std::vector<std::string> result;
    domain_.list(exporter, prefix, after, [&](const segment& each) {
      result.push_back(each.name);
      return true;
    });
    return result;
  }
  /// The code of the only reply; OK: it was opened.
  errc open(session_id session, const std::string& name) {
    seen_.replies().clear();
    domain_.open(session, {1, 0, name, 0, {}});
    EXPECT_EQ(seen_.replies().size(), 1U);
    return seen_.replies().empty() ? errc::protocol_error : seen_.replies().front().code;
  }

  domain domain_{"default", 42, naming_limits};
  recorder seen_{domain_};
};

TEST_F(registered_descriptors, have_names_that_no_other_segment_has) {
  errc code{};
  const auto refuses = [&](const reservation& reservation) {
    code = {};
    static_cast<void>(
        error_of([&] { static_cast<void>(domain_.reserve(exporter, reservation)); }, &code));
    return code == errc::invalid_argument;
  };
  EXPECT_TRUE(refuses(host_segment(".fd/7")));
  EXPECT_TRUE(refuses(host_segment(".fd/")));
  EXPECT_TRUE(refuses(host_segment(".fd/7/~timelines-1")));
  for (const char* name : {"7", ".fd/0", ".fd/07", ".fd/7x", ".fd/", ".fd/1073741824", ".fd/-1"}) {
    auto wanted = registration(7);
    wanted.name = name;
    EXPECT_TRUE(refuses(wanted)) << name;
  }
  auto wanted = registration(7);
  wanted.lifetime = lifetime::persistent;
  EXPECT_TRUE(refuses(wanted));
  wanted = registration(7);
  wanted.size_bytes = wanted.allocated_bytes = 4096;
  EXPECT_TRUE(refuses(wanted));
  wanted = registration(7);
  wanted.chunk_count = 2;
  EXPECT_TRUE(refuses(wanted));
  EXPECT_EQ(domain_.segment_count(), 0U);
  add(1);
  add(1'073'741'823);
  add(7);
  static_cast<void>(error_of([&] { add(7); }, &code));
  EXPECT_EQ(code, errc::already_exists);
  static_cast<void>(domain_.reserve(exporter, host_segment(".fd")));
  static_cast<void>(domain_.reserve(exporter, host_segment("a/.fd/7")));
}

TEST_F(registered_descriptors, are_charged_as_a_descriptor_and_not_as_memory) {
  const auto descriptors = domain_.descriptors();
  const auto before = domain_.budget().used(resource::segments);
  const auto generation = add(7);
  EXPECT_EQ(domain_.descriptors(), descriptors + 1);
  EXPECT_EQ(domain_.budget().used(resource::segments), before + 1);
  EXPECT_EQ(domain_.allocated_bytes(), 0U);
  domain_.release(exporter, generation, 1);
  EXPECT_EQ(domain_.descriptors(), descriptors);
  EXPECT_EQ(domain_.budget().used(resource::segments), before);
}

TEST_F(registered_descriptors, are_opened_without_a_lease) {
  const auto generation = add(7);
  const auto memory = domain_.budget().used(resource::memory_bytes);
  for (const session_id session : {importer, exporter, importer}) {
    EXPECT_EQ(open(session, ".fd/7"), errc{});
    EXPECT_EQ(domain_.lease_count(), 1U);
  }
  EXPECT_EQ(domain_.budget().used(resource::memory_bytes), memory);
  EXPECT_THROW(static_cast<void>(domain_.held(importer, generation)), error);
  domain_.release(importer, generation, 1);  // of a client that believes to have one
  EXPECT_EQ(open(importer, ".fd/7"), errc{});

  domain_.release(exporter, generation, 1);
  EXPECT_EQ(open(importer, ".fd/7"), errc::no_such_segment);
  EXPECT_THAT(seen_.freed_generations(), ElementsAre(generation));
  add(7);  // the number is free
}

TEST_F(registered_descriptors, that_are_waited_for_are_opened_without_a_lease) {
  domain_.open(importer, {1, 0, ".fd/7", 0, at_ms(1'000)});
  EXPECT_THAT(seen_.replies(), IsEmpty());
  const auto generation = add(7);
  while (domain_.work()) {
  }
  ASSERT_EQ(seen_.replies().size(), 1U);
  EXPECT_EQ(seen_.replies().front().generation, generation);
  EXPECT_EQ(domain_.lease_count(), 1U);
}

TEST_F(registered_descriptors, end_with_the_fence_of_their_process) {
  const auto generation = add(7);
  ASSERT_TRUE(domain_.lose(exporter));
  EXPECT_EQ(open(importer, ".fd/7"), errc::writer_ending);
  domain_.connect(3, alice);
  errc code{};
  static_cast<void>(
      error_of([&] { static_cast<void>(domain_.reserve(3, registration(7))); }, &code));
  EXPECT_EQ(code, errc::writer_ending) << "the number could mean other memory";
  domain_.disconnect(exporter, false);
  while (domain_.work()) {
  }
  EXPECT_THAT(seen_.freed_generations(), ElementsAre(generation));
  EXPECT_EQ(open(importer, ".fd/7"), errc::no_such_segment);
  static_cast<void>(domain_.reserve(3, registration(7)));
}

TEST_F(registered_descriptors, are_shown_only_under_their_prefix) {
  const auto made = domain_.reserve(exporter, host_segment("a")).generation;
  domain_.attach(exporter, made, 0, 1);
  domain_.publish(exporter, made, {});
  static_cast<void>(domain_.reserve(exporter, host_segment(".a")));
  static_cast<void>(domain_.reserve(exporter, host_segment(".g")));
  domain_.subscribe(importer, 1, "");
  domain_.subscribe(importer, 2, ".fd");
  domain_.subscribe(importer, 3, ".fd/");
  domain_.subscribe(importer, 4, ".fd/7");
  domain_.subscribe(importer, 5, ".fd/8");
  std::vector<gpushm::generation> generations;
  for (const std::uint32_t number : {8U, 7U, 70U}) {
    generations.push_back(add(number));
  }
  static_cast<void>(domain_.reserve(exporter, registration(71)));  // unpublished
  EXPECT_THAT(names(""), ElementsAre(".a", ".g", "a"));
  EXPECT_THAT(names(".f"), IsEmpty());
  EXPECT_THAT(names("."), ElementsAre(".a", ".g"));
  EXPECT_THAT(names("", ".fd/7"), ElementsAre(".g", "a"));
  EXPECT_THAT(names(".fd/"), ElementsAre(".fd/7", ".fd/70", ".fd/71", ".fd/8"));
  EXPECT_THAT(names(".fd/7"), ElementsAre(".fd/7", ".fd/70", ".fd/71"));
  EXPECT_THAT(names(".fd/", ".fd/70"), ElementsAre(".fd/71", ".fd/8"));
  domain_.remove(exporter, ".fd/7");
  std::vector<std::string> events;
  for (const notice& each : seen_.notices()) {
    events.push_back(std::to_string(each.subscription) + " " + std::string(to_string(each.kind)) +
                     " " + each.name);
  }
  EXPECT_THAT(events,
              ElementsAre("3 published .fd/8",
                          "5 published .fd/8",
                          "3 published .fd/7",
                          "4 published .fd/7",
                          "3 published .fd/70",
                          "4 published .fd/70",
                          "3 removed .fd/7",
                          "4 removed .fd/7"));
}

TEST_F(registered_descriptors, are_continued_by_a_successor) {
  const auto generation = add(7);
  saved_state state = domain_.save();
  domain next("default", 42, naming_limits, nullptr, state);
  EXPECT_EQ(next.descriptors(), domain_.descriptors());
  EXPECT_EQ(next.allocated_bytes(), 0U);
  EXPECT_EQ(next.budget().used(resource::memory_bytes),
            domain_.budget().used(resource::memory_bytes));
  EXPECT_EQ(next.stat(importer, ".fd/7").generation, generation);
  EXPECT_EQ(next.stat(importer, ".fd/7").backend, backend::descriptor);
  next.release(exporter, generation, 1);
  EXPECT_EQ(next.segment_count(), 0U);
}

}  // namespace
}  // namespace gpushm::core
