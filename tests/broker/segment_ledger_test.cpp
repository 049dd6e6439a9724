// SPDX-License-Identifier: Apache-2.0
#include "succession/recorder/segment_ledger.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "tests/support/process/temp_dir.hpp"

namespace gpushm::broker_detail {
namespace {

constexpr std::uint32_t creator_uid = 1'000;
constexpr std::uint32_t reader_uid = 2'000;

/// FNV-1a, four times: tests of the real code are those with processes.
wire::receipt code_of(std::span<const std::byte> bytes) {
  wire::receipt result{};
  for (std::size_t part = 0; part != 4; ++part) {
    std::uint64_t hash = 14'695'981'039'346'656'037U + part;
    for (const std::byte each : bytes) {
      hash = (hash ^ static_cast<std::uint64_t>(each)) * 1'099'511'628'211U;
    }
    std::memcpy(&result[part * sizeof(hash)], &hash, sizeof(hash));
  }
  return result;
}

class ledger : public testing::Test {
 protected:
  /// Of a domain that begins; nothing: that is continued.
  [[nodiscard]] succession::segment_ledger make(
      std::optional<gpushm::generation> first,
      std::chrono::milliseconds time = std::chrono::minutes(1)) const {
    return succession::segment_ledger({path_, "default", code_of, first, time});
  }
  [[nodiscard]] static std::shared_ptr<core::segment> make_segment(
      gpushm::generation generation,
      const std::string& name,
      gpushm::lifetime lifetime = lifetime::persistent) {
    auto result = std::make_shared<core::segment>();
    result->name = name;
    result->size_bytes = 100;
    result->allocated_bytes = 4'096;
    result->chunk_count = 1;
    result->lifetime = lifetime;
    result->generation = generation;
    result->creator = {1, creator_uid, true, {}};
    return result;
  }
  static void publish(succession::segment_ledger& ledger,
                      core::segment& segment,
                      std::byte metadata = {}) {
    auto block = std::make_shared<core::metadata_block>();
    block->bytes = {metadata};
    segment.metadata = std::move(block);
    segment.published = true;
    ledger.note(segment);
  }
  [[nodiscard]] static wire::reserve offer_of(const succession::segment_ledger& ledger,
                                              const core::segment& segment,
                                              std::uint32_t uid) {
    return {static_cast<const base::reservation&>(segment),
            segment.generation,
            creator_uid,
            ledger.receipt_for(segment.name, segment.generation, uid, uid == creator_uid)};
  }
  /// Returns nullopt if it may be handed back.
  [[nodiscard]] static std::optional<errc> refusal(const succession::segment_ledger& ledger,
                                                   const wire::reserve& offer,
                                                   std::uint32_t uid) {
    try {
      const core::lost_segment lost = ledger.check_return(offer, uid);
      EXPECT_EQ(lost.generation, offer.generation);
      EXPECT_EQ(lost.creator_uid, creator_uid);
      return std::nullopt;
    } catch (const error& why) {
      return why.code();
    }
  }

  gpushm_testing::temp_dir directory_;
  const std::string path_ = directory_ / "segments";
};

TEST_F(ledger, forgets_what_ended_unnoticed) {
  const auto kept = make_segment(101, "kept");
  const auto ended = make_segment(102, "ended");
  const auto missing = make_segment(1, "missing");
  {
    auto first = make(1);
    first.note(*missing);
    publish(first, *missing);
  }
  {
    auto second = make(100);
    for (const auto& each : {kept, ended}) {
      second.note(*each);
      publish(second, *each);
    }
    second.erase_others({kept->generation});
    EXPECT_EQ(second.missing(), 1U);
  }
  auto third = make(200);
  EXPECT_EQ(third.missing(), 2U);
  EXPECT_EQ(refusal(third, offer_of(third, *ended, creator_uid), creator_uid),
            errc::gone_or_replaced);
  EXPECT_EQ(refusal(third, offer_of(third, *kept, creator_uid), creator_uid), std::nullopt);
  EXPECT_EQ(refusal(third, offer_of(third, *missing, creator_uid), creator_uid), std::nullopt);
}

TEST_F(ledger, misses_what_existed_when_it_ended) {
  const auto kept = make_segment(1, "kept");
  const auto unpublished = make_segment(2, "unpublished");
  const auto removed = make_segment(3, "removed");
  const auto ended = make_segment(4, "ended");
  {
    auto first = make(1);
    for (const auto& each : {kept, unpublished, removed, ended}) {
      first.note(*each);
    }
    for (const auto& each : {kept, removed, ended}) {
      publish(first, *each);
    }
    removed->removed = true;
    first.note(*removed);
    first.erase(4);
    EXPECT_EQ(first.missing(), 0U);
  }
  auto second = make(100);
  EXPECT_EQ(second.missing(), 2U);
  for (const std::uint32_t uid : {creator_uid, reader_uid}) {
    EXPECT_EQ(refusal(second, offer_of(second, *kept, uid), uid), std::nullopt);
    EXPECT_EQ(refusal(second, offer_of(second, *removed, uid), uid), errc::gone_or_replaced);
    EXPECT_EQ(refusal(second, offer_of(second, *ended, uid), uid), errc::gone_or_replaced);
  }
  EXPECT_EQ(refusal(second, offer_of(second, *kept, creator_uid), reader_uid),
            errc::permission_denied);
  // Handed back: reserved, then published.
  kept->published = false;
  second.note(*kept);
  EXPECT_EQ(second.missing(), 2U) << "not published again";
  EXPECT_THROW(second.check_publication(1, {}), error);
  const std::array<std::byte, 1> metadata{};
  EXPECT_NO_THROW(second.check_publication(1, metadata));
  publish(second, *kept);
  second.note(*unpublished);
  EXPECT_EQ(second.missing(), 0U);
  EXPECT_EQ(second.returned(), 2U);
  EXPECT_EQ(refusal(second, offer_of(second, *kept, creator_uid), creator_uid),
            errc::already_exists);
  second.give_up();
  EXPECT_EQ(second.lost(), 0U);
}

TEST_F(ledger, misses_again_what_was_not_handed_back_completely) {
  const auto one = make_segment(1, "w");
  {
    auto first = make(1);
    first.note(*one);
    publish(first, *one);
  }
  auto second = make(100);
  one->published = false;
  second.note(*one);
  second.erase(1);
  EXPECT_EQ(second.missing(), 1U);
  EXPECT_EQ(refusal(second, offer_of(second, *one, creator_uid), creator_uid), std::nullopt);
  second.give_up();
  EXPECT_EQ(second.lost(), 1U);
  EXPECT_EQ(refusal(second, offer_of(second, *one, creator_uid), creator_uid),
            errc::gone_or_replaced);
  EXPECT_EQ(make(200).missing(), 0U);
}

TEST_F(ledger, a_new_segment_takes_the_name_of_a_missing_one) {
  const auto old = make_segment(1, "w");
  {
    auto first = make(1);
    first.note(*old);
    publish(first, *old);
  }
  auto second = make(100);
  second.note(*make_segment(100, "w"));
  EXPECT_EQ(second.missing(), 0U);
  EXPECT_EQ(second.lost(), 1U);
  EXPECT_EQ(refusal(second, offer_of(second, *old, creator_uid), creator_uid),
            errc::gone_or_replaced);
}

/// A segment that is made beside a published one, and the broker ends before its publication.
TEST_F(ledger, a_segment_that_is_to_be_replaced_keeps_its_name) {
  for (const bool is_moved : {false, true}) {
    const auto old = make_segment(1, "w");
    const auto next = make_segment(2, "w");
    next->replaces = old->generation;
    {
      auto first = make(1);
      first.note(*old);
      publish(first, *old);
      first.note(*next);
      if (is_moved) {  // and the end of the former one could not be written
        next->replaces = 0;
        publish(first, *next);
      }
    }
    auto second = make(100);
    EXPECT_EQ(second.missing(), 1U);
    EXPECT_EQ(refusal(second, offer_of(second, is_moved ? *next : *old, creator_uid), creator_uid),
              std::nullopt);
    EXPECT_EQ(refusal(second, offer_of(second, is_moved ? *old : *next, creator_uid), creator_uid),
              errc::gone_or_replaced);
    ASSERT_EQ(::unlink(path_.c_str()), 0);
  }
}

TEST_F(ledger, leased_memory_is_handed_back_by_its_creator_and_not_reported_as_lost) {
  const auto one = make_segment(1, "w", lifetime::leased);
  {
    auto first = make(1);
    first.note(*one);
    publish(first, *one);
  }
  auto second = make(100);
  EXPECT_EQ(refusal(second, offer_of(second, *one, creator_uid), creator_uid), std::nullopt);
  EXPECT_EQ(refusal(second, offer_of(second, *one, reader_uid), reader_uid),
            errc::permission_denied);
  second.give_up();
  EXPECT_EQ(second.lost(), 0U);
}

/// Its readers need its end, if its signaler does not come back.
TEST_F(ledger, a_timeline_page_is_handed_back_by_readers_later) {
  const auto page = make_segment(1, "page", lifetime::leased);
  const auto memory = make_segment(2, "memory", lifetime::leased);
  page->backend = backend::signals;
  {
    auto first = make(1);
    for (const auto& each : {page, memory}) {
      first.note(*each);
      publish(first, *each);
    }
  }
  const auto refusals = [&](succession::segment_ledger ledger) {
    return std::array{refusal(ledger, offer_of(ledger, *page, creator_uid), creator_uid),
                      refusal(ledger, offer_of(ledger, *page, reader_uid), reader_uid),
                      refusal(ledger, offer_of(ledger, *memory, reader_uid), reader_uid)};
  };
  using result = std::array<std::optional<errc>, 3>;
  EXPECT_EQ(refusals(make(100)),
            (result{std::nullopt, errc::permission_denied, errc::permission_denied}));
  EXPECT_EQ(refusals(make(200, std::chrono::milliseconds(0))),
            (result{std::nullopt, std::nullopt, errc::permission_denied}))
      << "the time of signalers is at most half of that for all";
}

/// By another page, its words would be those of another process.
TEST_F(ledger, has_the_identities_of_pages) {
  const auto page = make_segment(1, "page", lifetime::leased);
  const auto old = make_segment(2, "of an earlier version", lifetime::leased);
  const auto memory = make_segment(3, "memory");
  page->backend = old->backend = backend::signals;
  const succession::page_identity first_page{5, 1'000'000'000'000};
  const succession::page_identity second_page{5, 7};
  const auto expect_all = [&](const succession::segment_ledger& ledger,
                              const succession::page_identity& of_old) {
    EXPECT_EQ(ledger.page_of(1), first_page);
    EXPECT_EQ(ledger.page_of(2), of_old);
    EXPECT_FALSE(ledger.page_of(3).is_known());
    EXPECT_FALSE(ledger.page_of(4).is_known());
  };
  {
    auto first = make(1);
    first.note(*page, first_page);
    page->published = true;
    first.note(*page, first_page);
    first.note(*old);
    publish(first, *old);
    first.note(*memory);
    expect_all(first, {});
  }
  {
    auto successor = make(std::nullopt);
    for (const auto& each : {page, old, memory}) {
      successor.note(*each);
    }
    successor.note(*page, first_page);
    successor.note(*old, second_page);
    successor.end_continuing();
    expect_all(successor, second_page);
  }
  auto after_a_loss = make(100);
  expect_all(after_a_loss, second_page);
  EXPECT_EQ(refusal(after_a_loss, offer_of(after_a_loss, *old, creator_uid), creator_uid),
            std::nullopt);
  // Handed back: reserved with nothing, then with its page.
  old->published = false;
  after_a_loss.note(*old);
  after_a_loss.note(*old, second_page);
  EXPECT_EQ(after_a_loss.missing(), 3U);
  publish(after_a_loss, *old);
  expect_all(after_a_loss, second_page);
}

TEST_F(ledger, names_wait_for_those_that_may_hand_back) {
  const core::principal pod{"pod a", true};
  const auto in_pod = make_segment(1, "in a pod");
  const auto elsewhere = make_segment(2, "elsewhere");
  in_pod->creator.principal = pod;
  elsewhere->creator.principal = {"process 1", false};
  {
    auto first = make(1);
    for (const auto& each : {in_pod, elsewhere}) {
      first.note(*each);
      publish(first, *each);
      EXPECT_NO_THROW(first.check_name(each->name, {9, reader_uid, true, {}}));
    }
  }
  const auto refusals = [&](const succession::segment_ledger& ledger, const core::peer& peer) {
    std::array<std::optional<errc>, 3> result;
    std::size_t i = 0;
    for (const char* name : {"in a pod", "elsewhere", "another"}) {
      try {
        ledger.check_name(name, peer);
      } catch (const error& why) {
        result[i] = why.code();
        EXPECT_NE(why.cause().find("hand it back for another "), std::string::npos);
      }
      ++i;
    }
    return result;
  };
  using result = std::array<std::optional<errc>, 3>;
  constexpr auto waits = errc::writer_ending;
  auto second = make(100);
  EXPECT_EQ(refusals(second, {9, reader_uid, true, {}}), (result{waits, waits, std::nullopt}));
  EXPECT_EQ(refusals(second, {9, creator_uid, false, pod}), (result{waits, waits, std::nullopt}));
  EXPECT_EQ(refusals(second, {9, creator_uid, true, {"pod b", true}}),
            (result{waits, std::nullopt, std::nullopt}));
  EXPECT_EQ(refusals(second, {9, creator_uid, true, pod}), result{});
  EXPECT_EQ(
      second.check_return(offer_of(second, *in_pod, reader_uid), reader_uid).creator_principal,
      pod);
  // Handed back.
  publish(second, *in_pod);
  EXPECT_EQ(refusals(second, {9, reader_uid, true, {}}),
            (result{std::nullopt, waits, std::nullopt}));
  EXPECT_EQ(refusals(make(200, std::chrono::milliseconds(0)), {9, reader_uid, true, {}}), result{})
      << "the time of names is at most that for all";
}

TEST_F(ledger, is_continued_by_a_successor) {
  const auto old = make_segment(1, "old");
  const auto again = make_segment(2, "again");
  const auto fresh = make_segment(100, "fresh");
  {
    auto first = make(1);
    first.note(*old);
    first.note(*again);
    publish(first, *old);
    publish(first, *again);
  }
  core::time_point last_return;
  {
    auto second = make(100);
    last_return = second.last_return();
    second.note(*again);  // being handed back
    publish(second, *again);
    second.note(*fresh);
    second.note(*make_segment(101, "unknown to the successor"));
  }
  auto third = make(std::nullopt);
  third.note(*again);
  third.note(*fresh);
  third.end_continuing();
  EXPECT_EQ(third.last_return(), last_return);
  EXPECT_EQ(third.missing(), 1U);
  EXPECT_EQ(third.returned(), 0U) << "counted by its predecessor";
  EXPECT_EQ(third.lost(), 0U);
  EXPECT_EQ(refusal(third, offer_of(third, *old, creator_uid), creator_uid), std::nullopt);
  EXPECT_EQ(refusal(third, offer_of(third, *fresh, creator_uid), creator_uid),
            errc::already_exists);
}

TEST_F(ledger, a_member_without_uid_has_nothing_to_hand_back) {
  {
    auto first = make(1);
    auto unknown = make_segment(1, "w");
    unknown->creator.uid_known = false;
    first.note(*unknown);
  }
  auto second = make(100);
  EXPECT_EQ(second.missing(), 0U);
  EXPECT_THROW(
      static_cast<void>(second.check_return(offer_of(second, *make_segment(1, "w"), 1), {})),
      error);
}

TEST_F(ledger, rows_are_used_again) {
  auto first = make(1);
  for (gpushm::generation each = 1; each != 20'000; ++each) {
    first.note(*make_segment(each, std::string(255, 'n')));
    if (each % 3 != 0) {
      first.erase(each);
    } else {
      first.erase(each - 2);
      first.erase(each);
    }
  }
  EXPECT_LE(std::filesystem::file_size(path_), 512U * 4);
}

TEST_F(ledger, any_bytes_in_its_file_are_harmless) {
  std::mt19937_64 random(3);
  for (int round = 0; round != 300; ++round) {
    {
      auto first = make(1);
      for (gpushm::generation each = 1; each != 5; ++each) {
        const auto one = make_segment(each, "w" + std::to_string(each % 3));
        first.note(*one);
        publish(first, *one);
      }
    }
    std::string text;
    {
      std::ifstream file(path_, std::ios::binary);
      text.assign(std::istreambuf_iterator<char>(file), {});
    }
    const std::size_t from = round % 2 == 0 ? 0 : 512;  // the header, too
    for (int i = 0; i != 60; ++i) {
      text[from + random() % (text.size() - from)] = static_cast<char>(random());
    }
    text.resize(random() % (text.size() + 1));
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
    auto second = round % 3 == 0 ? make(std::nullopt) : make(100);
    second.note(*make_segment(100, "w1"));
    second.end_continuing();
    static_cast<void>(refusal(second, offer_of(second, *make_segment(1, "w1"), creator_uid), 5));
    second.give_up();
    second.erase(100);
    std::filesystem::remove(path_);
  }
}

TEST_F(ledger, a_full_disk_costs_only_what_could_be_handed_back) {
  auto first = make(1);
  first.note(*make_segment(1, "w"));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_NE(std::signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  const rlimit none{1'024, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  first.note(*make_segment(2, "v"));
  first.erase(2);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  first.note(*make_segment(3, "u"));
  EXPECT_EQ(make(100).missing(), 2U) << "w and u";
}

TEST_F(ledger, is_removed_with_its_domain) {
  auto first = make(1);
  first.note(*make_segment(1, "w"));
  first.end();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace gpushm::broker_detail
