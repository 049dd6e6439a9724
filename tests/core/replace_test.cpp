// SPDX-License-Identifier: Apache-2.0
// A segment that is made beside a published one of the same name, and gets the name at its
// publication.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint32_t broker_uid = 42;
constexpr session_id loader = 1;
constexpr session_id reader = 2;
constexpr session_id same_uid = 3;

class domain_replace : public testing::Test {
 protected:
  domain_replace() {
    domain_->connect(loader, {101, 1000, true});
    domain_->connect(reader, {201, 2000, true});
    domain_->connect(same_uid, {102, 1000, true});
  }

  gpushm::generation reserve(session_id session, gpushm::generation replaces = 0) {
    reservation wanted = host_segment("w", 4096, lifetime::persistent);
    wanted.replaces = replaces;
    const auto result = domain_->reserve(session, wanted).generation;
    domain_->attach(session, result, 0, 1);
    return result;
  }
  errc refusal_of(session_id session, gpushm::generation replaces) {
    errc code{};
    error_of([&] { reserve(session, replaces); }, &code);
    return code;
  }
  void publish(gpushm::generation generation, session_id session = loader) {
    domain_->publish(session, generation, {});
  }
  gpushm::generation make() {
    const auto result = reserve(loader);
    publish(result);
    return result;
  }
  /// The generation that an open gets; 0: it fails, or waits.
  gpushm::generation opened(std::optional<time_point> deadline = std::nullopt) {
    seen_.replies().clear();
    domain_->open(reader, {++request_, 0, "w", 0, deadline});
    return seen_.replies().empty() ? 0 : seen_.replies().back().generation;
  }
  [[nodiscard]] std::vector<gpushm::generation> listed_by(session_id session) const {
    std::vector<gpushm::generation> result;
    domain_->list(session, "", "", [&](const segment& each) {
      result.push_back(each.generation);
      return true;
    });
    return result;
  }
  /// As after a restart of the broker.
  void restart() {
    saved_state recorded = seen_.recorded();
    auto successor =
        std::make_unique<domain>("default", broker_uid, naming_limits, nullptr, recorded);
    seen_.follow(*successor);
    domain_ = std::move(successor);
  }

  std::unique_ptr<domain> domain_ = std::make_unique<domain>("default", broker_uid, naming_limits);
  recorder seen_{*domain_};
  std::uint64_t request_ = 0;
};

TEST_F(domain_replace, the_name_moves_with_the_publication) {
  const auto old = make();
  EXPECT_EQ(opened(), old);
  const auto next = reserve(loader, old);
  EXPECT_EQ(opened(), old);
  domain_->subscribe(same_uid, 1, "");
  seen_.notices().clear();
  publish(next);
  EXPECT_EQ(opened(), next);
  // Its reader has it until the end.
  EXPECT_EQ(domain_->held(reader, old).state(), segment_state::removed);
  ASSERT_GE(seen_.notices().size(), 2U);
  EXPECT_EQ(seen_.notices()[0].kind, event_kind::removed);
  EXPECT_EQ(seen_.notices()[0].generation, old);
  EXPECT_EQ(seen_.notices()[1].kind, event_kind::published);
  EXPECT_EQ(seen_.notices()[1].generation, next);
  domain_->release(loader, old, 1);
  domain_->release(reader, old, 2);
  EXPECT_EQ(domain_->find_segment(old), nullptr);
  EXPECT_EQ(domain_->segment_of(next).replaces, 0U);
}

TEST_F(domain_replace, by_name_only_the_published_one_is_found) {
  const auto old = make();
  const auto next = reserve(loader, old);
  for (const session_id each : {loader, reader, same_uid}) {
    EXPECT_EQ(domain_->stat(each, "w").generation, old);
    EXPECT_THAT(listed_by(each), ElementsAre(old));
  }
  EXPECT_EQ(domain_->stat(loader, "w", next).generation, next);
  errc code{};
  error_of([&] { static_cast<void>(domain_->stat(same_uid, "w", next)); }, &code);
  EXPECT_EQ(code, errc::gone_or_replaced);
  error_of([&] { domain_->remove(same_uid, "w", next); }, &code);
  EXPECT_EQ(code, errc::gone_or_replaced);
  domain_->remove(loader, "w", next);
  EXPECT_EQ(domain_->stat(loader, "w").generation, old);
  const auto another = reserve(loader, old);
  domain_->remove(loader, "w");
  EXPECT_EQ(domain_->stat(loader, "w").generation, another);
  EXPECT_THAT(listed_by(loader), ElementsAre(another));
  EXPECT_THAT(listed_by(reader), ElementsAre());
  publish(another);
  EXPECT_EQ(opened(), another);
}

TEST_F(domain_replace, only_that_generation_and_by_a_member_that_may_remove_it) {
  const auto old = make();
  EXPECT_EQ(refusal_of(loader, 0), errc::already_exists);
  EXPECT_EQ(refusal_of(loader, old + 7), errc::gone_or_replaced);
  EXPECT_EQ(refusal_of(reader, old), errc::permission_denied);
  const auto next = reserve(same_uid, old);
  EXPECT_EQ(refusal_of(loader, old), errc::already_exists) << "one at a time";
  publish(next, same_uid);
  EXPECT_EQ(refusal_of(loader, old), errc::gone_or_replaced);
  EXPECT_EQ(opened(), next);
  domain_->remove(loader, "w");
  EXPECT_NE(reserve(loader, next), 0U) << "the name is free";
}

TEST_F(domain_replace, the_former_one_stays_if_the_creator_ends) {
  const auto old = make();
  for (const bool is_clean : {true, false}) {
    domain_->connect(4, {101, 1000, true});
    const auto next = reserve(4, old);
    domain_->disconnect(4, is_clean);
    seen_.settle();
    EXPECT_EQ(domain_->find_segment(next), nullptr);
    EXPECT_EQ(opened(), old);
  }
  domain_->connect(4, {101, 1000, true});
  reserve(4, old);
  ASSERT_TRUE(domain_->at(at_ms(1)).lose(4));
  EXPECT_EQ(refusal_of(loader, old), errc::writer_ending);
  EXPECT_EQ(opened(), old);
  domain_->disconnect(4, false);
  publish(reserve(loader, old));
  EXPECT_NE(opened(), old);
}

TEST_F(domain_replace, waiting_opens_get_the_new_one) {
  const auto old = make();
  domain_->connect(4, {104, 1000, true});
  domain_->release(loader, old, 1);
  domain_->open(4, {++request_, 0, "w", 0, {}});
  ASSERT_TRUE(domain_->at(at_ms(1)).lose(4));  // the last one that may write
  EXPECT_EQ(opened(at_ms(100)), 0U);
  publish(reserve(loader, old));
  ASSERT_EQ(seen_.replies().size(), 1U);
  EXPECT_EQ(seen_.replies()[0].generation, old + 1);
  domain_->disconnect(4, false);
  EXPECT_EQ(domain_->find_segment(old), nullptr);
}

TEST_F(domain_replace, a_dead_exporter_is_forgotten) {
  reservation bound = host_segment("w");
  bound.backend = backend::cuda_ipc;
  bound.chunk_count = 0;
  bound.device = {device_kind::gpu, "GPU-0", "0000:18:00.0", 0};
  bound.ticket.resize(1);
  domain_->connect(4, {104, 1000, true});
  const auto old = domain_->reserve(4, bound).generation;
  publish(old, 4);
  const auto next = reserve(loader, old);
  domain_->disconnect(4, false);
  seen_.settle();
  EXPECT_EQ(opened(), 0U);
  EXPECT_EQ(seen_.replies().back().code, errc::peer_died);
  publish(next);
  EXPECT_EQ(opened(), next);
  domain_->remove(loader, "w");
  EXPECT_EQ(opened(), 0U);
  EXPECT_EQ(seen_.replies().back().code, errc::no_such_segment);
}

/// The operator ends leases of the published one that its ending creator has, too: the other
/// segment of that name stays what it is.
TEST_F(domain_replace, unfence_ends_leases_of_the_published_one) {
  const auto old = make();
  domain_->connect(4, {104, 1000, true});
  domain_->open(4, {++request_, 0, "w", 0, {}});
  const auto next = reserve(4, old);
  ASSERT_TRUE(domain_->at(at_ms(1)).lose(4));
  EXPECT_FALSE(domain_->unfence(loader, "w"));
  EXPECT_NE(domain_->find_segment(next), nullptr);
  domain_->connect(5, {104, 1000, true});
  EXPECT_TRUE(domain_->resume(4, 5));
  EXPECT_EQ(domain_->stat(5, "w", next).generation, next);
  domain_->remove(loader, "w", old);
  EXPECT_THAT(listed_by(5), ElementsAre(next));
  publish(next, 5);
  EXPECT_EQ(opened(), next);
}

TEST_F(domain_replace, goes_on_after_a_restart) {
  const auto old = make();
  const auto next = reserve(loader, old);
  restart();
  EXPECT_EQ(opened(), old);
  EXPECT_EQ(domain_->segment_of(next).replaces, old);
  EXPECT_EQ(refusal_of(loader, old), errc::already_exists);
  publish(next);
  restart();
  EXPECT_EQ(opened(), next);
}

TEST_F(domain_replace, saved_segments_of_one_name_must_be_related) {
  const auto old = make();
  const auto next = reserve(loader, old);
  saved_state recorded = seen_.recorded();
  std::get<saved_segment>(recorded.records.at({record_kind::segment, next})).replaces = 0;
  EXPECT_THAT(error_of([&] { domain("default", broker_uid, naming_limits, nullptr, recorded); }),
              HasSubstr("two segments have one name"));
}

}  // namespace
}  // namespace gpushm::core
