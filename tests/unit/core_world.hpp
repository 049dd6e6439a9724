// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/domain.hpp"

namespace gpushm::core::testing_world {

struct answer {
  session_id session = 0;
  std::uint64_t request = 0;
  std::uint32_t index = 0;
  gpushm::generation generation = 0;  ///< 0: failed
  errc code{};
  std::string text;
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

/// Writes down what a domain tells, and how its slots look.
class recorder final : public observer {
 public:
  void slot_changed(std::uint32_t slot,
                    gpushm::generation generation,
                    std::optional<segment_state> state) override {
    if (!recording) {
      return;
    }
    if (state) {
      const auto at = slots.find(slot);
      // A slot in use belongs to one generation until it is free.
      EXPECT_TRUE(at == slots.end() || at->second.generation == generation);
      slots[slot] = {generation, state};
    } else {
      EXPECT_EQ(slots.erase(slot), 1U);
    }
  }
  void freed(const segment& gone) override {
    if (recording) {
      freed_generations.push_back(gone.generation);
    }
  }
  void notify(session_id session, std::uint64_t subscription, const change& what) override {
    if (recording) {
      notices.push_back({session,
                         subscription,
                         what.kind,
                         std::string(what.name),
                         what.generation,
                         what.leases,
                         what.peer_pid});
    }
  }
  void opened(session_id session, const open_request& request, const segment& found) override {
    if (recording) {
      EXPECT_TRUE(found.published);
      answers.push_back({session, request.request, request.index, found.generation, {}, {}});
    }
  }
  void open_failed(session_id session, const open_request& request, const error& why) override {
    if (recording) {
      EXPECT_FALSE(why.cause().empty());
      EXPECT_FALSE(why.next_step().empty());
      answers.push_back({session, request.request, request.index, 0, why.code(), why.what()});
    }
  }

  void confirm(session_id exporter,
               std::uint64_t confirmation,
               gpushm::generation generation) override {
    if (recording) {
      questions.push_back({exporter, confirmation, generation});
    }
  }
  void lost(session_id holder, const change& what) override {
    if (recording) {
      losses.push_back({holder, what.generation});
    }
  }

  struct question {
    session_id exporter = 0;
    std::uint64_t confirmation = 0;
    gpushm::generation generation = 0;
  };
  struct loss {
    session_id holder = 0;
    gpushm::generation generation = 0;
    friend bool operator==(const loss&, const loss&) = default;
  };

  bool recording = true;
  std::vector<question> questions;
  std::vector<loss> losses;
  std::map<std::uint32_t, slot_change> slots;
  std::vector<gpushm::generation> freed_generations;
  std::vector<notice> notices;
  std::vector<answer> answers;
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

constexpr time_point at_ms(int ms) {
  return time_point{} + std::chrono::milliseconds(ms);
}

/// What the error says that `call` throws; its code goes to `code`.
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
