// SPDX-License-Identifier: Apache-2.0
// Random operations of several sessions on a domain and on a simple model of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "core/saved_state.hpp"
#include "tests/core/world.hpp"
#include "tests/support/process/environment.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;

constexpr std::uint32_t broker_uid = 42;
constexpr limits bounds{.max_segments = 6,
                        // No quota of the domain: budget_test.cpp covers it.
                        .quota_bytes_per_principal = 20'000,
                        .max_descriptors = 30,
                        .descriptors_per_session = 2,
                        .max_pending_opens = 3,
                        .max_subscriptions = 2,
                        .confirm_timeout = std::chrono::milliseconds(25),
                        .names_changes = true,
                        .max_dead_names = 2};

struct model_segment {
  std::string name;
  std::uint64_t bytes = 0;
  std::string device;
  std::uint32_t chunks = 0;
  std::uint32_t attached = 0;
  bool persistent = false;
  bool bound = false;       // exporter-bound
  bool registered = false;  // a descriptor: nothing is charged for its bytes, opens grant no lease
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
  bool wait = false;
  int asked_ms = 0;
};

struct model_question {
  std::uint64_t id = 0;
  model_open open;
  gpushm::generation generation = 0;
  int deadline_ms = 0;
  bool is_new = false;  ///< sent during the last step
};

using outcome = std::optional<errc>;  // nullopt: success

class model {
 public:
  outcome connect(session_id session, const peer& who) {
    if (descriptors() + 2 > bounds.max_descriptors) {
      return errc::too_many_descriptors;
    }
    sessions[session] = who;
    return {};
  }

  /// The connection closed without a goodbye. Returns false if the session has nothing.
  bool lose(session_id session) {
    const bool has_some = std::any_of(segments.begin(), segments.end(), [&](const auto& entry) {
      return entry.second.creator_session == session || entry.second.leases.contains(session);
    });
    if (!has_some) {
      disconnect(session, false);
      return false;
    }
    std::erase_if(waiting, [&](const model_open& open) { return open.session == session; });
    std::erase_if(questions, [&](const model_question& q) { return q.open.session == session; });
    lost[session] = sessions[session];
    sessions.erase(session);
    ++losses_of_connections;
    return true;
  }

  /// Session `target` gets everything of the lost session `source` and keeps the generations in
  /// `kept`.
  bool resume(session_id source, session_id target, const std::set<gpushm::generation>& kept) {
    const auto at = lost.find(source);
    if (at == lost.end() || !same_principal(at->second, sessions[target])) {
      return false;
    }
    std::set<std::string> names;
    for (auto& [generation, segment] : segments) {
      if (segment.creator_session == source || segment.leases.contains(source)) {
        names.insert(segment.name);
      }
      if (segment.creator_session == source) {
        segment.creator_session = target;
      }
      if (const auto lease = segment.leases.find(source); lease != segment.leases.end()) {
        segment.leases[target] = lease->second;
        segment.leases.erase(source);
      }
    }
    lost.erase(at);
    ++resumptions;
    wake(names);
    for (const model_question& question : questions) {
      // Sent again; questions of this step were sent already.
      if (segments[question.generation].creator_session == target && !question.is_new) {
        asked.push_back({target, question.id, question.generation});
      }
    }
    std::vector<gpushm::generation> left;
    for (const auto& [generation, segment] : segments) {
      if (segment.leases.contains(target) && !kept.contains(generation)) {
        left.push_back(generation);
      }
    }
    for (const gpushm::generation generation : left) {
      release(target, generation, 1'000'000);
    }
    return true;
  }

  void disconnect(session_id session, bool clean) {
    std::set<std::string> names;
    for (const auto& [generation, segment] : segments) {
      if (lost.contains(session) &&
          (segment.creator_session == session || segment.leases.contains(session))) {
        names.insert(segment.name);
      }
    }
    sessions.erase(session);
    lost.erase(session);
    std::erase_if(waiting, [&](const model_open& open) { return open.session == session; });
    std::erase_if(questions, [&](const model_question& q) { return q.open.session == session; });
    for (auto& [generation, segment] : segments) {
      segment.leases.erase(session);
      if (segment.creator_session != session) {
        continue;
      }
      segment.creator_session = 0;
      if (!segment.bound) {
        continue;
      }
      if (!segment.removed) {
        if (!clean && segment.published) {
          remember_dead(segment.name);
        }
        unname(generation, segment);
      }
      for (const model_question& question : questions) {
        if (question.generation == generation) {
          fail(question.open, clean ? no_such(question.open.name) : errc::peer_died);
        }
      }
      std::erase_if(questions, [&, gone = generation](const model_question& question) {
        return question.generation == gone;
      });
    }
    sweep();
    wake(names);
  }

  bool cancel(session_id session, std::uint64_t request) {
    const auto is_meant = [&](const model_open& open) {
      return open.session == session && open.request == request;
    };
    const auto waited = std::erase_if(waiting, is_meant);
    const auto was_asked =
        std::erase_if(questions, [&](const model_question& q) { return is_meant(q.open); });
    cancelled += waited + was_asked;
    return waited + was_asked != 0;
  }

  outcome reserve(session_id session, const reservation& expected, gpushm::generation generation) {
    const model_segment* const reserved = of_name(expected.name, false);
    const model_segment* const published = of_name(expected.name, true);
    const bool replaces = reserved == nullptr && published != nullptr && expected.replaces != 0;
    if (replaces && published != &segments.find(expected.replaces)->second) {
      return errc::gone_or_replaced;
    }
    if (replaces && !may_manage(session, *published)) {
      return errc::permission_denied;
    }
    const model_segment* const other = reserved != nullptr ? reserved : published;
    if (other != nullptr && !replaces) {
      return waits(*other) && !(other->persistent && other->published) ? errc::writer_ending
                                                                       : errc::already_exists;
    }
    if (segments.size() >= bounds.max_segments) {
      return errc::too_many_segments;
    }
    const bool is_memory = expected.backend != backend::descriptor;
    if (is_memory &&
        bytes_of(sessions[session], expected.device.text()) + expected.allocated_bytes >
            bounds.quota_bytes_per_principal) {
      return errc::quota_exceeded;
    }
    if (descriptors() + expected.chunk_count > bounds.max_descriptors) {
      return errc::too_many_descriptors;
    }
    segments[generation] = {
        expected.name,
        expected.allocated_bytes,
        expected.device.text(),
        expected.chunk_count,
        0,
        expected.lifetime == lifetime::persistent,
        expected.backend == backend::cuda_ipc || expected.backend == backend::cuda_pool,
        expected.backend == backend::descriptor,
        false,
        false,
        sessions[session],
        session,
        {{session, 1}}};
    std::erase(dead, expected.name);
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
    for (auto& [number, other] : segments) {
      if (&other != &segment && other.name == segment.name && other.published && !other.removed) {
        unname(number, other);
        ++moves;
      }
    }
    std::erase(dead, segment.name);
    segment.published = true;
    const std::string name = segment.name;
    sweep();
    wake({name});
    return {};
  }

  /// Answers opens that wait for one of the names, if possible.
  void wake(const std::set<std::string>& names) {
    for (const std::string& name : names) {
      for (auto& [generation, segment] : segments) {
        if (segment.name != name || !segment.published || segment.removed || waits(segment)) {
          continue;
        }
        std::vector<model_open> woken;
        for (const model_open& open : waiting) {
          if (open.name == name) {
            woken.push_back(open);
          }
        }
        std::erase_if(waiting, [&](const model_open& open) { return open.name == name; });
        for (const model_open& open : woken) {
          if (segment.bound) {
            request_confirmation(open, generation, open.deadline_ms);
            if (!questions.empty()) {
              questions.back().is_new = true;
            }
          } else {
            reply_now(open, generation);
          }
        }
        break;
      }
    }
  }

  /// True if only lost sessions have leases on it.
  [[nodiscard]] bool waits(const model_segment& segment) const {
    if (segment.bound) {
      return lost.contains(segment.creator_session);
    }
    return !segment.leases.empty() &&
           std::all_of(segment.leases.begin(), segment.leases.end(), [&](const auto& lease) {
             return lost.contains(lease.first);
           });
  }

  void open(const model_open& open) {
    bool must_wait = false;
    for (auto& [generation, segment] : segments) {
      if (segment.name == open.name && segment.published && !segment.removed) {
        if (waits(segment)) {
          must_wait = true;
          break;
        }
        if (segment.bound) {
          request_confirmation(open, generation, open.asked_ms);
        } else {
          reply_now(open, generation);
        }
        return;
      }
    }
    const auto pending =
        std::count_if(waiting.begin(), waiting.end(), [&](const model_open& other) {
          return other.session == open.session;
        });
    if (!open.wait) {
      fail(open, must_wait ? errc::writer_ending : no_such(open.name));
    } else if (pending >= bounds.max_pending_opens) {
      fail(open, errc::too_many_requests);
    } else {
      waiting.push_back(open);
    }
  }

  void confirmed(session_id exporter, std::uint64_t id, verdict reply) {
    const auto at = std::find_if(
        questions.begin(), questions.end(), [&](const model_question& q) { return q.id == id; });
    if (at == questions.end()) {
      return;
    }
    const auto segment = segments.find(at->generation);
    if (segment != segments.end() && segment->second.creator_session != exporter) {
      return;
    }
    const model_question question = *at;
    questions.erase(at);
    ++confirmations;
    if (segment == segments.end() || segment->second.removed) {
      open(question.open);
    } else if (reply == verdict::unchanged) {
      reply_now(question.open, question.generation);
    } else {
      fail(question.open, errc::gone_or_replaced);
      unname(question.generation, segment->second);
      sweep();
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
      if (at->second.bound && at->second.creator_session == session && !at->second.removed) {
        unname(generation, at->second);
      }
    }
    sweep();
  }

  outcome remove(session_id session, const std::string& name, gpushm::generation only) {
    model_segment* segment = named(name);
    if (const auto at = segments.find(only); at != segments.end() && at->second.name == name &&
                                             !at->second.removed &&
                                             at->second.creator_session == session) {
      segment = &at->second;
    }
    if (segment == nullptr || (!segment->published && segment->creator_session != session)) {
      return no_such(name);
    }
    if (only != 0 && &segments[only] != segment) {
      return errc::gone_or_replaced;
    }
    if (!may_manage(session, *segment)) {
      return errc::permission_denied;
    }
    for (auto& [generation, each] : segments) {
      if (&each == segment) {
        unname(generation, each);
      }
    }
    sweep();
    return {};
  }

  void tick(int now_ms) {
    // Ties may be in any order: the caller compares sorted answers.
    for (const model_open& open : waiting) {
      if (open.deadline_ms <= now_ms) {
        const model_segment* current = named(open.name);
        fail(open,
             current != nullptr && current->published && waits(*current) ? errc::writer_ending
                                                                         : no_such(open.name));
      }
    }
    std::erase_if(waiting, [&](const model_open& open) { return open.deadline_ms <= now_ms; });
    for (const model_question& question : questions) {
      if (question.deadline_ms <= now_ms) {
        fail(question.open, errc::timed_out);
      }
    }
    std::erase_if(questions, [&](const model_question& q) { return q.deadline_ms <= now_ms; });
  }

  [[nodiscard]] std::optional<time_point> next_deadline() const {
    std::optional<time_point> next;
    const auto consider = [&](int deadline_ms) {
      next = next ? std::min(*next, at_ms(deadline_ms)) : at_ms(deadline_ms);
    };
    for (const model_open& open : waiting) {
      consider(open.deadline_ms);
    }
    for (const model_question& question : questions) {
      consider(question.deadline_ms);
    }
    return next;
  }

  /// As their creators claim.
  [[nodiscard]] std::uint64_t claimed_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [generation, segment] : segments) {
      sum += segment.bytes;
    }
    return sum;
  }
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [generation, segment] : segments) {
      sum += segment.registered ? 0 : segment.bytes;
    }
    return sum;
  }
  [[nodiscard]] std::uint64_t bytes_on(const std::string& device) const {
    std::uint64_t sum = 0;
    for (const auto& [generation, segment] : segments) {
      sum += segment.device == device && !segment.registered ? segment.bytes : 0;
    }
    return sum;
  }
  [[nodiscard]] std::uint64_t descriptors() const {
    std::uint64_t sum = 2 * (sessions.size() + lost.size());
    for (const auto& [generation, segment] : segments) {
      sum += segment.chunks;
    }
    return sum;
  }

  std::map<session_id, peer> sessions;
  std::map<session_id, peer> lost;
  std::size_t losses_of_connections = 0;
  std::size_t resumptions = 0;
  std::map<gpushm::generation, model_segment> segments;
  std::vector<model_open> waiting;
  std::vector<model_question> questions;
  std::vector<question> asked;
  std::vector<recorder::loss> losses;
  std::vector<std::string> dead;  // oldest first
  std::vector<reply> replies;
  std::size_t confirmations = 0;  // accepted answers
  std::size_t deaths = 0;         // remembered names
  std::size_t cancelled = 0;      // waiting opens
  std::size_t moves = 0;          // of names
  std::size_t fetches = 0;        // of registered descriptors

 private:
  [[nodiscard]] errc no_such(const std::string& name) const {
    return std::count(dead.begin(), dead.end(), name) != 0 ? errc::peer_died
                                                           : errc::no_such_segment;
  }
  void fail(const model_open& open, errc code) {
    replies.push_back({open.session, open.request, 0, 0, code, {}});
  }
  void remember_dead(const std::string& name) {
    dead.push_back(name);
    ++deaths;
    if (dead.size() > bounds.max_dead_names) {
      dead.erase(dead.begin());
    }
  }
  void unname(gpushm::generation generation, model_segment& segment) {
    segment.removed = true;
    for (const auto& [holder, count] : segment.leases) {
      if (!lost.contains(holder)) {
        losses.push_back({holder, generation});
      }
    }
  }
  void request_confirmation(const model_open& open, gpushm::generation generation, int since_ms) {
    const auto pending =
        std::count_if(questions.begin(), questions.end(), [&](const model_question& other) {
          return other.open.session == open.session;
        });
    if (pending >= bounds.max_pending_opens) {
      fail(open, errc::too_many_requests);
      return;
    }
    const int deadline = since_ms + static_cast<int>(bounds.confirm_timeout.count());
    questions.push_back({++question_, open, generation, deadline});
    asked.push_back({segments[generation].creator_session, question_, generation});
  }
  model_segment* of_name(const std::string& name, bool is_published) {
    for (auto& [generation, segment] : segments) {
      if (segment.name == name && !segment.removed && segment.published == is_published) {
        return &segment;
      }
    }
    return nullptr;
  }
  model_segment* named(const std::string& name) {
    model_segment* const published = of_name(name, true);
    return published != nullptr ? published : of_name(name, false);
  }
  static bool same_principal(const peer& left, const peer& right) {
    return left.uid_known == right.uid_known && (!left.uid_known || left.uid == right.uid);
  }
  std::uint64_t bytes_of(const peer& peer, const std::string& device) {
    std::uint64_t sum = 0;
    for (const auto& [generation, segment] : segments) {
      const bool same = !segment.registered && segment.device == device &&
                        peer.uid_known == segment.creator.uid_known &&
                        (!peer.uid_known || peer.uid == segment.creator.uid);
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
  void reply_now(const model_open& open, gpushm::generation generation) {
    model_segment& segment = segments[generation];
    if (open.expected != 0 && open.expected != segment.bytes) {
      replies.push_back({open.session, open.request, 0, 0, errc::size_mismatch, {}});
      return;
    }
    if (segment.registered) {
      ++fetches;
    } else {
      ++segment.leases[open.session];
    }
    replies.push_back({open.session, open.request, 0, generation, {}, {}});
  }
  void sweep() {
    std::erase_if(segments, [](const auto& entry) {
      const model_segment& segment = entry.second;
      return segment.leases.empty() &&
             !(segment.persistent && segment.published && !segment.removed);
    });
  }
  std::uint64_t question_ = 0;
};

class random_world {
 public:
  explicit random_world(std::uint32_t seed, bool restarts_often = false)
      : random_(seed), restarts_often_(restarts_often) {}
  [[nodiscard]] std::size_t restarts() const { return restarts_; }
  [[nodiscard]] std::size_t unheld() const { return unheld_seen_; }
  [[nodiscard]] std::size_t fence_waits() const { return fence_waits_seen_; }

  /// Replaces the domain by one that is made from the records, as after a restart of the broker.
  void restart() {
    const saved_state saved = domain_->save();
    saved_state recorded = seen_.recorded();
    auto successor = std::make_unique<domain>("default", broker_uid, bounds, nullptr, recorded);
    EXPECT_TRUE(successor->save() == saved);
    const bool has_ended = std::any_of(saved.records.begin(), saved.records.end(), [](auto& each) {
      return each.first.kind == record_kind::end;
    });
    for (std::size_t i = 0; i < resource_count; ++i) {
      const auto entry = static_cast<resource>(i);
      if (entry != resource::memory_bytes || !has_ended) {
        EXPECT_EQ(successor->budget().used(entry), domain_->budget().used(entry)) << i;
      }
    }
    for (const char* const gpu : {"GPU-0", "GPU-1"}) {
      EXPECT_EQ(successor->budget().used_on(gpu), domain_->budget().used_on(gpu)) << gpu;
    }
    if (!has_ended) {
      EXPECT_EQ(successor->budget().node_count(), domain_->budget().node_count());
    }
    // It writes the whole state table from the records.
    EXPECT_EQ(seen_.slots().size(), successor->segment_count());
    for (const auto& [slot, word] : seen_.slots()) {
      const segment& of = successor->segment_of(word.generation);
      EXPECT_EQ(of.slot, slot);
      EXPECT_EQ(of.state(), word.state);
    }
    EXPECT_EQ(successor->lease_count(), domain_->lease_count());
    EXPECT_EQ(successor->has_work(), domain_->has_work());
    seen_.follow(*successor);
    domain_ = std::move(successor);
    ++restarts_;
  }

  void step() {
    if (restarts_often_ && pick(4) == 0) {
      restart();
    }
    session_id session = 1 + pick(5);
    for (model_question& question : model_.questions) {
      question.is_new = false;
    }
    if (model_.lost.count(session) != 0) {
      end_or_resume_lost(session);
      return;
    }
    if (model_.sessions.count(session) == 0) {
      const peer who = peers[pick(std::size(peers))];
      expect_same(model_.connect(session, who), [&] { domain_->connect(session, who); });
      if (model_.sessions.count(session) != 0) {
        domain_->subscribe(session, 1, "");
      }
      return;
    }
    switch (pick(20)) {
      case 0: {
        if (pick(2) != 0) {
          break;
        }
        if (pick(2) == 0) {
          ASSERT_EQ(domain_->at(at_ms(now_ms_)).lose(session), model_.lose(session));
          break;
        }
        const bool clean = pick(2) == 0;
        model_.disconnect(session, clean);
        domain_->disconnect(session, clean);
        break;
      }
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
        if (pick(4) != 0 && at != model_.segments.end()) {  // as a correct client does
          session = at->second.creator_session;
          first = at->second.attached;
          count = at->second.chunks - first;
        }
        if (model_.sessions.count(session) == 0) {
          break;
        }
        expect_same(model_.attach(session, generation, first, count),
                    [&] { domain_->attach(session, generation, first, count); });
        break;
      }
      case 7:
      case 8: {
        const auto generation = some_generation();
        expect_same(model_.publish(session, generation),
                    [&] { domain_->publish(session, generation, {}); });
        break;
      }
      case 9:
      case 10:
      case 11: {
        const bool wait = pick(2) == 0;
        const int deadline = now_ms_ + static_cast<int>(pick(20));
        const std::uint64_t expected = pick(6) == 0 ? 4096 : 0;
        const model_open wanted{session, ++request_, name(), expected, deadline, wait, now_ms_};
        model_.open(wanted);
        domain_->open(session,
                      {wanted.request,
                       0,
                       wanted.name,
                       expected,
                       wait ? std::optional(at_ms(deadline)) : std::nullopt,
                       at_ms(now_ms_)});
        asked_.insert({session, wanted.request});
        break;
      }
      case 12:
      case 13: {
        const auto generation = some_generation();
        const auto count = static_cast<std::uint32_t>(pick(3));
        model_.release(session, generation, count);
        domain_->release(session, generation, count);
        break;
      }
      case 14: {
        const std::string gone = name();
        const auto only = pick(3) == 0 ? some_generation() : 0;
        expect_same(model_.remove(session, gone, model_.segments.count(only) != 0 ? only : 0), [&] {
          domain_->remove(session, gone, model_.segments.count(only) != 0 ? only : 0);
        });
        break;
      }
      case 15:
      case 16:
      case 17: {
        std::uint64_t id = pick(4);
        if (!model_.questions.empty() && pick(6) != 0) {  // as a correct exporter does
          const model_question& question = model_.questions[pick(model_.questions.size())];
          id = question.id;
          const auto at = model_.segments.find(question.generation);
          if (at != model_.segments.end() && pick(6) != 0) {
            session = at->second.creator_session;
          }
        }
        if (model_.lost.count(session) != 0) {
          break;
        }
        const verdict word = pick(4) != 0   ? verdict::unchanged
                             : pick(2) == 0 ? verdict::changed
                                            : verdict::not_shared;
        model_.confirmed(session, id, word);
        domain_->confirmed(session, id, word);
        break;
      }
      case 18: {
        std::uint64_t request = pick(request_ + 2);
        const bool of_a_name = pick(2) == 0;
        if (of_a_name && !model_.waiting.empty()) {
          const model_open& some = model_.waiting[pick(model_.waiting.size())];
          request = some.request;
          session = pick(6) == 0 ? session : some.session;
        } else if (!of_a_name && !model_.questions.empty()) {
          const model_open& some = model_.questions[pick(model_.questions.size())].open;
          request = some.request;
          session = pick(6) == 0 ? session : some.session;
        }
        const bool waited = model_.cancel(session, request);
        EXPECT_EQ(domain_->cancel(session, request), waited);
        if (waited) {
          asked_.erase({session, request});
          seen_.waits().erase({session, request, 0});
        }
        break;
      }
      default:
        now_ms_ += static_cast<int>(pick(15));
        model_.tick(now_ms_);
        domain_->at(at_ms(now_ms_)).tick();
        break;
    }
  }

  /// The fence of a lost session is reached, or its process resumes it with another session.
  void end_or_resume_lost(session_id session) {
    if (pick(6) == 0 || !resume_lost(session)) {
      model_.disconnect(session, false);
      domain_->disconnect(session, false);
    }
    seen_.settle();
    while (domain_->work()) {
      seen_.settle();
    }
  }

  /// Resumes with some of its leases; sometimes another principal tries.
  bool resume_lost(session_id session) {
    session_id successor = 1;
    while (successor <= 5 &&
           (model_.sessions.contains(successor) || model_.lost.contains(successor))) {
      ++successor;
    }
    const peer who = pick(5) == 0 ? peers[pick(std::size(peers))] : model_.lost[session];
    if (successor > 5 || model_.connect(successor, who)) {
      return false;
    }
    domain_->connect(successor, who);
    domain_->subscribe(successor, 1, "");
    std::set<gpushm::generation> kept;
    std::vector<std::uint64_t> generations;
    std::vector<std::uint64_t> counts;
    for (const auto& [generation, segment] : model_.segments) {
      if (const auto lease = segment.leases.find(session);
          lease != segment.leases.end() && pick(3) != 0) {
        kept.insert(generation);
        generations.push_back(generation);
        counts.push_back(lease->second);
      }
    }
    const bool resumed = model_.resume(session, successor, kept);
    EXPECT_EQ(domain_->resume(session, successor), resumed);
    if (resumed) {
      domain_->keep(successor, generations, counts, false);
    }
    return resumed;
  }

  void check() {
    ASSERT_EQ(domain_->segment_count(), model_.segments.size());
    ASSERT_EQ(domain_->session_count(), model_.sessions.size());
    ASSERT_EQ(domain_->ending_count(), model_.lost.size());
    ASSERT_EQ(domain_->waiting_count(), model_.waiting.size());
    ASSERT_EQ(domain_->allocated_bytes(), model_.bytes());
    ASSERT_EQ(domain_->budget().used(resource::host_bytes), model_.bytes_on("host"));
    for (const char* const gpu : {"GPU-0", "GPU-1"}) {
      ASSERT_EQ(domain_->budget().used_on(gpu), model_.bytes_on(gpu)) << gpu;
    }
    ASSERT_EQ(domain_->descriptors(), model_.descriptors());
    ASSERT_EQ(seen_.slots().size(), model_.segments.size());
    std::set<gpushm::generation> in_slots;
    for (const auto& [slot, entry] : seen_.slots()) {
      ASSERT_LT(slot, bounds.max_segments);
      ASSERT_TRUE(in_slots.insert(entry.generation).second) << "two slots for one generation";
      const auto at = model_.segments.find(entry.generation);
      ASSERT_NE(at, model_.segments.end());
      const bool gone = *entry.state == segment_state::removed ||
                        (at->second.bound && *entry.state == segment_state::exporter_gone);
      ASSERT_EQ(gone, at->second.removed);
    }
    ASSERT_EQ(domain_->next_deadline(), model_.next_deadline());
    check_survey();
    check_principals();
    check_questions();
    check_losses();
    check_leases();
    check_replies();
    for (const notice& event : seen_.notices()) {
      ASSERT_TRUE(was_published_.count(event.generation) != 0 || published_now(event.generation))
          << "event of an unpublished segment";
      was_published_.insert(event.generation);
      ASSERT_EQ(model_.sessions.count(event.session), 1U);
    }
    seen_.notices().clear();
  }

  void disconnect_all() {
    for (session_id session = 1; session <= 5; ++session) {
      domain_->disconnect(session, false);
      model_.disconnect(session, false);
    }
    domain_->connect(99, {1, broker_uid, true});
    model_.sessions[99] = {1, broker_uid, true};
    seen_.notices().clear();
    check();
    std::vector<std::string> names;
    domain_->list(99, "", "", [&](const segment& entry) {
      EXPECT_TRUE(entry.lifetime == lifetime::persistent && entry.published);
      names.push_back(entry.name);
      return true;
    });
    for (const std::string& each : names) {
      domain_->remove(99, each);
    }
    domain_->disconnect(99, true);
    EXPECT_EQ(domain_->segment_count(), 0U);
    EXPECT_EQ(domain_->session_count(), 0U);
    EXPECT_EQ(domain_->waiting_count(), 0U);
    EXPECT_EQ(domain_->allocated_bytes(), 0U);
    EXPECT_EQ(domain_->descriptors(), 0U);
    EXPECT_TRUE(seen_.slots().empty());
    std::set<gpushm::generation> freed(seen_.freed_generations().begin(),
                                       seen_.freed_generations().end());
    EXPECT_EQ(freed.size(), seen_.freed_generations().size()) << "freed twice";
    EXPECT_EQ(freed.size(), generation_) << "created, but never freed";
  }

  [[nodiscard]] std::size_t created() const { return generation_; }
  [[nodiscard]] std::size_t granted() const { return granted_; }
  [[nodiscard]] std::size_t lost() const { return lost_; }
  [[nodiscard]] std::size_t confirmed() const { return model_.confirmations; }
  [[nodiscard]] std::size_t died() const { return model_.deaths; }
  [[nodiscard]] std::size_t cancelled() const { return model_.cancelled; }
  [[nodiscard]] std::size_t ended_without_goodbye() const { return model_.losses_of_connections; }
  [[nodiscard]] std::size_t resumed() const { return model_.resumptions; }
  [[nodiscard]] std::size_t moved() const { return model_.moves; }
  [[nodiscard]] std::size_t fetched() const { return model_.fetches; }

 private:
  static inline const peer peers[] = {{11, 1000, true},
                                      {12, 1000, true},
                                      {21, 2000, true},
                                      {0, 65534, false},
                                      {0, 65534, false},
                                      {31, broker_uid, true}};

  std::size_t pick(std::size_t count) { return random_() % count; }
  std::string name() {
    const std::size_t which = pick(4);
    return which == 3 ? ".fd/7" : std::string(1, static_cast<char>('a' + which));
  }
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
    // In separate statements: compilers evaluate arguments in different orders.
    const std::string wanted_name = name();
    const std::uint64_t size = 4096 * (1 + pick(3));
    const lifetime life = pick(3) == 0 ? lifetime::persistent : lifetime::leased;
    const auto chunks = static_cast<std::uint32_t>(1 + pick(3));
    auto wanted = host_segment(wanted_name, size, life, chunks);
    if (pick(2) == 0) {
      wanted.lifetime = lifetime::leased;
      wanted.chunk_count = static_cast<std::uint32_t>(pick(2));
      wanted.backend = wanted.chunk_count == 0 ? backend::cuda_ipc : backend::cuda_pool;
      wanted.device = {device_kind::gpu, size == 4096 ? "GPU-1" : "GPU-0", "0000:18:00.0", 0};
      wanted.ticket.resize(1);
    }
    if (pick(3) == 0) {  // mostly as a correct client does
      const auto other = some_generation();
      wanted.replaces = model_.segments.contains(other) ? other : 0;
      if (wanted.replaces != 0 && pick(4) != 0) {
        wanted.name = model_.segments.at(other).name;
      }
    }
    if (wanted.name.starts_with('.')) {
      const auto replaces = wanted.replaces;
      wanted = registration(7);
      wanted.replaces = replaces;
    }
    const outcome expected = model_.reserve(session, wanted, generation_ + 1);
    expect_same(expected,
                [&] { ASSERT_EQ(domain_->reserve(session, wanted).generation, generation_ + 1); });
    generation_ += expected ? 0U : 1U;
  }

  void check_questions() {
    ASSERT_EQ(seen_.questions().size(), model_.asked.size());
    for (std::size_t i = 0; i < seen_.questions().size(); ++i) {
      ASSERT_EQ(seen_.questions()[i].exporter, model_.asked[i].exporter);
      ASSERT_EQ(seen_.questions()[i].confirmation, model_.asked[i].confirmation);
      ASSERT_EQ(seen_.questions()[i].generation, model_.asked[i].generation);
    }
    seen_.questions().clear();
    model_.asked.clear();
  }

  void check_losses() {
    const auto before = [](const recorder::loss& a, const recorder::loss& b) {
      return std::pair(a.generation, a.holder) < std::pair(b.generation, b.holder);
    };
    std::sort(seen_.losses().begin(), seen_.losses().end(), before);
    std::sort(model_.losses.begin(), model_.losses.end(), before);
    ASSERT_EQ(seen_.losses(), model_.losses);
    lost_ += seen_.losses().size();
    seen_.losses().clear();
    model_.losses.clear();
  }

  void check_leases() {
    std::size_t leases = 0;
    for (const auto& [generation, segment] : model_.segments) {
      leases += segment.leases.size();
      for (const auto& [session, who] : model_.sessions) {
        std::uint32_t count = 0;
        try {
          for (const lease& each : domain_->held(session, generation).leases) {
            count += each.holder == session ? each.count : 0;
          }
        } catch (const error& why) {
          ASSERT_EQ(why.code(), errc::stale_generation);
        }
        const auto at = segment.leases.find(session);
        ASSERT_EQ(count, at == segment.leases.end() ? 0 : at->second);
      }
    }
    ASSERT_EQ(domain_->lease_count(), leases);
  }

  /// What operators see of segments.
  void check_survey() {
    segment_survey seen;
    while (domain_->survey_some(seen)) {
    }
    segment_survey expected;
    for (const auto& [generation, segment] : model_.segments) {
      const auto add = [bytes = segment.bytes](segment_survey::part& part) {
        ++part.segments;
        part.bytes += bytes;
      };
      const bool is_ending = model_.lost.contains(segment.creator_session) ||
                             std::any_of(segment.leases.begin(),
                                         segment.leases.end(),
                                         [&](auto& l) { return model_.lost.contains(l.first); });
      if (segment.leases.empty() && segment.persistent) {
        add(expected.unheld);
        ++unheld_seen_;
      }
      if (is_ending) {
        add(expected.ending);
        ++fence_waits_seen_;
      }
    }
    ASSERT_EQ(seen.unheld, expected.unheld);
    ASSERT_EQ(seen.ending, expected.ending);
    ASSERT_EQ(seen.ending_since.has_value(), expected.ending.segments != 0);
    segment_survey::part leases;
    for (const segment_survey::part& each : seen.by_kind) {
      leases.segments += each.segments;
      leases.bytes += each.bytes;
    }
    ASSERT_EQ(leases, (segment_survey::part{model_.segments.size(), model_.claimed_bytes()}));
  }

  /// However few rows there are, they and the others add up to the domain.
  void check_principals() {
    for (const std::size_t rows : {std::size_t{0}, std::size_t{1}, std::size_t{100}}) {
      const principal_usages got = domain_->budget().usages_of_principals(rows);
      ASSERT_LE(got.largest.size(), rows);
      ASSERT_TRUE(got.other_count == 0 || got.largest.size() == rows);
      for (std::size_t i = 0; i < resource_count; ++i) {
        std::uint64_t sum = got.others.at(i);
        for (const principal_usages::row& each : got.largest) {
          sum += each.used.at(i);
        }
        ASSERT_EQ(sum, domain_->budget().used(static_cast<resource>(i))) << "resource " << i;
      }
    }
  }

  void check_replies() {
    const auto before = [](const reply& a, const reply& b) { return a.request < b.request; };
    std::stable_sort(seen_.replies().begin(), seen_.replies().end(), before);
    std::stable_sort(model_.replies.begin(), model_.replies.end(), before);
    ASSERT_EQ(seen_.replies().size(), model_.replies.size());
    for (std::size_t i = 0; i < seen_.replies().size(); ++i) {
      const reply& one = seen_.replies()[i];
      ASSERT_EQ(one.session, model_.replies[i].session);
      ASSERT_EQ(one.request, model_.replies[i].request);
      ASSERT_EQ(one.generation, model_.replies[i].generation);
      ASSERT_EQ(one.code, model_.replies[i].code);
      ASSERT_EQ(asked_.erase({one.session, one.request}), 1U) << "answered twice";
      granted_ += one.generation != 0 ? 1 : 0;
    }
    seen_.replies().clear();
    model_.replies.clear();
  }

  bool published_now(gpushm::generation generation) {
    const auto at = model_.segments.find(generation);
    return at != model_.segments.end() && at->second.published;
  }

  std::mt19937 random_;
  bool restarts_often_;
  std::size_t restarts_ = 0;
  std::unique_ptr<domain> domain_ = std::make_unique<domain>("default", broker_uid, bounds);
  recorder seen_{*domain_};
  model model_;
  std::set<std::pair<session_id, std::uint64_t>> asked_;
  std::set<gpushm::generation> was_published_;
  std::size_t unheld_seen_ = 0;
  std::size_t fence_waits_seen_ = 0;
  std::uint64_t request_ = 0;
  gpushm::generation generation_ = 0;
  std::size_t granted_ = 0;
  std::size_t lost_ = 0;
  int now_ms_ = 0;
};

/// Takes and checks steps until one fails, and disconnects all sessions if none does.
void run(random_world& world) {
  for (int i = 0; i < 1'200; ++i) {
    SCOPED_TRACE("step " + std::to_string(i));
    world.step();
    world.check();
    if (testing::Test::HasFailure()) {
      return;
    }
  }
  world.disconnect_all();
}

TEST(domain_and_model, agree_after_random_steps) {
  std::size_t created = 0;
  std::size_t granted = 0;
  std::size_t lost = 0;
  std::size_t confirmed = 0;
  std::size_t died = 0;
  std::size_t cancelled = 0;
  std::size_t lost_connections = 0;
  std::size_t resumed = 0;
  std::size_t moved = 0;
  std::size_t fetched = 0;
  std::size_t unheld = 0;
  std::size_t fence_waits = 0;
  const auto worlds =
      gpushm_testing::number_from_environment<std::uint32_t>("GPUSHM_RANDOM_WORLDS", 12);
  for (std::uint32_t seed = 1; seed <= worlds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_world world(seed);
    run(world);
    if (testing::Test::HasFailure()) {
      return;
    }
    created += world.created();
    granted += world.granted();
    lost += world.lost();
    confirmed += world.confirmed();
    died += world.died();
    cancelled += world.cancelled();
    lost_connections += world.ended_without_goodbye();
    resumed += world.resumed();
    moved += world.moved();
    fetched += world.fetched();
    unheld += world.unheld();
    fence_waits += world.fence_waits();
  }
  // Check that the random steps covered enough.
  EXPECT_GT(created, 120U);
  EXPECT_GT(granted, 300U);
  EXPECT_GT(lost, 120U);
  EXPECT_GT(confirmed, 90U);
  EXPECT_GT(died, 4U);
  EXPECT_GT(cancelled, 30U);
  EXPECT_GT(lost_connections, 30U);
  EXPECT_GT(resumed, 3U);
  EXPECT_GT(moved, 3U);
  EXPECT_GT(fetched, 30U);
  EXPECT_GT(unheld, 30U);
  EXPECT_GT(fence_waits, 30U);
  RecordProperty("made", std::to_string(created));
  RecordProperty("granted", std::to_string(granted));
  RecordProperty("lost", std::to_string(lost));
  RecordProperty("confirmed", std::to_string(confirmed));
  RecordProperty("died", std::to_string(died));
}

TEST(domain_and_model, agree_when_the_domain_is_replaced_at_random_steps) {
  std::size_t restarts = 0;
  const auto worlds =
      gpushm_testing::number_from_environment<std::uint32_t>("GPUSHM_REPLACED_WORLDS", 3);
  for (std::uint32_t seed = 101; seed < 101 + worlds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_world world(seed, true);
    run(world);
    if (testing::Test::HasFailure()) {
      return;
    }
    restarts += world.restarts();
  }
  EXPECT_GT(restarts, 600U);
}

}  // namespace
}  // namespace gpushm::core
