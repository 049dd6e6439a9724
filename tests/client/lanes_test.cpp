// SPDX-License-Identifier: Apache-2.0
// A client between two sockets without a common order: a model of a broker sends any valid messages
// on both, in an order that the seed determines. Every request gets its reply, and every granted
// lease is kept or released.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "client/session/connection.hpp"
#include "tests/client/scripted_broker.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm::client_detail {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::deadline_after;
using gpushm_testing::eventually;
using gpushm_testing::scaled_timeout;
using gpushm_tests::scripted_broker;

/// Answers immediately, late, or late and before its `Waiting`; sends questions and events in
/// between. The name of an open selects the result: "o…" is opened, "f…" refused.
class model {
 public:
  explicit model(unsigned seed) : random_(seed) {}

  std::vector<scripted_broker::reply> reply(const wire::message& asked) {
    std::vector<scripted_broker::reply> out;
    const std::lock_guard lock(mutex_);
    if (const auto* one = std::get_if<wire::open>(&asked.body)) {
      reply_name(asked.id, 0, one->name, out);
    } else if (const auto* many = std::get_if<wire::open_many>(&asked.body)) {
      for (std::uint32_t i = 0; i < many->names.size(); ++i) {
        reply_name(asked.id, i, many->names[i], out);
      }
    } else if (const auto* back = std::get_if<wire::release>(&asked.body)) {
      released_ += back->count;
    } else if (const auto* confirmed = std::get_if<wire::confirmed>(&asked.body)) {
      for (std::size_t i = 0; i < confirmed->questions.size(); ++i) {
        EXPECT_EQ(questions_.erase(confirmed->questions[i]), 1U) << "answered twice, or unknown";
        EXPECT_EQ(confirmed->verdicts[i],
                  confirmed->questions[i] % 2 == 0 ? wire::verdict::unchanged
                                                   : wire::verdict::not_shared);
      }
    } else if (const auto* fetch = std::get_if<wire::fetch_chunks>(&asked.body)) {
      out.push_back({{asked.id, wire::chunks{fetch->generation, fetch->first_chunk, {}}}});
    } else if (std::holds_alternative<wire::list>(asked.body)) {
      out.push_back({{asked.id, wire::listing{}}});
    }
    if (!quiet_) {
      disturb(out);
    }
    // Late replies are sent with later ones, in any order.
    while (!late_.empty() && (chance(3) || std::holds_alternative<wire::list>(asked.body))) {
      const std::size_t which = random_() % late_.size();
      const auto place = late_.begin() + static_cast<std::ptrdiff_t>(which);
      const auto at = out.begin() + static_cast<std::ptrdiff_t>(random_() % (out.size() + 1));
      out.insert(at, std::move(*place));
      late_.erase(place);
    }
    return out;
  }

  /// Only answers from now on.
  void only_reply() { quiet_ = true; }
  [[nodiscard]] std::uint64_t granted() const { return granted_; }
  [[nodiscard]] std::uint64_t released() const { return released_; }
  [[nodiscard]] std::uint64_t offered() const { return offered_; }
  [[nodiscard]] std::size_t open_questions() {
    const std::lock_guard lock(mutex_);
    return questions_.size();
  }

 private:
  bool chance(unsigned divisor) { return random_() % divisor == 0; }

  wire::body outcome(std::uint32_t index, const std::string& name) {
    if (name.starts_with('f')) {
      return wire::failure{index, errc::no_such_segment, "not there", {}};
    }
    ++granted_;
    wire::opened found;
    found.index = index;
    found.segment.name = name;
    found.segment.generation = 7;
    return found;
  }

  void reply_name(std::uint64_t id,
                  std::uint32_t index,
                  const std::string& name,
                  std::vector<scripted_broker::reply>& out) {
    wire::body result = outcome(index, name);
    if (chance(2)) {
      out.push_back({{id, std::move(result)}});
      return;
    }
    scripted_broker::reply late{{id, std::move(result)}, {}, false, true};
    if (chance(3)) {
      out.push_back(std::move(late));  // before its `Waiting`
    } else {
      late_.push_back(std::move(late));
    }
    wire::waiting word{index};
    if (chance(2)) {
      word.segment.emplace().name = name;
      word.segment->generation = 7;
      ++offered_;
    }
    out.push_back({{id, std::move(word)}});
  }

  void disturb(std::vector<scripted_broker::reply>& out) {
    if (chance(4)) {
      wire::confirm list;
      do {
        list.questions.push_back(++last_question_);
        list.generations.push_back(last_question_ % 4);
        questions_.insert(last_question_);
      } while (chance(2));
      out.push_back({{0, std::move(list)}});
    }
    if (chance(4)) {
      out.push_back({{0, wire::event{event_kind::removed, "gone", 7, 0, 0}}});
    }
    if (chance(5)) {  // a late reply without a waiter, with a lease
      ++granted_;
      wire::opened stale;
      stale.segment.generation = 9;
      out.push_back({{1'000'000, std::move(stale)}, {}, false, chance(2)});
    }
  }

  std::mutex mutex_;
  std::mt19937 random_;
  std::deque<scripted_broker::reply> late_;
  std::set<std::uint64_t> questions_;
  std::uint64_t last_question_ = 0;
  std::atomic<bool> quiet_{false};
  std::atomic<std::uint64_t> granted_{0};
  std::atomic<std::uint64_t> released_{0};
  std::atomic<std::uint64_t> offered_{0};
};

class lanes : public testing::TestWithParam<unsigned> {};

TEST_P(lanes, every_request_has_a_reply_and_every_lease_is_released) {
  model broker(GetParam());
  scripted_broker served([&](const wire::message& asked) { return broker.reply(asked); }, true);
  const auto client = connection::establish(served.socket_path(), scaled_timeout(10s));
  client->worker().reply_for(2, [] { return true; });
  client->worker().reply_for(0, [] { return true; });
  std::atomic<std::uint64_t> kept{0};
  std::atomic<std::uint64_t> offers{0};
  const auto take_offer = [&](const reply& offer) {
    EXPECT_EQ(std::get<wire::waiting>(offer.body).segment->generation, 7U);
    ++offers;
  };
  std::atomic<bool> over{false};
  // Late replies are sent with the answers to other requests.
  std::jthread keep_requesting([&] {
    while (!over) {
      static_cast<void>(client->request(wire::list{}, {"list", {}}, deadline_after(20s)));
      std::this_thread::sleep_for(200us);
    }
  });
  {
    std::vector<std::jthread> workers;
    for (unsigned thread = 0; thread < 4; ++thread) {
      workers.emplace_back([&, thread] {
        std::mt19937 random(GetParam() * 4 + thread);
        const auto check = [&](reply reply, const std::string& name) {
          const bool refused = std::holds_alternative<wire::failure>(reply.body);
          EXPECT_EQ(refused, name.starts_with('f')) << name;
          if (!refused) {
            EXPECT_EQ(std::get<wire::opened>(reply.body).segment.name, name);
            if (random() % 2 == 0) {
              reply.granted.keep();
              ++kept;
            }
          }
        };
        const auto some_name = [&] {
          return std::string(random() % 3 == 0 ? "f" : "o") + std::to_string(random());
        };
        std::deque<std::pair<std::uint32_t, std::unique_ptr<connection::ahead>>> asked;
        const auto request_ahead = [&](std::uint32_t number) {
          asked.emplace_back(
              number,
              client->request_ahead(
                  wire::fetch_chunks{thread, number}, {"open", {}}, deadline_after(20s)));
          if (random() % 4 == 0) {  // a request without a waiter
            asked.erase(asked.begin() + static_cast<std::ptrdiff_t>(random() % asked.size()));
          }
        };
        const auto take_one = [&] {
          const auto [number, pending] = std::move(asked.front());
          asked.pop_front();
          const reply got = pending->get({"open", {}}, deadline_after(20s));
          EXPECT_EQ(got.body, wire::body(wire::chunks{thread, number, {}}));
        };
        for (std::uint32_t i = 0; i < 100; ++i) {
          if (random() % 2 == 0) {
            request_ahead(i);
          }
          if (!asked.empty() && random() % 2 == 0) {
            take_one();
          }
          if (random() % 2 == 0) {
            const std::string name = some_name();
            check(client->open({name, 0, 0}, {"open", name}, deadline_after(20s), {}, take_offer),
                  name);
            continue;
          }
          wire::open_many wanted{{some_name(), some_name(), some_name()}, 0, 0};
          const auto names = wanted.names;
          std::set<std::uint32_t> seen;
          for (reply& got : client->open_many(
                   std::move(wanted), {"open", {}}, deadline_after(20s), {}, take_offer)) {
            const auto* refused = std::get_if<wire::failure>(&got.body);
            const std::uint32_t index =
                refused != nullptr ? refused->index : std::get<wire::opened>(got.body).index;
            EXPECT_TRUE(seen.insert(index).second);
            check(std::move(got), names.at(index));
          }
          EXPECT_EQ(seen.size(), names.size());
        }
      });
    }
  }
  over = true;
  keep_requesting.join();
  EXPECT_EQ(offers, broker.offered());
  broker.only_reply();
  static_cast<void>(client->request(wire::list{}, {"list", {}}, deadline_after(20s)));
  EXPECT_TRUE(eventually([&] { return broker.granted() == broker.released() + kept; }, 20s))
      << broker.granted() << " granted, " << broker.released() << " released, " << kept << " kept";
  EXPECT_TRUE(eventually([&] { return broker.open_questions() == 0; }, 20s));
}
INSTANTIATE_TEST_SUITE_P(seeds, lanes, testing::Range(1U, 21U));

/// Grants every request, the first one after `late`, and counts released leases.
class late_granter {
 public:
  explicit late_granter(std::chrono::milliseconds late)
      : broker_([this, late](const wire::message& message) { return reply(message, late); }, true) {
  }

  [[nodiscard]] const std::string& socket_path() const noexcept { return broker_.socket_path(); }
  [[nodiscard]] std::uint64_t released() const { return released_; }

 private:
  std::vector<scripted_broker::reply> reply(const wire::message& message,
                                            std::chrono::milliseconds late) {
    std::vector<scripted_broker::reply> replies;
    if (const auto* back = std::get_if<wire::release>(&message.body)) {
      released_ += back->count;
      return replies;
    }
    if (!std::exchange(replied_, true)) {
      std::this_thread::sleep_for(late);
    }
    wire::opened found;
    found.segment.generation = 7;
    replies.push_back({{message.id, std::move(found)}});
    return replies;
  }

  std::atomic<std::uint64_t> released_{0};
  bool replied_ = false;
  scripted_broker broker_;
};

void open_too_late(connection& client, std::chrono::milliseconds timeout) {
  EXPECT_THROW(static_cast<void>(client.open(
                   {"kv", 0, 0}, {"open", "kv"}, std::chrono::steady_clock::now() + timeout)),
               error);
}

// The reply grants a lease without a waiter, and no other request follows.
TEST(lanes_late, grant_after_deadline_is_released_immediately) {
  const late_granter served(300ms);
  const auto client = connection::establish(served.socket_path(), scaled_timeout(10s));
  open_too_late(*client, 50ms);
  EXPECT_TRUE(eventually([&] { return served.released() == 1; }, 20s));
}

// While the second waits for its reply, no other thread reads the first one's.
TEST(lanes_late, grants_of_consecutive_timeouts_are_released) {
  const late_granter served(600ms);
  const auto client = connection::establish(served.socket_path(), scaled_timeout(10s));
  for (int i = 0; i < 3; ++i) {
    open_too_late(*client, 100ms);
  }
  EXPECT_TRUE(eventually([&] { return served.released() == 3; }, 20s)) << served.released();
}

// Every waiter for a late reply gets the end of the connection.
TEST(lanes_end, wakes_waiters_of_both_lanes) {
  for (const bool sends_waiting : {true, false}) {
    std::atomic<bool> asked{false};
    auto served = std::make_unique<scripted_broker>([&](const wire::message& message) {
      asked = true;
      std::vector<scripted_broker::reply> replies;
      if (sends_waiting) {
        replies.push_back({{message.id, wire::waiting{0}}});
      }
      return replies;
    });
    const auto client = connection::establish(served->socket_path(), scaled_timeout(10s));
    std::jthread waiting([&] {
      try {
        static_cast<void>(client->open({"kv", 0, 0}, {"open", "kv"}, deadline_after(20s)));
        ADD_FAILURE() << "answered";
      } catch (const error& why) {
        EXPECT_EQ(why.code(), errc::broker_gone);
      }
    });
    EXPECT_TRUE(eventually([&] { return asked.load(); }, 20s));
    served.reset();
  }
}

}  // namespace
}  // namespace gpushm::client_detail
