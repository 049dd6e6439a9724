// SPDX-License-Identifier: Apache-2.0
// What streams store in words: in order, never after the end of a timeline, and not at all if a
// call fails.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "base/files/unique_fd.hpp"
#include "protocol/wire/ticket.hpp"
#include "tests/support/process/hex.hpp"
#include "tests/timelines/timeline_world.hpp"

namespace {

using gpushm_tests::agent;
using gpushm_tests::gpus;
using gpushm_tests::name_of;
using gpushm_tests::test_on_gpus;
using gpushm_tests::timeline_world;

class stream_stores : public test_on_gpus {
 protected:
  /// `a` has the timeline `t`, which `b` has open, and streams 0 and 1; stream 0 waits for `gate`,
  /// which `a` signals, too.
  void SetUp() override {
    test_on_gpus::SetUp();
    if (IsSkipped()) {
      return;
    }
    a_.emplace(world_->start(false, "8"));
    a_->request("device 0");
    a_->request("streams 1");
    a_->request("create t");
    a_->request("create gate");
    b_.emplace(world_->start());
    b_->request("open t 20000");
  }
  void wait_at_gate() { a_->request("stream_wait 0 gate 1 0"); }
  void open_gate() {
    a_->request("signal gate 1");
    a_->request("sync 0");
    a_->request("sync 1");
  }

  /// The close has ended `t`, unless a loaded machine has not run the stream for a second.
  void expect_ended_or_abandoned(const std::string& wait) {
    b_->send(wait);
    EXPECT_THAT(b_->reply(), testing::AnyOf(testing::StartsWith("error peer_died"), "ok not"));
  }

  std::optional<agent> a_;
  std::optional<agent> b_;
};

TEST_P(stream_stores, of_two_streams_keep_their_order) {
  wait_at_gate();
  a_->request("stream_signal 0 t 5");
  a_->request("stream_signal 1 t 6");
  EXPECT_EQ(b_->request("wait t 6 100"), "not") << "not before 5";
  a_->request("signal t 7");
  EXPECT_EQ(b_->request("wait t 7 100"), "not") << "the CPU's neither";
  EXPECT_EQ(a_->request("value t"), "0");
  open_gate();
  EXPECT_EQ(b_->request("wait t 7 20000"), "reached");
}

TEST_P(stream_stores, of_flags_come_before_those_of_the_cpu) {
  wait_at_gate();
  a_->request("batch 0 set_flags t 1");
  a_->request("set_flags t 2");
  EXPECT_EQ(b_->request("wait_flags t 3 100"), "not");
  open_gate();
  EXPECT_EQ(b_->request("wait_flags t 2 20000"), "met");
}

TEST_P(stream_stores, of_flags_are_awaited_by_a_close) {
  wait_at_gate();
  a_->request("batch 0 set_flags t 5");
  a_->request("signal_and_close gate t");
  EXPECT_EQ(b_->request("wait_flags t 4 20000"), "met") << "its last flags";
  expect_ended_or_abandoned("wait_flags t 8 0");
}

TEST_P(stream_stores, that_do_not_come_in_time_keep_their_word) {
  wait_at_gate();
  a_->request("batch 0 set_flags t 5");
  a_->request("close t");
  EXPECT_EQ(b_->request("wait_flags t 4 0"), "not");
  b_->request("close t");
  a_->request("create_many 520");  // more than a page has words
  open_gate();
  EXPECT_EQ(a_->request("many_signaled"), "0");
}

TEST_P(stream_stores, of_graphs_keep_their_word) {
  a_->request("capture_signal t 9");
  wait_at_gate();
  a_->request("launch");
  a_->request("close t");
  EXPECT_EQ(b_->code("wait t 9 20000"), "peer_died");
  a_->request("create_many 520");
  open_gate();
  EXPECT_EQ(b_->code("wait t 9 0"), "peer_died") << "as seen before the launch has stored 9";
  b_->request("close t");
  a_->request("create_many 520");
  a_->request("launch");
  a_->request("sync 0");
  EXPECT_EQ(a_->request("many_signaled"), "0");
}

TEST_P(stream_stores, of_graphs_with_values_are_awaited_by_a_close) {
  a_->request("record_signal t 1");
  a_->request("set 7");
  wait_at_gate();
  a_->request("launch");
  EXPECT_EQ(a_->code("stream_signal 1 t 8"), "invalid_argument") << "another stream's comes first";
  a_->request("signal_and_close gate t");
  EXPECT_EQ(b_->request("wait t 7 20000"), "reached");
  expect_ended_or_abandoned("wait t 8 0");
}

TEST_P(stream_stores, of_graphs_are_not_set_after_a_close) {
  a_->request("record_signal t 1");
  a_->request("set 1");
  a_->request("launch");
  a_->request("sync 0");
  a_->request("close t");
  EXPECT_EQ(a_->code("set 2"), "invalid_argument");
  a_->request("launch");  // 1 again, which nobody reads
  a_->request("sync 0");
}

/// A call that is refused has counted no wait, however often it is made.
TEST_P(stream_stores, that_are_refused_count_no_waits) {
  a_->request("streams 8");
  a_->request("signal t 10");
  for (int stream = 0; stream != 10; ++stream) {
    EXPECT_EQ(a_->code("batch " + std::to_string(stream) + " wait gate 1 signal t 3"),
              "invalid_argument");
  }
  EXPECT_EQ(a_->request("waiting"), "0 4 8");
  a_->request("check gate");
  wait_at_gate();
  EXPECT_EQ(a_->request("waiting"), "1 4 8");
  open_gate();
  a_->request("check gate");
}

INSTANTIATE_TEST_SUITE_P(all, stream_stores, testing::Values(gpus::fake, gpus::real), name_of);

/// Each call of the driver on a stream fails once: then nothing has changed.
class failing_stream_calls : public testing::Test {
 protected:
  /// An agent with `t`, `gate` and `other`, in which the first call of this function fails.
  [[nodiscard]] agent start(const std::string& function) const {
    agent started = world_.start_alone(false, "8", function + ":1=999");
    started.request("connect " + world_.socket_path());
    started.request("device 0");
    started.request("streams 1");
    for (const char* const name : {"t", "gate", "other"}) {
      started.request(std::string("create ") + name);
    }
    return started;
  }

  timeline_world world_{true};
};

TEST_F(failing_stream_calls, of_a_wait_count_nothing) {
  for (const char* const function : {"cuStreamWaitValue64_v2", "cuStreamGetId"}) {
    agent a = start(function);
    EXPECT_EQ(a.code("stream_wait 0 t 1 0"), "driver_error") << function;
    EXPECT_EQ(a.request("waiting"), "0 4 8");
    a.request("check t");
    a.request("stream_wait 0 t 1 0");
    EXPECT_EQ(a.request("waiting"), "1 4 8");
    EXPECT_EQ(a.code("check t"), "invalid_argument") << "not reached yet";
    a.request("signal t 1");
    a.request("sync 0");
    a.request("check t");
    EXPECT_EQ(a.request("waiting"), "0 4 8");
  }
}

TEST_F(failing_stream_calls, of_a_signal_store_nothing) {
  for (const char* const function : {"cuStreamWriteValue64_v2", "cuStreamGetId"}) {
    agent a = start(function);
    EXPECT_EQ(a.code("stream_signal 0 t 1"), "driver_error") << function;
    a.request("sync 0");
    EXPECT_EQ(a.request("value t"), "0");
    a.request("stream_signal 0 t 1");
    a.request("sync 0");
    EXPECT_EQ(a.request("value t"), "1");
    a.request("signal t 2");
  }
}

TEST_F(failing_stream_calls, of_a_batch_do_nothing) {
  agent a = start("cuStreamBatchMemOp_v2");
  const std::string batch = "batch 0 wait gate 1 signal t 1 set_flags other 2";
  EXPECT_EQ(a.code(batch), "driver_error");
  EXPECT_EQ(a.request("waiting"), "0 4 8");
  a.request("check gate");
  a.request(batch);
  EXPECT_EQ(a.request("waiting"), "1 4 8");
  a.request("signal gate 1");
  a.request("sync 0");
  a.request("check gate");
  EXPECT_EQ(a.request("value t"), "1");
  EXPECT_EQ(a.request("wait_flags other 2 0"), "met");
  EXPECT_EQ(a.request("waiting"), "0 4 8");
}

TEST_F(failing_stream_calls, of_the_order_of_two_streams_keep_it) {
  agent a = start("cuStreamWaitEvent");
  a.request("stream_wait 0 gate 1 0");
  a.request("stream_signal 0 t 1");
  EXPECT_EQ(a.code("stream_signal 1 t 2"), "driver_error");
  a.request("sync 1");
  EXPECT_EQ(a.request("value t"), "0");
  a.request("stream_signal 1 t 2");
  a.request("signal gate 1");
  a.request("sync 0");
  a.request("sync 1");
  EXPECT_EQ(a.request("value t"), "2");
}

/// The signal was enqueued before its event: it counts, and other streams are not let past it.
TEST_F(failing_stream_calls, of_an_event_after_a_store_keep_the_order) {
  for (const char* const function : {"cuEventCreate", "cuEventRecord"}) {
    agent a = start(function);
    a.request("stream_wait 0 gate 1 0");
    a.request("stream_signal 0 t 1");
    EXPECT_EQ(a.code("stream_signal 1 t 2"), "invalid_argument") << function;
    a.request("stream_signal 0 t 3");
    a.request("stream_signal 1 t 4");
    a.request("signal gate 1");
    a.request("sync 0");
    a.request("sync 1");
    EXPECT_EQ(a.request("value t"), "4");
  }
}

/// A word without a broker: its process's page can be written by others.
class words_of_another : public testing::Test {
 protected:
  /// Stores `bytes` at `offset` of the word of the ticket, from the outside.
  template <typename Value>
  static void store(agent& owner, const gpushm::wire::word_reference& word, Value value, int at) {
    const std::string path = "/proc/" + owner.request("pid") + "/fd/" + std::to_string(word.file);
    const gpushm::base::unique_fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(file) << path;
    ASSERT_EQ(::pwrite(file.get(),
                       &value,
                       sizeof value,
                       static_cast<off_t>(word.word * sizeof(std::uint64_t)) + at),
              ssize_t{sizeof value});
  }

  timeline_world world_{true};
};

/// A broker ends the words of a process that was stopped for long.
TEST_F(words_of_another, that_have_ended_are_not_signaled) {
  agent a = world_.start_alone();
  a.request("device 0");
  a.request("create_local t");
  const std::string ticket = a.request("ticket t");
  const auto described = gpushm::wire::decode_ticket(gpushm_testing::bytes_of_hex(ticket));
  ASSERT_TRUE(described.word);
  agent b = world_.start_alone();
  b.request("import t " + ticket);
  constexpr std::uint8_t ended = 0x7F;  // the first byte, as a broker does
  store(a, *described.word, ended, 7);
  EXPECT_EQ(a.code("stream_signal 0 t 5"), "peer_died");
  EXPECT_EQ(a.code("batch 0 signal t 5"), "peer_died");
  EXPECT_EQ(a.code("signal t 5"), "peer_died");
  EXPECT_EQ(b.code("wait t 5 0"), "peer_died");
  // A store of a stream that was enqueued before.
  store(a, *described.word, std::uint64_t{5}, 0);
  EXPECT_EQ(b.code("wait t 5 0"), "peer_died") << "as it was seen";
  EXPECT_EQ(b.request("value t"), "0");
  EXPECT_EQ(a.code("stream_signal 0 t 6"), "peer_died");
}

}  // namespace
