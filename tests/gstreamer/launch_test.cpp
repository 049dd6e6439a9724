// SPDX-License-Identifier: Apache-2.0
// gpushmsink and gpushmsrc in processes of gst-launch-1.0, with a broker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/gstreamer/gst_world.hpp"
#include "tests/support/process/child.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::exited;
using gpushm_testing::run_result;
using gpushm_testing::stream;
using std::chrono::seconds;
using ::testing::HasSubstr;

/// For everything that must happen: much longer than it takes.
constexpr seconds limit{60};

const std::string small_nv12 = "video/x-raw,format=NV12,width=320,height=240";
constexpr std::size_t small_nv12_bytes = 320 * 240 * 3 / 2;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string bytes(file ? static_cast<std::size_t>(file.tellg()) : 0, '\0');
  file.seekg(0);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

class gst_launch : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpushm_testing::find_in_path("gst-launch-1.0")) {
      GTEST_SKIP() << "gst-launch-1.0 is not installed (package gstreamer1.0-tools)";
    }
    for (const char* element : {"videotestsrc", "audiotestsrc"}) {
      if (!has_element(element)) {
        GTEST_SKIP() << element << " is not installed (package gstreamer1.0-plugins-base)";
      }
    }
    broker_.emplace(world_.serve());
  }

  [[nodiscard]] gpushm_testing::spawn_options program(std::vector<std::string> argv) const {
    gpushm_testing::spawn_options options;
    options.argv = std::move(argv);
    options.env = world_.environment();
    return options;
  }
  [[nodiscard]] bool has_element(const std::string& name) const {
    return gpushm_testing::run_program(program({"gst-inspect-1.0", "--exists", name}), limit)
        .status.success();
  }
  /// `pipeline` as in a shell, without quotes.
  [[nodiscard]] gpushm_testing::spawn_options launch(const std::string& pipeline) const {
    std::istringstream words(pipeline);
    std::vector<std::string> argv{"gst-launch-1.0"};
    argv.insert(argv.end(), std::istream_iterator<std::string>(words), {});
    return program(std::move(argv));
  }
  [[nodiscard]] child start(const std::string& pipeline) const {
    return child::start(launch(pipeline));
  }
  [[nodiscard]] run_result run(const std::string& pipeline) const {
    return gpushm_testing::run_program(launch(pipeline), limit);
  }
  /// The first error of a pipeline that must fail. gst-launch-1.0 1.22 sometimes does not exit
  /// after an error before the pipeline plays, with any elements (identity error-after=1): not
  /// waited for.
  [[nodiscard]] std::string error_of(const std::string& pipeline) const {
    return start(pipeline).wait_for_line("ERROR: from element", limit, stream::err);
  }
  void expect_end(child& child) const {
    EXPECT_EQ(child.wait_exit(limit), exited(0)) << child.output().all_output();
  }
  /// A source that prints a line for each buffer.
  [[nodiscard]] child start_watched(const std::string& options) const {
    return start("-v gpushmsrc channel=c " + options + " ! fakesink silent=false sync=false");
  }
  static void await_buffer(child& child) { child.wait_for_line("chain.*\\*\\*\\*", limit); }
  /// What `frames` write into a file, directly and through a channel.
  void expect_equal_through_channel(const std::string& frames, const std::string& sink_options) {
    ASSERT_EQ(run("-q " + frames + " ! filesink location=" + world_.path("want")).status,
              exited(0));
    auto sink =
        start("-q " + frames + " ! gpushmsink channel=c wait-for-consumers=1 " + sink_options);
    const auto source = run("-q gpushmsrc channel=c ! filesink location=" + world_.path("got"));
    EXPECT_EQ(source.status, exited(0)) << source.err;
    expect_end(sink);
    const std::string want = contents(world_.path("want"));
    EXPECT_FALSE(want.empty());
    EXPECT_TRUE(contents(world_.path("got")) == want) << "the files differ";
  }

  gst_world world_;
  std::optional<child> broker_;
};

TEST_F(gst_launch, elements_are_described_without_a_broker) {
  broker_.reset();
  for (const char* element : {"gpushmsink", "gpushmsrc"}) {
    const auto shown = gpushm_testing::run_program(program({"gst-inspect-1.0", element}), limit);
    EXPECT_EQ(shown.status, exited(0)) << shown.err;
    EXPECT_THAT(shown.out, HasSubstr("Name of the channel"));
    EXPECT_THAT(shown.err, ::testing::Not(HasSubstr("CRITICAL")));
  }
}

TEST_F(gst_launch, each_frame_arrives_unchanged) {
  expect_equal_through_channel("videotestsrc num-buffers=60 ! " + small_nv12, "");
}

TEST_F(gst_launch, rgb_and_odd_sizes_arrive_unchanged) {
  expect_equal_through_channel(
      "videotestsrc num-buffers=20 ! "
      "video/x-raw,format=RGB,width=321,height=241,framerate=30000/1001",
      "slots=2");
}

TEST_F(gst_launch, channel_of_one_slot_works) {
  expect_equal_through_channel("videotestsrc num-buffers=20 ! " + small_nv12, "slots=1");
}

TEST_F(gst_launch, frames_of_4k_arrive_unchanged) {
  expect_equal_through_channel(
      "videotestsrc num-buffers=6 ! video/x-raw,format=NV12,width=3840,height=2160,framerate=60/1",
      "");
}

TEST_F(gst_launch, audio_arrives_unchanged) {
  expect_equal_through_channel(
      "audiotestsrc num-buffers=50 ! audio/x-raw,format=S16LE,channels=2,rate=48000", "");
}

TEST_F(gst_launch, two_sources_get_each_frame) {
  const std::string frames = "videotestsrc num-buffers=60 ! " + small_nv12;
  ASSERT_EQ(run("-q " + frames + " ! filesink location=" + world_.path("want")).status, exited(0));
  auto sink = start("-q " + frames + " ! gpushmsink channel=c wait-for-consumers=2");
  auto first = start("-q gpushmsrc channel=c ! filesink location=" + world_.path("1"));
  auto second = start("-q gpushmsrc channel=c copy=true ! filesink location=" + world_.path("2"));
  for (child* each : {&sink, &first, &second}) {
    expect_end(*each);
  }
  const std::string want = contents(world_.path("want"));
  EXPECT_EQ(want.size(), 60 * small_nv12_bytes);
  EXPECT_TRUE(contents(world_.path("1")) == want);
  EXPECT_TRUE(contents(world_.path("2")) == want);
}

TEST_F(gst_launch, latest_gets_whole_frames_of_an_endless_producer) {
  auto sink = start("-q videotestsrc pattern=black ! " + small_nv12 + " ! gpushmsink channel=c");
  const auto source = run("-q gpushmsrc channel=c mode=latest num-buffers=10 ! filesink location=" +
                          world_.path("got"));
  EXPECT_EQ(source.status, exited(0)) << source.err;
  ASSERT_EQ(run("-q videotestsrc pattern=black num-buffers=10 ! " + small_nv12 +
                " ! filesink location=" + world_.path("want"))
                .status,
            exited(0));
  EXPECT_TRUE(contents(world_.path("got")) == contents(world_.path("want")));
  EXPECT_TRUE(sink.running());
}

TEST_F(gst_launch, stopped_latest_consumer_does_not_stop_the_producer) {
  auto sink = start("-q videotestsrc ! " + small_nv12 + " ! gpushmsink channel=c");
  auto latest = start_watched("mode=latest");
  await_buffer(latest);
  latest.kill(SIGSTOP);
  const auto other = run("-q gpushmsrc channel=c num-buffers=50 ! fakesink");
  EXPECT_EQ(other.status, exited(0)) << other.err;
  latest.kill(SIGCONT);
  await_buffer(latest);
}

TEST_F(gst_launch, source_fails_when_the_sink_was_killed) {
  auto sink = start("-q videotestsrc ! " + small_nv12 + " ! gpushmsink channel=c");
  auto block = start_watched("timeout=60000");
  auto latest = start_watched("mode=latest timeout=60000");
  await_buffer(block);
  await_buffer(latest);
  sink.kill(SIGKILL);
  for (child* each : {&block, &latest}) {
    EXPECT_EQ(each->wait_exit(limit), exited(1));
    EXPECT_THAT(each->text(stream::err),
                HasSubstr("receive \"c\": the producer has died, and all its complete items were "
                          "read (start the producer again, then this pipeline)"));
  }
}

TEST_F(gst_launch, sink_goes_on_when_a_source_was_killed) {
  auto sink =
      start("-q videotestsrc ! " + small_nv12 + " ! gpushmsink channel=c acquire-timeout=60000");
  auto killed = start_watched("");
  auto other = start_watched("");
  await_buffer(killed);
  await_buffer(other);
  killed.kill(SIGSTOP);  // holds items, so that the sink waits for it
  killed.kill(SIGKILL);
  for (int i = 0; i != 50; ++i) {
    await_buffer(other);
  }
  EXPECT_TRUE(sink.running());
}

TEST_F(gst_launch, source_without_a_channel_fails_in_time) {
  const auto source = error_of("-q gpushmsrc channel=other timeout=300 ! fakesink");
  EXPECT_THAT(source,
              HasSubstr("receive \"other\": there was no such channel within 300 ms (start what "
                        "publishes into it (gpushmsink), correct its name, or increase timeout)"));
}

TEST_F(gst_launch, elements_without_a_broker_fail_in_time) {
  broker_.reset();
  const auto source = error_of("-q gpushmsrc channel=c timeout=300 ! fakesink");
  EXPECT_THAT(source, HasSubstr("gpushm"));
  const auto sink =
      error_of("-q videotestsrc ! " + small_nv12 + " ! gpushmsink channel=c acquire-timeout=300");
  EXPECT_THAT(sink, HasSubstr("GstGpushmSink"));
}

TEST_F(gst_launch, failures_of_a_sink_name_cause_and_next_step) {
  const std::string frames = "-q videotestsrc num-buffers=5 ! " + small_nv12 + " ! gpushmsink ";
  const auto failure = [&](const std::string& options) { return error_of(frames + options); };
  EXPECT_THAT(failure(""),
              HasSubstr("publish: the element has no channel (set its property: gpushmsink "
                        "channel=NAME)"));
  EXPECT_THAT(failure("channel=c slot-bytes=1000"),
              HasSubstr("publish \"c\": a buffer of 115200 bytes, and slots of 1000 bytes (set "
                        "slot-bytes to the size of the largest buffer)"));
  EXPECT_THAT(failure("channel=c wait-for-consumers=1 acquire-timeout=200"),
              HasSubstr("publish \"c\": 0 of 1 consumer have joined within 200 ms (start more of "
                        "them, or increase acquire-timeout)"));
}

TEST_F(gst_launch, caps_that_do_not_fit_are_refused) {
  if (!has_element("theoraenc")) {
    GTEST_SKIP() << "theoraenc is not installed";
  }
  const auto sink = error_of("-q videotestsrc num-buffers=5 ! theoraenc ! gpushmsink channel=c");
  EXPECT_THAT(sink,
              HasSubstr("publish \"c\": the caps do not fit into the 200 bytes that an item has "
                        "for them (leave fields out with a capsfilter"));
}

TEST_F(gst_launch, source_that_does_not_release_is_named_by_the_sink) {
  auto sink =
      start("-q videotestsrc ! " + small_nv12 + " ! gpushmsink channel=c acquire-timeout=2000");
  auto source = start_watched("");
  await_buffer(source);
  source.kill(SIGSTOP);
  EXPECT_EQ(sink.wait_exit(limit), exited(1));
  EXPECT_THAT(sink.text(stream::err),
              HasSubstr("publish \"c\": no slot became free within 2000 ms: a consumer does not "
                        "release what it has (see whether a consumer is paused"));
}

}  // namespace
}  // namespace gpushm_tests
