// SPDX-License-Identifier: Apache-2.0
// What a domain keeps is charged: as much as its heap has grown, the same after a restart, and
// nothing once all has ended.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/core/counting_new.hpp"
#include "tests/core/world.hpp"
#include "tests/support/process/environment.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;
using gpushm_testing::heap_bytes_in_use;

constexpr std::uint32_t broker_uid = 42;
constexpr std::size_t names = 3'000;
/// Of the domain's own tables and effects, which have capacity for one turn.
constexpr std::size_t own_bytes = 2U << 20U;

limits all_limits() {
  limits bounds;
  bounds.max_segments = 4'000;
  bounds.max_descriptors = 20'000;
  bounds.names_changes = true;
  return bounds;
}

/// Many members that do what members do, in random order, with hundreds of objects each.
class crowd {
 public:
  explicit crowd(std::uint32_t seed) : random_(seed) {}

  [[nodiscard]] domain& at() noexcept { return *domain_; }
  [[nodiscard]] std::size_t heap_of_domain() const {
    const std::size_t now = heap_bytes_in_use();
    return now > base_ ? now - base_ : 0;
  }

  void step() {
    session_id& session = sessions_.at(pick(sessions_.size()));
    try {
      if (session == 0) {
        connect(session);
      } else {
        act(session);
      }
    } catch (const error&) {  // NOLINT(bugprone-empty-catch): a limit; it has changed nothing
    }
    settle();
  }

  /// Another domain from the records of this one, as after a restart of the broker.
  void restart() {
    finish_work();
    budget::amounts before{};
    for (std::size_t i = 0; i < resource_count; ++i) {
      before.at(i) = domain_->budget().used(static_cast<resource>(i));
    }
    saved_state saved = domain_->save();
    auto next = std::make_unique<domain>("default", broker_uid, all_limits(), nullptr, saved);
    for (std::size_t i = 0; i < resource_count; ++i) {
      EXPECT_EQ(next->budget().used(static_cast<resource>(i)), before.at(i)) << "resource " << i;
    }
    domain_ = std::move(next);
  }

  void end_all() {
    for (const session_id session : sessions_) {
      if (session != 0) {
        domain_->disconnect(session, true);
        settle();
      }
    }
    finish_work();
    const session_id manager = ++last_session_;
    domain_->connect(manager, {1, broker_uid, true});
    std::vector<std::string> left;
    domain_->list(manager, "", "", [&](const segment& each) {
      left.push_back(each.name);
      return true;
    });
    for (const std::string& name : left) {
      domain_->remove(manager, name);
      settle();
    }
    domain_->disconnect(manager, true);
    finish_work();
  }

 private:
  [[nodiscard]] std::size_t pick(std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_);
  }
  /// The broker's part: it carries out the effects. Members with a question answer it or not.
  void settle() {
    const std::vector<question> questions = domain_->pending().questions;
    domain_->pending().clear();
    for (const question& each : questions) {
      if (pick(3) != 0) {
        domain_->confirmed(each.exporter, each.confirmation, verdict::unchanged);
        domain_->pending().clear();
      }
    }
  }
  void finish_work() {
    while (domain_->work()) {
      domain_->pending().clear();
    }
    domain_->pending().clear();
  }

  /// Numbers of sessions do not come again.
  void connect(session_id& session) {
    const session_id next = ++last_session_;
    // Several uids, and processes that are not vouched for.
    const auto uid = static_cast<std::uint32_t>(1'000 + next % 5);
    domain_->connect(next, {static_cast<std::int32_t>(100 + next), uid, uid != 1'004});
    session = next;
  }

  void act(session_id& session) {
    const std::string name =
        pick(8) == 0 ? base::registered_name(static_cast<std::uint32_t>(1 + pick(names)))
                     : "models/some-model/layer-" + std::to_string(pick(names));
    switch (pick(16)) {
      case 0:
        if (pick(20) == 0) {
          domain_->disconnect(session, pick(2) == 0);
          session = 0;
        }
        break;
      case 1:
      case 2:
      case 3:
      case 4: {
        auto wanted = host_segment(name,
                                   4096 * (1 + pick(4)),
                                   pick(2) == 0 ? lifetime::leased : lifetime::persistent,
                                   static_cast<std::uint32_t>(1 + pick(3)));
        const bool is_bound = pick(6) == 0;
        if (is_bound) {
          wanted.backend = backend::cuda_ipc;
          wanted.lifetime = lifetime::leased;
          wanted.device = {device_kind::gpu, "GPU-0", "0000:00:00.0", 0};
          wanted.chunk_count = 0;
          wanted.ticket.resize(64 + pick(400));
        }
        const bool is_registered = !is_bound && pick(6) == 0;
        if (is_registered) {
          wanted = registration(static_cast<std::uint32_t>(1 + pick(names)));
        }
        const gpushm::generation made = domain_->reserve(session, wanted).generation;
        settle();
        if (!is_bound) {
          domain_->attach(session, made, 0, wanted.chunk_count);
        }
        if (pick(8) != 0) {
          const std::vector<std::byte> metadata(pick(4) == 0 ? pick(8'000) : pick(100));
          domain_->publish(session, made, metadata);
        }
        break;
      }
      case 5:
      case 6:
      case 7:
      case 8:
      case 9:
        domain_->open(session,
                      {++request_,
                       0,
                       name,
                       0,
                       pick(2) == 0 ? std::optional(at_ms(now_ms_ + static_cast<int>(pick(500))))
                                    : std::nullopt,
                       at_ms(now_ms_)});
        break;
      case 10:
        domain_->release(session, 1 + pick(domain_->bounds().max_segments), 1, pick(2) == 0);
        break;
      case 11:
        domain_->remove(session, name);
        break;
      case 12:
        domain_->cancel(session, pick(request_ + 1));
        break;
      case 13:
        domain_->subscribe(session, ++request_, "models/" + std::to_string(pick(100)));
        break;
      case 14:
        domain_->unsubscribe(session, pick(request_ + 1));
        break;
      default:
        now_ms_ += static_cast<int>(pick(40));
        domain_->at(at_ms(now_ms_)).tick();
        domain_->work();
        break;
    }
  }

  std::mt19937 random_;
  std::array<session_id, 24> sessions_{};  ///< 0: not connected
  session_id last_session_ = 0;
  std::uint64_t request_ = 0;
  int now_ms_ = 0;
  std::size_t base_ = heap_bytes_in_use();
  std::unique_ptr<domain> domain_ = std::make_unique<domain>("default", broker_uid, all_limits());
};

TEST(conservation, charges_cover_the_heap_over_random_operations) {
  const auto steps =
      gpushm_testing::number_from_environment<std::size_t>("GPUSHM_CONSERVATION_STEPS", 20'000);
  crowd members(gpushm_testing::number_from_environment<std::uint32_t>("GPUSHM_SEED", 1));
  const std::size_t each_look = std::max<std::size_t>(steps / 200, 50);
  std::size_t most_heap = 0;
  std::uint64_t most_charged = 0;
  for (std::size_t i = 1; i <= steps; ++i) {
    members.step();
    if (i % each_look == 0) {
      const std::size_t heap = members.heap_of_domain();
      const std::uint64_t charged = members.at().budget().used(resource::memory_bytes);
      ASSERT_LE(heap, charged + own_bytes) << "after " << i << " steps";
      if (charged > most_charged) {
        most_charged = charged;
        most_heap = heap;
      }
    }
    if (i % (steps / 10) == 0) {
      members.restart();
      if (HasFailure()) {
        FAIL() << "after " << i << " steps";
      }
    }
  }
  std::cout << "at most " << most_charged << " bytes charged, with a heap of " << most_heap << "\n";
  EXPECT_GT(most_charged, 1U << 20U);  // the steps have made something
  members.end_all();
  EXPECT_EQ(members.at().segment_count(), 0U);
  for (std::size_t i = 0; i < resource_count; ++i) {
    EXPECT_EQ(members.at().budget().used(static_cast<resource>(i)), 0U) << "resource " << i;
  }
  EXPECT_LE(members.heap_of_domain(), own_bytes);
}

}  // namespace
}  // namespace gpushm::core
