// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/segments/registered_names.hpp"
#include "core/domain.hpp"
#include "core/saved_state.hpp"

namespace gpushm::core::testing_world {

/// With these, every `recorder` checks that the domain names all changes.
inline constexpr limits naming_limits{.names_changes = true};

struct reply {
  session_id session = 0;
  std::uint64_t request = 0;
  std::uint32_t index = 0;
  gpushm::generation generation = 0;  ///< 0: failed
  errc code{};
  std::string text;
  alias_word alias = {};
};

struct notice {
  session_id session = 0;
  std::uint64_t subscription = 0;
  event_kind kind = event_kind::resync;
  std::string name;
  gpushm::generation generation = 0;
  std::uint32_t leases = 0;
  std::int32_t peer_pid = 0;
};

struct slot_change {
  gpushm::generation generation = 0;
  std::optional<segment_state> state;
};

/// Records a domain's effects whenever a test reads them, and the resulting state of its slots.
class recorder final {
 public:
  struct loss {
    session_id holder = 0;
    gpushm::generation generation = 0;
    event_kind kind = event_kind::removed;
    friend bool operator==(const loss&, const loss&) = default;
  };

  explicit recorder(domain& domain) : of_(&domain) {}
  /// Goes on with a domain that continues the first one.
  void follow(domain& domain) { of_ = &domain; }

  std::vector<question>& questions() const { return settle().questions_; }
  std::vector<loss>& losses() const { return settle().losses_; }
  std::map<std::uint32_t, slot_change>& slots() const { return settle().slots_; }
  std::vector<gpushm::generation>& freed_generations() const { return settle().freed_; }
  std::vector<notice>& notices() const { return settle().notices_; }
  std::vector<reply>& replies() const { return settle().replies_; }
  /// Session, request and index of opens reported as waiting and not answered yet.
  std::set<std::tuple<session_id, std::uint64_t, std::uint32_t>>& waits() const {
    return settle().waits_;
  }

  /// What a broker's journal would have.
  [[nodiscard]] const saved_state& recorded() const { return settle().recorded_; }

  const recorder& settle() const {
    effects& wanted = of_->pending();
    for (const slot_word& word : wanted.slots) {
      const auto at = slots_.find(word.slot);
      // A slot in use belongs to one generation until it is free, except that of an alias.
      EXPECT_TRUE(at == slots_.end() || at->second.generation == word.generation ||
                  !generations_of_segments_.contains(at->second.generation));
      if (of_->find_segment(word.generation) != nullptr) {
        generations_of_segments_.insert(word.generation);
      }
      if (word.state) {
        slots_[word.slot] = {word.generation, word.state};
      } else {
        EXPECT_EQ(slots_.erase(word.slot), 1U);
        freed_.push_back(word.generation);
      }
    }
    for (const open_waits& each : wanted.waits) {
      EXPECT_TRUE(waits_.insert({each.session, each.request, each.index}).second)
          << "reported twice";
    }
    for (const open_reply& each : wanted.replies) {
      EXPECT_EQ(each.late, waits_.erase({each.session, each.request, each.index}) != 0);
      EXPECT_TRUE(!each.found || (each.found->published && !each.why));
      EXPECT_TRUE(!each.why || (!each.why->cause().empty() && !each.why->next_step().empty()));
      replies_.push_back({each.session,
                          each.request,
                          each.index,
                          each.found ? each.found->generation : 0,
                          each.why ? each.why->code() : errc{},
                          each.why ? each.why->what() : "",
                          each.alias});
    }
    questions_.insert(questions_.end(), wanted.questions.begin(), wanted.questions.end());
    for (const change& each : wanted.changes) {
      if (each.holder != 0) {
        losses_.push_back({each.holder, each.of->generation, each.kind});
        continue;
      }
      domain::places places = of_->subscribers();
      std::size_t effort = std::numeric_limits<std::size_t>::max();
      of_->visit_subscribers(
          each.name(), places, effort, [&](session_id session, std::uint64_t subscription) {
            notices_.push_back({session,
                                subscription,
                                each.kind,
                                std::string(each.name()),
                                each.generation(),
                                each.leases,
                                each.peer_pid});
          });
    }
    compare_slots();
    record(wanted);
    wanted.clear();
    return *this;
  }

 private:
  /// What was shown is what the domain would show after a restart.
  void compare_slots() const {
    constexpr std::size_t few = 100;
    if (of_->segment_count() > few) {
      return;
    }
    std::size_t words = 0;
    of_->slots().for_each([&](const slot_word& each) {
      const auto at = slots_.find(each.slot);
      EXPECT_TRUE(at != slots_.end() && at->second.generation == each.generation &&
                  at->second.state == each.state)
          << "slot " << each.slot;
      ++words;
    });
    EXPECT_EQ(words, slots_.size());
  }

  /// Applies the changes that the domain names, as a broker does with its journal, and compares the
  /// result with the domain.
  void record(const effects& done) const {
    if (!of_->bounds().names_changes) {
      return;
    }
    // As server::make_recorder begins a journal.
    recorded_.records.try_emplace({record_kind::numbers},
                                  saved_numbers{.next_generation = of_->bounds().first_generation});
    EXPECT_FALSE(done.too_many_records) << "a broker would record everything";
    for (const record_name& which : done.records) {
      saved_value value = of_->saved(which);
      if (value.index() == 0) {
        recorded_.records.erase(which);
      } else {
        recorded_.records[which] = std::move(value);
      }
    }
    // Not all comparisons: they would take minutes.
    constexpr std::size_t few = 100;
    ++comparisons_;
    if (of_->segment_count() + of_->lease_count() + of_->waiting_count() < few &&
        (comparisons_ < few || comparisons_ % few == 0)) {
      const saved_state state = of_->save();
      for (const auto& [which, value] : state.records) {
        const auto at = recorded_.records.find(which);
        EXPECT_TRUE(at != recorded_.records.end() && at->second == value)
            << "a change was not named: kind " << static_cast<int>(which.kind) << ", "
            << which.first << ", " << which.second;
        if (const auto* const saved = std::get_if<saved_segment>(&value)) {
          const slot_change& word = slots_.at(saved->slot);
          EXPECT_EQ(word.generation, which.first);
          EXPECT_EQ(word.state, of_->segment_of(which.first).state());
        }
      }
      EXPECT_EQ(recorded_.records.size(), state.records.size());
    }
  }

  domain* of_;
  mutable std::vector<question> questions_;
  mutable std::vector<loss> losses_;
  mutable std::map<std::uint32_t, slot_change> slots_;
  mutable std::vector<gpushm::generation> freed_;
  mutable std::vector<notice> notices_;
  mutable std::vector<reply> replies_;
  mutable saved_state recorded_;
  mutable std::size_t comparisons_ = 0;
  mutable std::set<gpushm::generation> generations_of_segments_;
  mutable std::set<std::tuple<session_id, std::uint64_t, std::uint32_t>> waits_;
};

inline reservation host_segment(std::string name,
                                std::uint64_t bytes = 4096,
                                lifetime kept = lifetime::leased,
                                std::uint32_t chunks = 1) {
  reservation wanted;
  wanted.name = std::move(name);
  wanted.size_bytes = bytes;
  wanted.allocated_bytes = bytes;
  wanted.chunk_count = chunks;
  wanted.lifetime = kept;
  return wanted;
}

/// A registered descriptor.
inline reservation registration(std::uint32_t number) {
  reservation wanted = host_segment(base::registered_name(number), 1);
  wanted.backend = backend::descriptor;
  return wanted;
}

constexpr time_point at_ms(int ms) {
  return time_point{} + std::chrono::milliseconds(ms);
}

/// Returns the text of the error that `call` throws; stores its code in `code`.
template <typename Call>
std::string error_of(Call&& call, errc* code = nullptr) {
  try {
    call();
  } catch (const error& why) {
    EXPECT_FALSE(why.cause().empty());
    EXPECT_FALSE(why.next_step().empty());
    if (code != nullptr) {
      *code = why.code();
    }
    return why.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace gpushm::core::testing_world
