// SPDX-License-Identifier: Apache-2.0
// Random operations of several sessions on a domain and on a model of it that is too simple to be
// wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "core_world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;

constexpr std::uint32_t broker_uid = 42;
constexpr limits bounds{.max_segments = 6,
                        .quota_bytes = 40'000,
                        .quota_bytes_per_uid = 25'000,
                        .max_descriptors = 30,
                        .descriptors_per_session = 2,
                        .max_pending_opens = 3,
                        .max_subscriptions = 2};

struct model_segment {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t chunks = 0;
  std::uint32_t attached = 0;
  bool persistent = false;
  bool published = false;
  bool removed = false;
  peer creator;
  session_id creator_session = 0;
  std::map<session_id, std::uint32_t> leases;
};

struct model_open {
  session_id session = 0;
  std::uint64_t request = 0;
  std::string name;
  std::uint64_t expected = 0;
  int deadline_ms = 0;
};

using outcome = std::optional<errc>;  // nothing: it worked

class model {
 public:
  outcome connect(session_id session, const peer& who) {
    if (descriptors() + 2 > bounds.max_descriptors) {
      return errc::too_many_descriptors;
    }
    sessions[session] = who;
    return {};
  }

  void disconnect(session_id session) {
    sessions.erase(session);
    std::erase_if(waiting, [&](const model_open& open) { return open.session == session; });
    for (auto& [generation, segment] : segments) {
      segment.leases.erase(session);
      if (segment.creator_session == session) {
        segment.creator_session = 0;
      }
    }
    sweep();
  }

  outcome reserve(session_id session, const reservation& wanted, gpushm::generation generation) {
    if (named(wanted.name) != nullptr) {
      return errc::already_exists;
    }
    if (segments.size() >= bounds.max_segments) {
      return errc::too_many_segments;
    }
    if (bytes() + wanted.allocated_bytes > bounds.quota_bytes ||
        bytes_of(sessions[session]) + wanted.allocated_bytes > bounds.quota_bytes_per_uid) {
      return errc::quota_exceeded;
    }
    if (descriptors() + wanted.chunk_count + 1 > bounds.max_descriptors) {
      return errc::too_many_descriptors;
    }
    segments[generation] = {wanted.name,
                            wanted.allocated_bytes,
                            wanted.chunk_count,
                            0,
                            wanted.lifetime == lifetime::persistent,
                            false,
                            false,
                            sessions[session],
                            session,
                            {{session, 1}}};
    return {};
  }

  outcome attach(session_id session,
                 gpushm::generation generation,
                 std::uint32_t first,
                 std::size_t count) {
    const auto at = segments.find(generation);
    if (at == segments.end()) {
      return errc::stale_generation;
    }
    if (at->second.creator_session != session) {
      return errc::permission_denied;
    }
    if (count == 0 || first != at->second.attached || first + count > at->second.chunks) {
      return errc::wrong_descriptor_count;
    }
    at->second.attached += static_cast<std::uint32_t>(count);
    return {};
  }

  outcome publish(session_id session, gpushm::generation generation) {
    const auto at = segments.find(generation);
    if (at == segments.end()) {
      return errc::stale_generation;
    }
    model_segment& segment = at->second;
    if (!may_manage(session, segment)) {
      return errc::permission_denied;
    }
    if (segment.published) {
      return errc::already_published;
    }
    if (segment.removed) {
      return errc::segment_removed;
    }
    if (segment.attached != segment.chunks) {
      return errc::wrong_descriptor_count;
    }
    segment.published = true;
    for (const model_open& open : waiting) {
      if (open.name == segment.name) {
        answer_now(open, generation);
      }
    }
    std::erase_if(waiting, [&](const model_open& open) { return open.name == segment.name; });
    return {};
  }

  void open(const model_open& wanted, bool wait) {
    for (auto& [generation, segment] : segments) {
      if (segment.name == wanted.name && segment.published && !segment.removed) {
        answer_now(wanted, generation);
        return;
      }
    }
    const auto pending =
        std::count_if(waiting.begin(), waiting.end(), [&](const model_open& other) {
          return other.session == wanted.session;
        });
    if (!wait) {
      answers.push_back({wanted.session, wanted.request, 0, 0, errc::no_such_segment, {}});
    } else if (pending >= bounds.max_pending_opens) {
      answers.push_back({wanted.session, wanted.request, 0, 0, errc::too_many_requests, {}});
    } else {
      waiting.push_back(wanted);
    }
  }

  void release(session_id session, gpushm::generation generation, std::uint32_t count) {
    const auto at = segments.find(generation);
    if (at == segments.end() || at->second.leases.count(session) == 0) {
      return;
    }
    std::uint32_t& left = at->second.leases[session];
    left -= std::min(left, count);
    if (left == 0) {
      at->second.leases.erase(session);
    }
    sweep();
  }

  outcome remove(session_id session, const std::string& name) {
    model_segment* segment = named(name);
    if (segment == nullptr || (!segment->published && segment->creator_session != session)) {
      return errc::no_such_segment;
    }
    if (!may_manage(session, *segment)) {
      return errc::permission_denied;
    }
    segment->removed = true;
    sweep();
    return {};
  }

  void tick(int now_ms) {
    // Ties in any order: the caller compares sorted answers.
    for (const model_open& open : waiting) {
      if (open.deadline_ms <= now_ms) {
        answers.push_back({open.session, open.request, 0, 0, errc::no_such_segment, {}});
      }
    }
    std::erase_if(waiting, [&](const model_open& open) { return open.deadline_ms <= now_ms; });
  }

  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [generation, segment] : segments) {
      sum += segment.bytes;
    }
    return sum;
  }
  [[nodiscard]] std::uint64_t descriptors() const {
    std::uint64_t sum = 2 * sessions.size();
    for (const auto& [generation, segment] : segments) {
      sum += segment.chunks + 1;
    }
    return sum;
  }

  std::map<session_id, peer> sessions;
  std::map<gpushm::generation, model_segment> segments;
  std::vector<model_open> waiting;
  std::vector<answer> answers;

 private:
  model_segment* named(const std::string& name) {
    for (auto& [generation, segment] : segments) {
      if (segment.name == name && !segment.removed) {
        return &segment;
      }
    }
    return nullptr;
  }
  std::uint64_t bytes_of(const peer& who) {
    std::uint64_t sum = 0;
    for (const auto& [generation, segment] : segments) {
      const bool same = who.uid_known == segment.creator.uid_known &&
                        (!who.uid_known || who.uid == segment.creator.uid);
      sum += same ? segment.bytes : 0;
    }
    return sum;
  }
  bool may_manage(session_id session, const model_segment& segment) {
    const peer& who = sessions[session];
    return session == segment.creator_session ||
           (who.uid_known && (who.uid == broker_uid ||
                              (segment.creator.uid_known && segment.creator.uid == who.uid)));
  }
  void answer_now(const model_open& open, gpushm::generation generation) {
    model_segment& segment = segments[generation];
    if (open.expected != 0 && open.expected != segment.bytes) {
      answers.push_back({open.session, open.request, 0, 0, errc::size_mismatch, {}});
      return;
    }
    ++segment.leases[open.session];
    answers.push_back({open.session, open.request, 0, generation, {}, {}});
  }
  void sweep() {
    std::erase_if(segments, [](const auto& entry) {
      const model_segment& segment = entry.second;
      return segment.leases.empty() &&
             !(segment.persistent && segment.published && !segment.removed);
    });
  }
};

class random_world {
 public:
  explicit random_world(std::uint32_t seed) : random_(seed) {}

  void step() {
    session_id session = 1 + pick(5);
    if (model_.sessions.count(session) == 0) {
      const peer who = peers[pick(std::size(peers))];
      expect_same(model_.connect(session, who), [&] { domain_.connect(session, who); });
      if (model_.sessions.count(session) != 0) {
        domain_.subscribe(session, 1, "");
      }
      return;
    }
    switch (pick(16)) {
      case 0:
        if (pick(3) != 0) {
          break;
        }
        model_.disconnect(session);
        domain_.disconnect(session, pick(2) == 0);
        break;
      case 1:
      case 2:
      case 3:
        reserve(session);
        break;
      case 4:
      case 5:
      case 6: {
        const auto generation = some_generation();
        auto first = static_cast<std::uint32_t>(pick(3));
        std::size_t count = pick(4);
        const auto at = model_.segments.find(generation);
        if (pick(4) != 0 && at != model_.segments.end()) {  // what a good client would do
          session = at->second.creator_session;
          first = at->second.attached;
          count = at->second.chunks - first;
        }
        if (model_.sessions.count(session) == 0) {
          break;
        }
        expect_same(model_.attach(session, generation, first, count),
                    [&] { domain_.attach(session, generation, first, count); });
        break;
      }
      case 7:
      case 8: {
        const auto generation = some_generation();
        expect_same(model_.publish(session, generation),
                    [&] { domain_.publish(session, generation, {}); });
        break;
      }
      case 9:
      case 10:
      case 11: {
        const bool wait = pick(2) == 0;
        const int deadline = now_ms_ + static_cast<int>(pick(20));
        const std::uint64_t expected = pick(6) == 0 ? 4096 : 0;
        const model_open wanted{session, ++request_, name(), expected, deadline};
        model_.open(wanted, wait);
        domain_.open(session,
                     {wanted.request,
                      0,
                      wanted.name,
                      expected,
                      wait ? std::optional(at_ms(deadline)) : std::nullopt});
        asked_.insert({session, wanted.request});
        break;
      }
      case 12:
      case 13: {
        const auto generation = some_generation();
        const auto count = static_cast<std::uint32_t>(pick(3));
        model_.release(session, generation, count);
        domain_.release(session, generation, count);
        break;
      }
      case 14: {
        const std::string gone = name();
        expect_same(model_.remove(session, gone), [&] { domain_.remove(session, gone); });
        break;
      }
      default:
        now_ms_ += static_cast<int>(pick(15));
        model_.tick(now_ms_);
        domain_.tick(at_ms(now_ms_));
        break;
    }
  }

  void check() {
    ASSERT_EQ(domain_.segment_count(), model_.segments.size());
    ASSERT_EQ(domain_.session_count(), model_.sessions.size());
    ASSERT_EQ(domain_.waiting_count(), model_.waiting.size());
    ASSERT_EQ(domain_.allocated_bytes(), model_.bytes());
    ASSERT_EQ(domain_.descriptors(), model_.descriptors());
    ASSERT_EQ(seen_.slots.size(), model_.segments.size());
    std::set<gpushm::generation> in_slots;
    for (const auto& [slot, what] : seen_.slots) {
      ASSERT_LT(slot, bounds.max_segments);
      ASSERT_TRUE(in_slots.insert(what.generation).second) << "two slots for one generation";
      const auto at = model_.segments.find(what.generation);
      ASSERT_NE(at, model_.segments.end());
      ASSERT_EQ(*what.state == segment_state::removed, at->second.removed);
    }
    check_leases();
    check_answers();
    for (const notice& heard : seen_.notices) {
      ASSERT_TRUE(was_published_.count(heard.generation) != 0 || published_now(heard.generation))
          << "told of a segment that nobody may see";
      was_published_.insert(heard.generation);
      ASSERT_EQ(model_.sessions.count(heard.session), 1U);
    }
    seen_.notices.clear();
  }

  void everybody_leaves() {
    for (session_id session = 1; session <= 5; ++session) {
      domain_.disconnect(session, false);
      model_.disconnect(session);
    }
    domain_.connect(99, {1, broker_uid, true});
    model_.sessions[99] = {1, broker_uid, true};
    seen_.notices.clear();
    check();
    std::vector<std::string> names;
    domain_.list(99, "", "", [&](const segment& what) {
      EXPECT_TRUE(what.lifetime == lifetime::persistent && what.published);
      names.push_back(what.name);
      return true;
    });
    for (const std::string& each : names) {
      domain_.remove(99, each);
    }
    domain_.disconnect(99, true);
    EXPECT_EQ(domain_.segment_count(), 0U);
    EXPECT_EQ(domain_.session_count(), 0U);
    EXPECT_EQ(domain_.waiting_count(), 0U);
    EXPECT_EQ(domain_.allocated_bytes(), 0U);
    EXPECT_EQ(domain_.descriptors(), 0U);
    EXPECT_TRUE(seen_.slots.empty());
    std::set<gpushm::generation> freed(seen_.freed_generations.begin(),
                                       seen_.freed_generations.end());
    EXPECT_EQ(freed.size(), seen_.freed_generations.size()) << "freed twice";
    EXPECT_EQ(freed.size(), generation_) << "made, but never freed";
  }

  [[nodiscard]] std::size_t made() const { return generation_; }
  [[nodiscard]] std::size_t granted() const { return granted_; }

 private:
  static constexpr peer peers[] = {{11, 1000, true},
                                   {12, 1000, true},
                                   {21, 2000, true},
                                   {0, 65534, false},
                                   {0, 65534, false},
                                   {31, broker_uid, true}};

  std::size_t pick(std::size_t count) { return random_() % count; }
  std::string name() { return std::string(1, static_cast<char>('a' + pick(4))); }
  gpushm::generation some_generation() {
    if (model_.segments.empty() || pick(10) == 0) {
      return pick(generation_ + 2);
    }
    return std::next(model_.segments.begin(),
                     static_cast<std::ptrdiff_t>(pick(model_.segments.size())))
        ->first;
  }

  template <typename Call>
  void expect_same(const outcome& expected, Call&& call) {
    outcome happened;
    try {
      call();
    } catch (const error& why) {
      happened = why.code();
    }
    ASSERT_EQ(happened.has_value(), expected.has_value())
        << (happened ? to_string(*happened) : to_string(*expected));
    if (happened) {
      ASSERT_EQ(to_string(*happened), to_string(*expected));
    }
  }

  void reserve(session_id session) {
    const auto wanted = host_segment(name(),
                                     4096 * (1 + pick(3)),
                                     pick(3) == 0 ? lifetime::persistent : lifetime::leased,
                                     static_cast<std::uint32_t>(1 + pick(3)));
    const outcome expected = model_.reserve(session, wanted, generation_ + 1);
    expect_same(expected,
                [&] { ASSERT_EQ(domain_.reserve(session, wanted).generation, generation_ + 1); });
    generation_ += expected ? 0U : 1U;
  }

  void check_leases() {
    for (const auto& [generation, segment] : model_.segments) {
      for (const auto& [session, who] : model_.sessions) {
        std::uint32_t count = 0;
        try {
          for (const lease& each : domain_.held(session, generation).leases) {
            count += each.holder == session ? each.count : 0;
          }
        } catch (const error& why) {
          ASSERT_EQ(why.code(), errc::stale_generation);
        }
        const auto at = segment.leases.find(session);
        ASSERT_EQ(count, at == segment.leases.end() ? 0 : at->second);
      }
    }
  }

  void check_answers() {
    const auto before = [](const answer& a, const answer& b) { return a.request < b.request; };
    std::stable_sort(seen_.answers.begin(), seen_.answers.end(), before);
    std::stable_sort(model_.answers.begin(), model_.answers.end(), before);
    ASSERT_EQ(seen_.answers.size(), model_.answers.size());
    for (std::size_t i = 0; i < seen_.answers.size(); ++i) {
      const answer& one = seen_.answers[i];
      ASSERT_EQ(one.session, model_.answers[i].session);
      ASSERT_EQ(one.request, model_.answers[i].request);
      ASSERT_EQ(one.generation, model_.answers[i].generation);
      ASSERT_EQ(one.code, model_.answers[i].code);
      ASSERT_EQ(asked_.erase({one.session, one.request}), 1U) << "answered twice";
      granted_ += one.generation != 0 ? 1 : 0;
    }
    seen_.answers.clear();
    model_.answers.clear();
  }

  bool published_now(gpushm::generation generation) {
    const auto at = model_.segments.find(generation);
    return at != model_.segments.end() && at->second.published;
  }

  std::mt19937 random_;
  recorder seen_;
  domain domain_{"default", broker_uid, bounds, seen_};
  model model_;
  std::set<std::pair<session_id, std::uint64_t>> asked_;
  std::set<gpushm::generation> was_published_;
  std::uint64_t request_ = 0;
  gpushm::generation generation_ = 0;
  std::size_t granted_ = 0;
  int now_ms_ = 0;
};

TEST(domain_and_model, agree_after_every_random_step) {
  std::size_t made = 0;
  std::size_t granted = 0;
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_world world(seed);
    for (int i = 0; i < 600; ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      world.step();
      world.check();
      if (testing::Test::HasFailure()) {
        return;
      }
    }
    world.everybody_leaves();
    made += world.made();
    granted += world.granted();
  }
  // Otherwise the random steps prove nothing.
  EXPECT_GT(made, 400U);
  EXPECT_GT(granted, 1'000U);
}

}  // namespace
}  // namespace gpushm::core
