// SPDX-License-Identifier: Apache-2.0
// Memory that is gone with its GPU: the state of its segments, in turns, and after a restart.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/saved_state.hpp"
#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;

constexpr std::uint32_t broker_uid = 42;
const peer alice{101, 1000, true};
const peer bob{201, 2000, true};
constexpr session_id creator = 1;
constexpr session_id reader = 2;
const lost_device first_gpu{"GPU-0", "0000:18:00.0"};
const std::string lost_at_a_stat =
    "the GPU that had this memory was lost, in domain default (create it again, on a GPU that "
    "works)";
const std::string lost =
    "the GPU that had this memory was lost, in domain default (create it again, on a GPU that "
    "works; an open with a timeout waits for the name)";

reservation on(const device_id& device, std::string name, lifetime kept = lifetime::leased) {
  reservation wanted = host_segment(std::move(name), 4096, kept);
  wanted.backend = backend::cuda_vmm;
  wanted.device = device;
  return wanted;
}

const device_id gpu_0{device_kind::gpu, "GPU-0", "0000:18:00.0", 0};
const device_id gpu_1{device_kind::gpu, "GPU-1", "0000:3b:00.0", 1};
const device_id mig_of_0{device_kind::mig, "MIG-00", "0000:18:00.0", 0};
/// As a GPU that was put in the place of another one.
const device_id in_its_place{device_kind::gpu, "GPU-2", "0000:18:00.0", 0};

class lost_devices : public testing::Test {
 protected:
  explicit lost_devices(const limits& bounds = naming_limits)
      : bounds_(bounds), domain_(std::make_unique<domain>("default", broker_uid, bounds)) {
    domain_->connect(creator, alice);
    domain_->connect(reader, bob);
  }

  gpushm::generation make(const reservation& reservation) {
    const auto generation = domain_->reserve(creator, reservation).generation;
    domain_->attach(creator, generation, 0, 1);
    domain_->publish(creator, generation, {});
    return generation;
  }
  void open(const std::string& name, std::optional<time_point> deadline = std::nullopt) {
    domain_->open(reader, {++request_, 0, name, 0, deadline});
  }
  void work_to_the_end() {
    while (domain_->has_work()) {
      domain_->work();
      seen_.settle();
    }
  }
  void lose(const lost_device& device = first_gpu) {
    domain_->lose_device(device);
    work_to_the_end();
  }
  [[nodiscard]] std::optional<segment_state> state_of(gpushm::generation generation) const {
    for (const auto& [slot, word] : seen_.slots()) {
      if (word.generation == generation) {
        return word.state;
      }
    }
    return std::nullopt;
  }
  /// With what the journal has.
  void restart() {
    saved_state from = seen_.recorded();
    domain_ = std::make_unique<domain>("default", broker_uid, bounds_, nullptr, from);
    seen_.follow(*domain_);
  }
  [[nodiscard]] const reply& last() const { return seen_.replies().back(); }

  limits bounds_;
  std::unique_ptr<domain> domain_;
  recorder seen_{*domain_};
  std::uint64_t request_ = 0;
};

TEST_F(lost_devices, end_what_exists_on_them_and_nothing_else) {
  const auto opened = make(on(gpu_0, "opened"));
  const auto kept = make(on(gpu_0, "kept", lifetime::persistent));
  const auto instance = make(on(mig_of_0, "instance"));
  const auto unpublished = domain_->reserve(creator, on(gpu_0, "unpublished")).generation;
  const auto removed = make(on(gpu_0, "removed"));
  const auto other = make(on(gpu_1, "other"));
  const auto in_place = make(on(in_its_place, "in place"));
  const auto host = make(host_segment("host"));
  open("opened");
  domain_->release(creator, kept, 1);
  domain_->remove(creator, "removed");
  seen_.losses().clear();
  domain_->subscribe(reader, 9, "");
  domain_->lose_device(first_gpu);
  EXPECT_TRUE(domain_->is_losing_devices());
  EXPECT_TRUE(domain_->has_work());
  work_to_the_end();
  EXPECT_FALSE(domain_->is_losing_devices());

  for (const auto each : {opened, instance, unpublished, removed}) {
    EXPECT_EQ(state_of(each), segment_state::device_lost) << each;
  }
  EXPECT_EQ(state_of(kept), std::nullopt) << "not leased: free";
  for (const auto each : {other, in_place, host}) {
    EXPECT_EQ(state_of(each), segment_state::live) << each;
  }
  // Caches drop it, and subscribers see what was published.
  const auto& losses = seen_.losses();
  EXPECT_EQ(std::count(losses.begin(), losses.end(), recorder::loss{reader, opened}), 1);
  EXPECT_EQ(std::count(losses.begin(), losses.end(), recorder::loss{creator, opened}), 1);
  std::set<std::string> ended;
  for (const notice& each : seen_.notices()) {
    EXPECT_EQ(each.kind, event_kind::removed);
    EXPECT_TRUE(ended.insert(each.name).second) << each.name;
  }
  EXPECT_EQ(ended, (std::set<std::string>{"opened", "kept", "instance"}));

  // Leases stay until they are released; then the memory is freed.
  EXPECT_EQ(domain_->held(reader, opened).generation, opened);
  domain_->release(reader, opened, 1);
  for (const auto each : {opened, instance, unpublished, removed}) {
    domain_->release(creator, each, 1);
    EXPECT_EQ(state_of(each), std::nullopt) << each;
  }
  EXPECT_EQ(domain_->segment_count(), 3U);
  EXPECT_EQ(domain_->descriptors(),
            3U + domain_->session_count() * bounds_.descriptors_per_session);
}

TEST_F(lost_devices, names_are_free_and_say_why) {
  make(on(gpu_0, "kv"));
  open("waits", at_ms(1'000));
  const auto unpublished = domain_->reserve(creator, on(gpu_0, "waits")).generation;
  domain_->attach(creator, unpublished, 0, 1);
  lose();
  open("kv");
  EXPECT_EQ(last().text, lost);
  EXPECT_EQ(last().code, errc::gone_or_replaced);
  errc code{};
  EXPECT_EQ(error_of([&] { static_cast<void>(domain_->stat(reader, "kv")); }, &code),
            lost_at_a_stat);
  EXPECT_EQ(error_of([&] { domain_->publish(creator, unpublished, {}); }, &code),
            "the GPU that had its memory was lost before it was published (create it again)");
  EXPECT_EQ(code, errc::segment_removed);
  restart();
  open("kv");
  EXPECT_EQ(last().text, lost) << "after a restart, too";

  // On the GPU after its reset: that is another segment.
  const auto again = make(on(gpu_0, "kv"));
  open("kv");
  EXPECT_EQ(last().generation, again);
  const auto waited_for = make(on(gpu_0, "waits"));
  EXPECT_EQ(last().generation, waited_for);
  EXPECT_EQ(state_of(again), segment_state::live);
}

/// The cause of the loss is in the error of each open, also after a restart and for a MIG instance.
TEST_F(lost_devices, opens_report_why_the_device_was_lost) {
  const auto why = [](const std::string& cause) {
    return "the GPU that had this memory was lost, in domain default: " + cause +
           " (create it again, on a GPU that works; an open with a timeout waits for the name)";
  };
  make(on(gpu_0, "kv", lifetime::persistent));
  make(on(mig_of_0, "instance"));
  make(on(gpu_1, "other"));
  lose({"GPU-0", "0000:18:00.0", {base::loss_cause::xid, 95}});
  lose({"GPU-0", "0000:18:00.0", {base::loss_cause::unreachable}});
  lose({"GPU-1", "", {base::loss_cause::reset}});
  for (int round = 0; round < 2; ++round) {
    for (const char* const name : {"kv", "instance"}) {
      open(name);
      EXPECT_EQ(last().text, why("Xid 95 (uncontained memory error)")) << name << round;
      EXPECT_EQ(last().code, errc::gone_or_replaced);
    }
    open("other");
    EXPECT_EQ(last().text, why("it was reset")) << round;
    restart();
  }
  EXPECT_EQ(seen_.losses().size(), 3U) << "one event for each lease: a second report ends nothing";
}

TEST_F(lost_devices, state_is_that_after_a_restart) {
  const auto kv = make(on(gpu_0, "kv", lifetime::persistent));
  open("kv");
  lose();
  restart();
  EXPECT_EQ(domain_->segment_of(kv).state(), segment_state::device_lost);
  bool is_shown = false;
  domain_->slots().for_each([&](const slot_word& word) {
    is_shown = is_shown || (word.generation == kv && word.state == segment_state::device_lost);
  });
  EXPECT_TRUE(is_shown);
  // The end of its creator changes nothing about it.
  domain_->disconnect(creator, false);
  work_to_the_end();
  EXPECT_EQ(state_of(kv), segment_state::device_lost);
  domain_->release(reader, kv, 1);
  EXPECT_EQ(domain_->segment_count(), 0U);
}

TEST_F(lost_devices, exporter_gone_becomes_device_lost) {
  const auto kv = make(on(gpu_0, "kv"));
  open("kv");
  domain_->disconnect(creator, false);
  EXPECT_EQ(state_of(kv), segment_state::exporter_gone);
  lose();
  EXPECT_EQ(state_of(kv), segment_state::device_lost);
  lose();  // it is reported again
  EXPECT_EQ(state_of(kv), segment_state::device_lost);
  domain_->release(reader, kv, 1);
  EXPECT_EQ(domain_->segment_count(), 0U);
}

/// Their exporter is asked meanwhile, and its memory is gone whatever it answers.
TEST_F(lost_devices, opens_that_wait_for_an_exporter_are_refused) {
  reservation wanted = on(gpu_0, "kv");
  wanted.backend = backend::cuda_ipc;
  wanted.chunk_count = 0;
  wanted.ticket = {std::byte{1}};
  const auto kv = domain_->reserve(creator, wanted).generation;
  domain_->publish(creator, kv, {});
  domain_->open(reader, {++request_, 0, "kv", 0, std::nullopt, at_ms(0)});
  const auto asked = seen_.questions();
  ASSERT_EQ(asked.size(), 1U);
  lose();
  EXPECT_EQ(state_of(kv), segment_state::device_lost);
  domain_->confirmed(creator, asked.front().confirmation, verdict::unchanged);
  EXPECT_EQ(last().text, lost);
}

TEST_F(lost_devices, wrong_reports_change_nothing) {
  const auto kv = make(on(gpu_0, "kv"));
  const auto host = make(host_segment("host"));
  errc code{};
  EXPECT_EQ(error_of(
                [&] {
                  domain_->lose_device({"", "0000:18:00.0"});
                },
                &code),
            "the lost GPU has no UUID (name it as `gpushm topo` and `nvidia-smi -L` do)");
  EXPECT_EQ(code, errc::invalid_argument);
  lose({"GPU-9", ""});
  lose({"GPU-9", "0000:18:00.0"});  // an address is that of instances only
  for (const auto each : {kv, host}) {
    EXPECT_EQ(state_of(each), segment_state::live);
  }
  for (int i = 0; i < 64; ++i) {
    domain_->lose_device({"GPU-9", ""});
  }
  EXPECT_EQ(error_of([&] { domain_->lose_device(first_gpu); }, &code),
            "64 lost GPUs wait for their turn (repeat it)");
  EXPECT_EQ(code, errc::too_many_requests);
  work_to_the_end();
  EXPECT_EQ(state_of(kv), segment_state::live);
}

/// Each turn does a bounded amount of work, and what is created between them is not affected.
TEST_F(lost_devices, many_segments_end_in_turns) {
  constexpr int count = 6'000;
  constexpr std::size_t records_each_turn = 256 * 8;
  for (int i = 0; i < count; ++i) {
    make(on(i % 2 == 0 ? gpu_0 : gpu_1, std::to_string(i), lifetime::persistent));
    seen_.settle();
  }
  domain_->lose_device(first_gpu);
  gpushm::generation newest = 0;
  int turns = 0;
  for (; domain_->has_work(); ++turns) {
    ASSERT_LT(turns, count);
    domain_->work();
    EXPECT_LE(domain_->pending().records.size(), records_each_turn);
    seen_.settle();
    newest = make(on(gpu_0, "new " + std::to_string(turns), lifetime::persistent));
    seen_.settle();
  }
  EXPECT_GE(turns, count / 2 / 256);
  int live = 0;
  for (const auto& [slot, word] : seen_.slots()) {
    live += word.state == segment_state::live ? 1 : 0;
  }
  EXPECT_EQ(live, count / 2 + turns);
  EXPECT_EQ(state_of(newest), segment_state::live);
}

}  // namespace
}  // namespace gpushm::core
