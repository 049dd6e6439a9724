// SPDX-License-Identifier: Apache-2.0
// Signals and waits in CUDA graphs of two processes: on the fake driver everywhere, and on real
// GPUs if there are any. Every byte of every launch is compared.
#include <cstdint>
#include <string>

#include "tests/support/process/environment.hpp"
#include "tests/timelines/timeline_world.hpp"

namespace {

using gpushm_tests::agent;
using gpushm_tests::gpus;
using gpushm_tests::name_of;
using gpushm_tests::test_on_gpus;

class graphs : public test_on_gpus {
 protected:
  /// Two processes, the second one PID 1 of its own PID namespace where that is possible.
  void start() {
    const bool isolated = ::geteuid() == 0;
    producer_.emplace(world_->start());
    consumer_.emplace(world_->start(isolated));
    for (agent* each : {&*producer_, &*consumer_}) {
      each->request("device 0");
      each->request(each == &*producer_ ? "create p" : "create c");
    }
    producer_->request("open c 20000");
    consumer_->request("open p 20000");
    producer_->request("segment s " + std::to_string(segment_bytes) + " 0");
    consumer_->request("open_segment s 0");
  }
  /// `make test-long` sets ten times as many.
  [[nodiscard]] static int launches() {
    return gpushm_testing::number_from_environment("GPUSHM_GRAPH_LAUNCHES", 1'000);
  }
  void order_launches(const std::string& mode, int launches) {
    start();
    consumer_->send("graph_rounds consume " + mode + " c p s " + std::to_string(launches));
    producer_->send("graph_rounds produce " + mode + " p c s " + std::to_string(launches));
    EXPECT_EQ(consumer_->reply(), "ok " + std::to_string(launches));
    EXPECT_EQ(producer_->reply(), "ok " + std::to_string(launches));
  }
  /// The consumer has many launches on its stream, and sees that those after the death are not
  /// good.
  void kill_the_producer(const std::string& mode, int after) {
    start();
    consumer_->send("graph_rounds consume " + mode + " c p s " + std::to_string(10 * after));
    EXPECT_EQ(
        producer_->request("graph_rounds produce " + mode + " p c s " + std::to_string(after)),
        std::to_string(after));
    producer_->kill_and_wait();
    EXPECT_THAT(consumer_->reply(), testing::StartsWith("error peer_died"));
    // Behind the end the stream has copied what was there: the last round, again and again.
    EXPECT_EQ(consumer_->request("good_rounds"), std::to_string(after));
  }

  static constexpr int segment_bytes = 1'024;
  std::optional<agent> producer_;
  std::optional<agent> consumer_;
};

TEST_P(graphs, order_launches_by_values) {
  order_launches("values", launches());
}

TEST_P(graphs, order_launches_by_flags) {
  order_launches("flags", launches());
}

TEST_P(graphs, end_by_values_when_the_other_process_dies) {
  kill_the_producer("values", 300);
}

TEST_P(graphs, end_by_flags_when_the_other_process_dies) {
  kill_the_producer("flags", 300);
}

TEST_P(graphs, refuse_what_is_not_possible) {
  start();
  EXPECT_EQ(producer_->code("record c 1"), "invalid_argument") << "not captured";
  producer_->request("capture");
  EXPECT_EQ(producer_->code("record c 1"), "invalid_argument") << "not prepared";
  producer_->request("end_capture");  // the capture goes on after such an error
  // The same operations, without a capture.
  consumer_->request("batch 0 set_flags c 2 wait_flags p 1 set_flags c 1");
  EXPECT_EQ(consumer_->code("batch 0 signal c 5"), "invalid_argument") << "it has flags";
  EXPECT_EQ(consumer_->code("batch 0 wait_flags p 0"), "invalid_argument");
  producer_->request("batch 0 wait_flags c 2 set_flags p 1 wait_flags c 1");
  producer_->request("sync 0");
  consumer_->request("sync 0");
  consumer_->request("check p");
}

INSTANTIATE_TEST_SUITE_P(all, graphs, testing::Values(gpus::fake, gpus::real), name_of);

}  // namespace
