// SPDX-License-Identifier: Apache-2.0
// Loads by several processes at once, of which some are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "gpushm/versions.hpp"
#include "tests/support/container/gpu_access.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/ptrace/traced_process.hpp"
#include "tests/weights/model_compare.hpp"
#include "tests/weights/places.hpp"
#include "tests/weights/sample_model.hpp"

namespace {

using namespace std::chrono_literals;
using namespace gpushm;
using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_tests::where;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// "ready GENERATION", or what the agent has printed instead; also if that was read before.
std::string result_of(child& agent) {
  const std::string found = gpushm_tests::result_in(agent.text(gpushm_testing::stream::out));
  return found.empty() ? agent.wait_for_line("ready .*|failed .*", 120s) : found;
}
bool has_read(child& agent) {
  return agent.text(gpushm_testing::stream::out).find(" here") != std::string::npos;
}
bool is_whole(child& agent) {
  agent.write("compare\n");
  return agent.wait_for_line("whole|.* has .*|cannot .*", 120s) == "whole";
}

class loads : public testing::TestWithParam<where> {
 protected:
  void SetUp() override {
    if (GetParam() == where::real && gpushm_testing::nvidia_minors().empty()) {
      GTEST_SKIP() << "no NVIDIA GPU on this machine";
    }
    if (GetParam() == where::fake) {
      gpushm::fake::fake_gpus_options one_gpu;
      one_gpu.size_bytes = std::uint64_t{1} << 30U;
      fake_.emplace(one_gpu);
    }
    start_broker();
    auto model = gpushm_tests::sample_model();
    // A load lasts for several reports, on a slow machine.
    const int count = gpushm_testing::number_from_environment("GPUSHM_LOAD_TENSORS", 12);
    for (int i = 0; i != count; ++i) {
      model.push_back({"big." + std::to_string(i), "U8", {5'000'001}, 5'000'001});
    }
    gpushm_tests::write_file(path_, gpushm_tests::safetensors_of(model, R"({"format":"pt"})"));
  }

  void start_broker() {
    broker_options options;
    options.socket_path = socket_;
    options.accept_fake_chunks = GetParam() == where::fake;
    options.limits.fence_delay_ms = 100;
    broker_.emplace(broker::start(options));
    client_.emplace(client::connect({.socket_path = socket_}));
  }
  /// `more`: arguments of weights_agent after the path.
  [[nodiscard]] child start(const std::string& path = {},
                            const std::vector<std::string>& more = {}) const {
    std::vector<std::string> argv{gpushm_testing::own_program("weights_agent"),
                                  socket_,
                                  "w",
                                  gpushm_tests::device_of(GetParam()),
                                  path.empty() ? path_ : path};
    argv.insert(argv.end(), more.begin(), more.end());
    return gpushm_tests::start(std::move(argv), fake_);
  }
  /// A second model, which replaces the first. It pauses for so long at each report.
  [[nodiscard]] child start_to_replace(std::chrono::milliseconds pause) const {
    return gpushm_tests::start({gpushm_testing::own_program("weights_agent"),
                                socket_,
                                "w",
                                gpushm_tests::device_of(GetParam()),
                                next_path_,
                                std::to_string(pause.count()),
                                "replace"},
                               fake_);
  }
  [[nodiscard]] std::string generation_now() {
    return "ready " + std::to_string(client_->stat("w").generation);
  }
  [[nodiscard]] std::vector<std::string> names() { return gpushm_tests::names_of(*client_); }
  [[nodiscard]] bool only_the_model_is_left() {
    return eventually([&] { return names() == std::vector<std::string>{"w"}; }, 20s);
  }

  gpushm_testing::temp_dir folder_{0755};
  const std::string socket_ = folder_ / "socket";
  const std::string path_ = folder_ / "model.safetensors";
  const std::string next_path_ = folder_ / "next.safetensors";
  std::optional<gpushm::fake::fake_gpus> fake_;
  std::optional<broker> broker_;
  std::optional<client> client_;
};

TEST_P(loads, of_one_model_read_it_once) {
  std::vector<child> agents;
  for (int i = 0; i != 5; ++i) {
    agents.push_back(start());
  }
  int readers = 0;
  std::optional<std::string> first;
  for (child& each : agents) {
    const std::string result = result_of(each);
    EXPECT_THAT(result, testing::StartsWith("ready")) << each.output().all_output();
    EXPECT_EQ(first.value_or(result), result) << "another segment";
    first = result;
    readers += has_read(each) ? 1 : 0;
  }
  EXPECT_EQ(readers, 1);
  EXPECT_TRUE(is_whole(agents.back()));
  EXPECT_TRUE(only_the_model_is_left()) << testing::PrintToString(names());
  child late = start();
  EXPECT_EQ(result_of(late), *first);
  EXPECT_FALSE(has_read(late));
}

TEST_P(loads, go_on_where_a_killed_one_has_ended) {
  child killed = start();
  const std::string report = killed.wait_for_line("report [1-9].* here|ready .*", 60s);
  child waiter = start();
  static_cast<void>(waiter.wait_for_line("report .*|ready .*", 60s));
  killed.kill(SIGKILL);
  killed.wait_exit(20s);
  EXPECT_THAT(result_of(waiter), testing::StartsWith("ready")) << waiter.output().all_output();
  EXPECT_TRUE(is_whole(waiter));
  EXPECT_TRUE(only_the_model_is_left()) << testing::PrintToString(names());
}

/// Without and with a process that waits for it.
TEST_P(loads, that_replace_a_model_leave_it_if_they_are_killed) {
  gpushm_tests::write_file(next_path_,
                           gpushm_tests::safetensors_of({{"a", "U8", {9'000'000}, 9'000'000}}));
  child former = start();
  const std::string before = result_of(former);
  ASSERT_THAT(before, testing::StartsWith("ready")) << former.output().all_output();
  for (const bool is_awaited : {false, true}) {
    child killed = start_to_replace(120s);
    ASSERT_THAT(killed.wait_for_line("report .* here|ready .*|failed .*", 60s), HasSubstr("here"));
    EXPECT_EQ(generation_now(), before);
    child late = start();
    EXPECT_EQ(result_of(late), before);
    std::optional<child> waiter;
    if (is_awaited) {
      waiter.emplace(start_to_replace(0ms));
      ASSERT_THAT(waiter->wait_for_line("report .* there|ready .*|failed .*", 60s),
                  HasSubstr("there"));
    }
    killed.kill(SIGKILL);
    killed.wait_exit(20s);
    if (!is_awaited) {
      EXPECT_EQ(generation_now(), before);
      EXPECT_TRUE(only_the_model_is_left()) << testing::PrintToString(names());
      continue;
    }
    EXPECT_THAT(result_of(*waiter), testing::StartsWith("ready")) << waiter->output().all_output();
    EXPECT_NE(result_of(*waiter), before);
    EXPECT_EQ(result_of(*waiter), generation_now());
    EXPECT_TRUE(is_whole(*waiter));
  }
  EXPECT_TRUE(is_whole(former));
  EXPECT_TRUE(only_the_model_is_left()) << testing::PrintToString(names());
}

/// A slice of columns, which is read run by run.
TEST_P(loads, of_a_slice_go_on_where_a_killed_one_has_ended) {
  const std::string path = folder_ / "matrix.safetensors";
  constexpr std::uint64_t rows = 20'000;
  constexpr std::uint64_t columns = 1'001;
  std::vector<gpushm_tests::sample_tensor> model;
  for (int i = 0; i != 3; ++i) {
    model.push_back({"m." + std::to_string(i), "U8", {rows, columns}, rows * columns});
  }
  model.push_back({"other", "U8", {3}, 3});
  gpushm_tests::write_file(path, gpushm_tests::safetensors_of(model));
  const std::vector<std::string> slice{"0", "m.*", "1", "7"};
  child killed = start(path, slice);
  static_cast<void>(killed.wait_for_line("report [1-9].* here|ready .*", 60s));
  child waiter = start(path, slice);
  static_cast<void>(waiter.wait_for_line("report .*|ready .*", 60s));
  killed.kill(SIGKILL);
  killed.wait_exit(20s);
  EXPECT_THAT(result_of(waiter), testing::StartsWith("ready")) << waiter.output().all_output();
  EXPECT_TRUE(is_whole(waiter));
  child other = start(path, {"0", "m.*", "0", "7"});
  EXPECT_THAT(result_of(other), HasSubstr("failed invalid_argument"));  // 20,000 rows
  child another = start(path, {"0", "m.*", "1", "13"});
  EXPECT_THAT(result_of(another),
              testing::AllOf(HasSubstr("failed already_exists"), HasSubstr("another selection")));
  EXPECT_TRUE(only_the_model_is_left()) << testing::PrintToString(names());
}

/// Also without a process that waits.
TEST_P(loads, succeed_if_any_process_is_killed) {
  const int rounds = gpushm_testing::number_from_environment("GPUSHM_KILLS", 2);
  const unsigned seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random(seed);
  int midway = 0;
  for (int round = 0; round != rounds; ++round) {
    for (auto kills = 1 + random() % 3; kills != 0; --kills) {
      std::vector<child> agents;
      for (auto left = 1 + random() % 3; left != 0; --left) {
        agents.push_back(start());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 400));
      child& killed = agents[random() % agents.size()];
      killed.kill(SIGKILL);
      killed.wait_exit(20s);
      midway += has_read(killed) ? 1 : 0;
      if (random() % 2 == 0) {
        agents.clear();  // all of them
      }
      for (child& each : agents) {
        if (&each != &killed) {
          ASSERT_THAT(result_of(each), testing::StartsWith("ready"))
              << "seed " << seed << ": " << each.output().all_output();
        }
      }
    }
    child last = start();
    ASSERT_THAT(result_of(last), testing::StartsWith("ready"))
        << "seed " << seed << ": " << last.output().all_output();
    ASSERT_TRUE(is_whole(last)) << "seed " << seed << ": " << last.output().all_output();
    ASSERT_TRUE(only_the_model_is_left()) << testing::PrintToString(names());
    client_->remove("w");
  }
  RecordProperty("killed_while_reading", midway);
}

/// It takes nothing back.
TEST_P(loads, go_on_with_another_broker) {
  std::vector<child> agents;
  for (int i = 0; i != 3; ++i) {
    agents.push_back(start());
  }
  static_cast<void>(agents.front().wait_for_line("report [1-9].*|ready .*", 60s));
  client_.reset();
  broker_.reset();
  start_broker();
  for (child& each : agents) {
    EXPECT_THAT(result_of(each), testing::StartsWith("ready")) << each.output().all_output();
    EXPECT_TRUE(is_whole(each));
  }
  child last = start();
  EXPECT_THAT(result_of(last), testing::StartsWith("ready")) << last.output().all_output();
  EXPECT_TRUE(is_whole(last));
  EXPECT_TRUE(only_the_model_is_left()) << testing::PrintToString(names());
}

TEST_P(loads, that_fail_leave_nothing) {
  const std::string bad = folder_ / "bad.safetensors";
  gpushm_tests::write_file(bad,
                           gpushm_tests::safetensors_of({{"a", "U8", {9'000'000}, 9'000'000}}));
  ASSERT_EQ(::truncate(bad.c_str(), 8'000'000), 0);
  child refused = start(bad);
  EXPECT_THAT(result_of(refused), HasSubstr("failed invalid_file"));
  EXPECT_THAT(names(), IsEmpty());
  child good = start();
  EXPECT_THAT(result_of(good), testing::StartsWith("ready"));
  const std::string other = folder_ / "other.safetensors";
  gpushm_tests::write_file(other, gpushm_tests::safetensors_of({{"a", "U8", {9}, 9}}));
  child second = start(other);
  EXPECT_THAT(result_of(second), HasSubstr("failed already_exists"));
  EXPECT_TRUE(is_whole(good));
  EXPECT_THAT(names(), ElementsAre("w"));
}

INSTANTIATE_TEST_SUITE_P(on,
                         loads,
                         testing::Values(where::host, where::fake, where::real),
                         gpushm_tests::name_of);

class lanes_of_loads : public loads {
 protected:
  void SetUp() override {
    loads::SetUp();
    gpushm_tests::write_file(path_, gpushm_tests::safetensors_of(gpushm_tests::sample_model()));
  }
  /// The result of a load by two threads, and how often it has registered memory.
  [[nodiscard]] std::pair<std::string, std::size_t> load_with(const std::string& failures) {
    const std::string trace = folder_ / ("trace" + std::to_string(++loads_));
    gpushm_testing::spawn_options wanted;
    wanted.argv = {gpushm_testing::own_program("weights_agent"), socket_, "w", "0", path_};
    for (const auto& [name, value] : fake_->environment()) {
      wanted.env.emplace_back(name, value);
    }
    wanted.env.emplace_back("GPUSHM_FAKE_TRACE", trace);
    if (!failures.empty()) {
      wanted.env.emplace_back("GPUSHM_FAKE_FAIL", failures);
    }
    child agent = child::start(wanted);
    const std::string result = result_of(agent);
    if (result.starts_with("ready")) {
      EXPECT_TRUE(is_whole(agent));
    }
    agent.close_stdin();
    agent.wait_exit(60s);
    std::size_t registered = 0;
    std::ifstream file(trace);
    for (std::string line; std::getline(file, line);) {
      registered += line.find(" cuMemHostRegister_v2 0") != std::string::npos ? 1U : 0U;
    }
    return {result, registered};
  }
  int loads_ = 0;
};

/// They do not wait for the segment's memory, which here is never created.
TEST_P(lanes_of_loads, open_beside_the_creation_of_the_segment) {
  const auto [result, registered] = load_with("cuMemCreate:*=2");
  EXPECT_THAT(result, HasSubstr("failed out_of_memory"));
  EXPECT_EQ(registered, 2U);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_P(lanes_of_loads, open_once) {
  const auto [result, registered] = load_with({});
  EXPECT_THAT(result, testing::StartsWith("ready"));
  EXPECT_EQ(registered, 2U);
}

/// One that could not be opened is opened again by its thread.
TEST_P(lanes_of_loads, open_again_where_that_has_failed) {
  for (const char* const once :
       {"cuStreamCreate:1=2", "cuMemHostRegister_v2:1=2", "cuEventCreate:3=2"}) {
    const auto [result, registered] = load_with(once);
    EXPECT_THAT(result, testing::StartsWith("ready")) << once;
    EXPECT_GE(registered, 2U) << once;
    client_->remove("w");
  }
  const auto [result, registered] = load_with("cuMemHostRegister_v2:*=2");
  EXPECT_THAT(result, HasSubstr("failed out_of_memory"));
  EXPECT_EQ(registered, 0U);
  EXPECT_TRUE(eventually([&] { return names().empty(); }, 20s)) << testing::PrintToString(names());
}

INSTANTIATE_TEST_SUITE_P(on, lanes_of_loads, testing::Values(where::fake), gpushm_tests::name_of);

class loads_of_one_process : public testing::Test {
 protected:
  static broker_options options(const std::string& socket) {
    broker_options result;
    result.socket_path = socket;
    return result;
  }
  gpushm_testing::temp_dir folder_{0755};
  const std::string socket_ = folder_ / "socket";
  broker broker_ = broker::start(options(socket_));
  client client_ = client::connect({.socket_path = socket_});
  const std::vector<std::string> paths_{folder_ / "model.safetensors"};
};

TEST_F(loads_of_one_process, end_when_they_are_stopped) {
  gpushm_tests::write_file(paths_.front(),
                           gpushm_tests::safetensors_of({{"a", "U8", {200'000'000}, 200'000'000}}));
  load_options wanted;
  wanted.device = "host";
  wanted.threads = 1;
  std::stop_source stop;
  wanted.stop = stop.get_token();
  int reports = 0;
  wanted.report = [&](const load_progress&) {
    if (++reports == 2) {
      stop.request_stop();
    }
  };
  try {
    static_cast<void>(load_tensors(client_, "w", paths_, wanted));
    GTEST_SKIP() << "this machine loads 200 MB in less than 0.2 s";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::cancelled);
  }
  for (const auto& each : client_.list("")) {
    EXPECT_EQ(each.backend, backend::signals) << each.name;
  }
  wanted.stop = {};
  wanted.report = [](const load_progress&) { throw std::runtime_error("of the caller"); };
  EXPECT_THROW(static_cast<void>(load_tensors(client_, "w", paths_, wanted)), std::runtime_error);
}

TEST_F(loads_of_one_process, leave_no_descriptor) {
  gpushm_tests::write_file(
      paths_.front(), gpushm_tests::safetensors_of({{"a", "U8", {9}, 9}, {"b", "F32", {}, 4}}));
  load_options wanted;
  wanted.device = "host";
  const auto load_once = [&] {
    const segment loaded = load_tensors(client_, "w", paths_, wanted);
    EXPECT_FALSE(tensor_table(loaded).empty());
  };
  const auto open_files = [] {
    return gpushm_testing::total(gpushm_testing::count_descriptors(::getpid()));
  };
  const auto round = [&] {
    load_once();
    load_once();
    client_.remove("w");
  };
  round();
  const std::size_t before = open_files();
  for (int i = 0; i != 200; ++i) {
    round();
  }
  EXPECT_TRUE(eventually([&] { return open_files() <= before; }, 20s))
      << open_files() << " and before " << before;
}

/// Killed at each of its system calls in turn, also where the model is removed before it is loaded
/// again.
TEST_F(loads_of_one_process, leave_nothing_where_they_are_killed) {
  if (base::under_thread_sanitizer) {
    GTEST_SKIP() << "ThreadSanitizer makes calls of its own, ten times as many";
  }
  gpushm_tests::write_file(paths_.front(),
                           gpushm_tests::safetensors_of(gpushm_tests::sample_model()));
  load_options wanted;
  wanted.device = "host";
  wanted.timeout = 60s;
  const auto step = static_cast<std::uint64_t>(gpushm_testing::number_from_environment(
      "GPUSHM_STEP_BETWEEN_KILLS", base::under_sanitizer ? 43 : 13));
  const std::uint64_t first = 1 + std::random_device()() % step;
  std::uint64_t removed = 0;
  bool is_killed = true;
  std::uint64_t at = first;
  for (; is_killed; at += step) {
    ASSERT_LT(at, 5'000U) << "the loader does not end";
    gpushm_testing::spawn_options program;
    program.argv = {
        gpushm_testing::own_program("weights_agent"), socket_, "w", "host", paths_.front()};
    gpushm_testing::traced_process loader(program, at);
    loader.write("end\n");
    const auto result = loader.wait_end(60s);
    const std::string where = "at call " + std::to_string(at) + ", " + result.fatal_call;
    ASSERT_TRUE(result.began) << loader.output().all_output();
    is_killed = result.killed;
    if (at / step % 2 == 0 && client_.try_open("w")) {
      client_.remove("w");
      ++removed;
    }
    {
      const segment loaded = load_tensors(client_, "w", paths_, wanted);
      ASSERT_EQ(gpushm_tests::model_comparison(loaded, paths_.front()).all(), "whole") << where;
    }
    ASSERT_TRUE(eventually(
        [&] { return gpushm_tests::names_of(client_) == std::vector<std::string>{"w"}; }, 20s))
        << where << ": " << testing::PrintToString(gpushm_tests::names_of(client_));
    client_.remove("w");
  }
  EXPECT_GT(at, 50U) << "a load cannot have so few calls: the marks are wrong";
  EXPECT_GT(removed, 0U);
  RecordProperty("calls", std::to_string(at));
}

// ---- parts of versions ----

class loads_of_parts : public loads_of_one_process {
 protected:
  loads_of_parts() {
    wanted_.device = "host";
    auto model = gpushm_tests::sample_model();
    gpushm_tests::write_file(paths_.front(), gpushm_tests::safetensors_of(model));
    model.push_back({"other", "U8", {9}, 9});
    gpushm_tests::write_file(other_.front(), gpushm_tests::safetensors_of(model));
  }
  segment load_into(const std::string& name, client& client) {
    return load_tensors(client, name, paths_, wanted_);
  }
  error failure_of(const std::string& name, const std::vector<std::string>& paths) {
    try {
      static_cast<void>(load_tensors(client_, name, paths, wanted_));
    } catch (const error& why) {
      return why;
    }
    return {errc(), "", "", "it has not failed", ""};
  }

  const std::vector<std::string> other_{folder_ / "other.safetensors"};
  client reader_ = client::connect({.socket_path = socket_});
  load_options wanted_;
};

TEST_F(loads_of_parts, are_seen_when_all_are_complete) {
  const std::uint64_t number = create_version(client_, "m", {.parts = {"r0", "r1"}});
  EXPECT_TRUE(gpushm_tests::model_comparison(load_into("m@1/r0", client_), paths_.front()).all() ==
              "whole");
  EXPECT_FALSE(reader_.try_open("m@1/r0"));
  EXPECT_EQ(failure_of("m@1/r0", paths_).code(), errc::already_exists);
  const segment last = load_into("m@1/r1", client_);
  const segment seen = reader_.open("m@latest/r0");
  EXPECT_EQ(gpushm_tests::model_comparison(seen, paths_.front()).all(), "whole");
  // Another process that loads the same files has them.
  EXPECT_EQ(load_into("m@1/r1", reader_).generation(), last.generation());
  EXPECT_EQ(number, 1U);
  EXPECT_THAT(gpushm_tests::names_of(client_), ElementsAre("m@1/r0", "m@1/r1"));
}

TEST_F(loads_of_parts, refuse_what_a_version_cannot_be) {
  EXPECT_EQ(failure_of("m@1", paths_).code(), errc::no_such_segment);
  static_cast<void>(create_version(client_, "m"));
  EXPECT_EQ(failure_of("m@latest", paths_).code(), errc::invalid_argument);
  EXPECT_EQ(failure_of("m", paths_).code(), errc::already_exists);
  wanted_.replace = true;
  EXPECT_EQ(failure_of("m@1", paths_).code(), errc::invalid_argument);
  wanted_.replace = false;
  static_cast<void>(load_into("m@1", client_));
  // Published: other files are refused.
  EXPECT_EQ(resolve_version(reader_, "m"), 1U);
  const error unlike = failure_of("m@1", other_);
  EXPECT_THAT(unlike.next_step(), HasSubstr("create the next version"));
}

TEST_F(loads_of_parts, wait_for_no_other_loader) {
  static_cast<void>(create_version(client_, "m", {.parts = {"r0", "r1"}}));
  segment made = client_.create(
      "m@1/r0", {.size_bytes = 64, .device = "host", .lifetime = lifetime::persistent});
  const error why = failure_of("m@1/r0", paths_);
  EXPECT_EQ(why.code(), errc::already_exists);
  EXPECT_THAT(why.next_step(), HasSubstr("one process"));
}

TEST_F(loads_of_parts, that_fail_end_the_version) {
  static_cast<void>(create_version(client_, "m", {.parts = {"r0", "r1"}}));
  static_cast<void>(load_into("m@1/r1", client_));
  wanted_.report = [](const load_progress&) { throw std::runtime_error("of the caller"); };
  EXPECT_THROW(static_cast<void>(load_into("m@1/r0", client_)), std::runtime_error);
  wanted_.report = {};
  EXPECT_FALSE(reader_.try_open("m@1/r1"));
  EXPECT_TRUE(eventually([&] { return client_.list("").empty(); }, 20s));
  EXPECT_EQ(failure_of("m@1/r0", paths_).code(), errc::no_such_segment);
  const std::uint64_t next = create_version(client_, "m");
  static_cast<void>(load_into("m@" + std::to_string(next), client_));
  EXPECT_TRUE(reader_.try_open("m@latest"));
}

TEST_F(loads_of_one_process, refuse_wrong_options) {
  const auto code_of = [&](const std::string& name, const load_options& options) {
    try {
      static_cast<void>(load_tensors(client_, name, paths_, options));
      return errc();
    } catch (const error& why) {
      return why.code();
    }
  };
  gpushm_tests::write_file(paths_.front(), gpushm_tests::safetensors_of({{"a", "U8", {9}, 9}}));
  load_options wanted;
  wanted.device = "host";
  wanted.threads = 65;
  EXPECT_EQ(code_of("w", wanted), errc::invalid_argument);
  wanted.threads = 1;
  EXPECT_EQ(code_of(std::string(250, 'n'), wanted), errc::invalid_argument);
  EXPECT_EQ(code_of("", wanted), errc::invalid_argument);
  wanted.device = "7";
  EXPECT_THAT(code_of("w", wanted),
              testing::AnyOf(errc::driver_unavailable, errc::device_not_found));
  wanted.device = "host";
  segment other = client_.create("w", {.size_bytes = 10, .device = "host"});
  other.publish();
  EXPECT_EQ(code_of("w", wanted), errc::already_exists);
  EXPECT_THROW(static_cast<void>(load_tensors(client_, "v", {}, wanted)), error);
}

}  // namespace
