// SPDX-License-Identifier: Apache-2.0
// Loaders of a model, those that wait for them, engines that serve it, the broker of the node and
// its keeper are killed at random, several at once, before, while and after the model is loaded.
// GPUSHM_KILLS sets how often, GPUSHM_SEED repeats a run, GPUSHM_LOAD_TENSORS the model's size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "base/process/signals.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/holdings.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/container/gpu_access.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/weights/places.hpp"
#include "tests/weights/sample_model.hpp"

namespace {

using namespace std::chrono_literals;
using namespace gpushm;
using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::number_from_environment;
using gpushm_tests::where;

/// What a process is when it is killed.
enum class kind : std::uint8_t {
  starting,  ///< a load that has found neither a model nor a loader yet
  loader,
  waiter,   ///< a load that waits for the loader
  loaded,   ///< a load that has the model
  opening,  ///< an engine that starts, or waits for the model
  engine,   ///< that has the model
  broker,
  keeper,             ///< one of its two processes
  broker_and_keeper,  ///< the broker and one process of its keeper
  node,               ///< the broker and both processes of its keeper: nothing continues
};
constexpr std::array<const char*, 10> kind_names{"starting",
                                                 "loader",
                                                 "waiter",
                                                 "loaded",
                                                 "opening",
                                                 "engine",
                                                 "broker",
                                                 "keeper",
                                                 "broker_and_keeper",
                                                 "node"};
/// Of which a run of some length must have killed each.
constexpr std::array wanted_kinds{kind::loader,
                                  kind::waiter,
                                  kind::loaded,
                                  kind::opening,
                                  kind::engine,
                                  kind::broker,
                                  kind::keeper,
                                  kind::broker_and_keeper,
                                  kind::node};

/// weights_agent or weights_engine.
struct participant {
  child process;
  bool is_engine = false;
  bool has_lost_node = false;  ///< what it has may not be taken back
  /// "ready GENERATION", "failed WHY"; empty: neither yet. Does not block.
  [[nodiscard]] std::string result() {
    process.output().read_some(gpushm_testing::clock::now());
    return found();
  }
  [[nodiscard]] std::string wait_for_result() {
    const auto end = gpushm_testing::deadline_after(90s);
    while (found().empty() && process.output().read_some(end) &&
           gpushm_testing::clock::now() < end) {
    }
    return found().empty() ? "nothing" : found();
  }

 private:
  [[nodiscard]] std::string found() const {
    return gpushm_tests::result_in(process.text(gpushm_testing::stream::out));
  }
};

class killed_at_random : public testing::TestWithParam<where> {
 protected:
  void SetUp() override {
    if (GetParam() == where::real && gpushm_testing::nvidia_minors().empty()) {
      GTEST_SKIP() << "no NVIDIA GPU on this machine";
    }
    if (GetParam() == where::fake) {
      fake::fake_gpus_options one_gpu;
      one_gpu.size_bytes = std::uint64_t{2} << 30U;
      fake_.emplace(one_gpu);
      for_broker_.emplace_back("--accept-fake-chunks");
    }
    for (std::uint64_t seed = 0; seed != 2; ++seed) {
      auto model = gpushm_tests::sample_model();
      for (std::uint64_t i = 0;
           i != number_from_environment<std::uint64_t>("GPUSHM_LOAD_TENSORS", 6);
           ++i) {
        model.push_back({"big." + std::to_string(i), "U8", {5'000'001}, 5'000'001});
      }
      for (auto& each : model) {
        each.seed = seed;
      }
      paths_.push_back(folder_ / ("model" + std::to_string(seed) + ".safetensors"));
      gpushm_tests::write_file(
          paths_.back(),
          gpushm_tests::safetensors_of(model, R"({"model":")" + std::to_string(seed) + R"("})"));
    }
    // Processes of the keeper whose parent is killed become children of this one.
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    start_broker();
  }
  void TearDown() override {
    if (HasFailure() && broker_) {
      broker_->keeper().output().read_to_end(gpushm_testing::clock::now() + 100ms);
      std::printf("%s\n", broker_->keeper().output().all_output().c_str());
    }
  }

  // ---- processes ----

  void start_broker() {
    broker_.emplace(run_dir_, for_broker_);
    client_.emplace(client::connect({.socket_path = socket_, .timeout = 20s}));
  }

  /// A slow one is not complete before it can be found and killed, on a busy machine, too.
  void start_load(bool slow = false, bool replaces = false) {
    std::vector<std::string> argv{gpushm_testing::own_program("weights_agent"),
                                  socket_,
                                  "w",
                                  gpushm_tests::device_of(GetParam()),
                                  paths_[model_]};
    if (slow || replaces) {
      argv.emplace_back(slow ? "300" : "0");
    }
    if (replaces) {
      argv.emplace_back("replace");
    }
    loads_.push_back({gpushm_tests::start(std::move(argv), fake_), false});
  }
  void start_engine() {
    engines_.push_back(
        {gpushm_tests::start(
             {gpushm_testing::own_program("weights_engine"), socket_, "w", paths_[0], paths_[1]},
             fake_),
         true});
  }
  /// It has nothing left to do.
  static void end(participant& participant) {
    participant.process.close_stdin();
    EXPECT_EQ(participant.process.wait_exit(30s), gpushm_testing::exited(0))
        << participant.process.output().all_output();
  }

  // ---- what is going on ----

  [[nodiscard]] std::vector<std::string> names() { return gpushm_tests::names_of(*client_); }
  struct load_state {
    pid_t loader = 0;  ///< 0: none
    bool is_midway = false;
  };
  [[nodiscard]] load_state load_now() {
    load_state result;
    for (const auto& each : client_->list("w/~load")) {
      if (each.creator_alive) {
        result.loader = each.creator_pid;
      }
    }
    if (result.loader != 0) {
      try {
        result.is_midway = timeline::open(*client_, "w/~load").value() != 0;
      } catch (const error&) {  // it has ended
      }
    }
    return result;
  }
  [[nodiscard]] static kind kind_of(participant& participant, const load_state& load) {
    const bool is_ready = !participant.result().empty();
    if (participant.is_engine) {
      return is_ready ? kind::engine : kind::opening;
    }
    if (is_ready) {
      return kind::loaded;
    }
    return load.loader == participant.process.pid() ? kind::loader
           : load.loader == 0                       ? kind::starting
                                                    : kind::waiter;
  }

  // ---- kills ----

  [[nodiscard]] std::uint64_t random(std::uint64_t below) { return random_() % below; }
  void count(kind kind) {
    ++killed_[kind];
    ++kills_;
  }
  /// One of `participants`, at this moment.
  void kill_one(std::list<participant>& participants,
                std::list<participant>::iterator participant) {
    const load_state load = load_now();
    const kind kind = kind_of(*participant, load);
    participant->process.kill(SIGKILL);
    count(kind);
    midway_ += kind == kind::loader && load.is_midway ? 1 : 0;
    EXPECT_EQ(participant->process.wait_exit(20s), gpushm_testing::killed_by(SIGKILL))
        << participant->process.output().all_output();
    participants.erase(participant);
  }
  /// Of this name, of the broker and its keeper. Reaps those that have lost their parents.
  [[nodiscard]] std::vector<pid_t> processes(const std::string& program) {
    std::vector<pid_t> result = gpushm_testing::descendants_of(::getpid());
    std::erase_if(result, [&](pid_t each) {
      if (gpushm_testing::program_of(each) != program) {
        return true;
      }
      if (gpushm_testing::process_is_alive(each)) {
        return false;
      }
      if (!broker_ || each != broker_->keeper().pid()) {
        ::waitpid(each, nullptr, WNOHANG);
      }
      return true;
    });
    return result;
  }
  /// 0: none at the moment.
  [[nodiscard]] pid_t first_of(const std::string& program) {
    const auto all = processes(program);
    return all.empty() ? 0 : all.front();
  }
  /// The broker, one of the keeper's two processes, or one of each at once. Waits until they are
  /// dead: a process that ends counts as alive. False: the broker is dead already.
  [[nodiscard]] bool kill_part_of_node(kind kind) {
    std::vector<pid_t> killed;
    if (kind != kind::broker) {
      // So that the other one goes on. A program that is started has its starter's name until it is
      // executed, and is not one of them: the broker runs then.
      std::vector<pid_t> both;
      const auto find = [&] {
        both = processes("gpushm-keeper");
        return both.size() == 2 && first_of("gpushm-brokerd") != 0;
      };
      if (!eventually(find, 20s)) {
        throw gpushm_testing::harness_error("the keeper and its broker do not go on");
      }
      killed.push_back(both[random(2)]);
    }
    if (kind != kind::keeper) {
      killed.push_back(first_of("gpushm-brokerd"));
      if (killed.back() == 0) {
        return false;
      }
    }
    for (const pid_t each : killed) {
      gpushm::base::signal_process(each, SIGKILL);
    }
    EXPECT_TRUE(eventually(
        [&] {
          return std::none_of(killed.begin(), killed.end(), gpushm_testing::process_is_alive);
        },
        20s));
    return true;
  }
  void kill_node() {
    gpushm::base::signal_group(broker_->keeper().pid(), SIGKILL);
    EXPECT_TRUE(eventually(
        [&] { return processes("gpushm-keeper").empty() && processes("gpushm-brokerd").empty(); },
        20s));
    broker_.reset();
    if (random(2) == 0) {
      std::this_thread::sleep_for(1ms * random(500));
    }
    start_broker();
    has_lost_node_ = true;
    for (participant& each : engines_) {
      each.has_lost_node = true;
    }
  }
  /// Returns false if there is none of this kind.
  [[nodiscard]] bool kill(kind kind) {
    if (kind == kind::node) {
      kill_node();
    } else if (kind >= kind::broker && !kill_part_of_node(kind)) {
      return false;
    }
    if (kind >= kind::broker) {
      count(kind);
      return true;
    }
    const load_state load = load_now();
    if ((kind == kind::loader || kind == kind::waiter) && !load.is_midway) {
      return false;
    }
    for (auto* const participants : {&loads_, &engines_}) {
      for (auto each = participants->begin(); each != participants->end(); ++each) {
        if (kind_of(*each, load) == kind) {
          kill_one(*participants, each);
          return true;
        }
      }
    }
    return false;
  }
  /// Any process.
  void kill_one() {
    const std::uint64_t own = loads_.size() + engines_.size();
    std::uint64_t which = random(own + 3);
    for (auto* const participants : {&loads_, &engines_}) {
      if (which < participants->size()) {
        kill_one(*participants,
                 std::next(participants->begin(), static_cast<std::ptrdiff_t>(which)));
        return;
      }
      which -= participants->size();
    }
    static_cast<void>(kill(which == 0   ? kind::broker
                           : which == 1 ? kind::keeper
                                        : kind::broker_and_keeper));
  }
  /// Once there is one of this kind.
  void hunt(kind kind) {
    const auto end = gpushm_testing::clock::now() + 2 * load_time_ + 500ms;
    while (!kill(kind)) {
      if (gpushm_testing::clock::now() > end) {
        return;
      }
      std::this_thread::sleep_for(1ms);
    }
  }
  /// None of this kind was killed yet, or no loader after its first piece.
  [[nodiscard]] bool is_missing(kind kind) {
    return killed_[kind] == 0 || (kind == kind::loader && midway_ == 0);
  }
  [[nodiscard]] bool is_any_missing() {
    return std::any_of(
        wanted_kinds.begin(), wanted_kinds.end(), [&](kind each) { return is_missing(each); });
  }
  /// Each of `wanted_kinds` once, in random order, and so on.
  [[nodiscard]] kind next_hunted() {
    if (hunted_.empty()) {
      hunted_.assign(wanted_kinds.begin(), wanted_kinds.end());
      std::shuffle(hunted_.begin(), hunted_.end(), random_);
    }
    const kind result = hunted_.back();
    hunted_.pop_back();
    return result;
  }

  // ---- rounds ----

  void new_model() {
    if (!generation_.empty()) {
      client_->remove("w");
      generation_.clear();
    }
    model_ = 1 - model_;
  }

  void round() {
    const kind hunted = next_hunted();
    const bool needs_load = hunted <= kind::waiter;
    if (generation_.empty() || needs_load || random(2) == 0) {
      new_model();
    }
    for (auto left = (needs_load ? 2 : 1) + random(2); left != 0; --left) {
      start_load(needs_load);
    }
    for (auto left = random(3); left != 0; --left) {
      start_engine();
    }
    const auto wanted = 1 + random(4);
    const auto hunt_at = random(wanted);
    for (std::uint64_t i = 0; i != wanted; ++i) {
      if (i == hunt_at) {
        hunt(hunted);
        continue;
      }
      if (random(3) != 0) {  // otherwise at once
        std::this_thread::sleep_for(load_time_ * random(100) / 100);
      }
      kill_one();
      if (random(3) == 0) {
        random(2) == 0 ? start_load() : start_engine();
      }
    }
    check();
  }

  [[nodiscard]] static std::string reply_of(participant& engine) {
    return engine.process.wait_for_line("(whole|failed|.* has) .*", 60s);
  }
  /// The model is complete, all that are left have one, others get it, and nothing else is there.
  void check() {
    // Nothing has continued the node: what was not handed back in time is loaded again.
    const bool has_lost_node = std::exchange(has_lost_node_, false);
    if (has_lost_node) {
      generation_.clear();
    } else {
      ASSERT_EQ(client_->broker().epoch, epoch_);
    }
    epoch_ = client_->broker().epoch;
    for (participant& each : loads_) {
      const std::string result = each.wait_for_result();
      ASSERT_THAT(result, testing::StartsWith("ready")) << each.process.output().all_output();
      if (!has_lost_node) {
        generation_ = generation_.empty() ? result : generation_;
        ASSERT_EQ(result, generation_) << "another segment";
      }
      end(each);  // perhaps before it has handed back what it has
    }
    loads_.clear();
    if (generation_.empty()) {
      start_load();
      generation_ = loads_.front().wait_for_result();
      ASSERT_THAT(generation_, testing::StartsWith("ready"))
          << loads_.front().process.output().all_output() << testing::PrintToString(names());
    }
    start_engine();
    for (participant& each : engines_) {
      ASSERT_THAT(each.wait_for_result(), testing::StartsWith("ready"))
          << each.process.output().all_output() << testing::PrintToString(names());
      each.process.write("compare\n");
    }
    ASSERT_EQ(engines_.back().result(), generation_);
    for (participant& each : loads_) {
      end(each);
    }
    loads_.clear();
    for (participant& each : engines_) {
      const char* const states = each.result() == generation_ ? "live|exporter-gone"
                                 : each.has_lost_node         ? "removed|broker-gone"
                                                              : "removed";
      std::string reply = reply_of(each);
      // What it has is handed back after its connection.
      const auto end = gpushm_testing::deadline_after(20s);
      while (each.has_lost_node && reply.starts_with("whole broker-gone") &&
             each.result() == generation_ && gpushm_testing::clock::now() < end) {
        each.process.write("compare\n");
        reply = reply_of(each);
      }
      ASSERT_THAT(reply, testing::MatchesRegex(std::string("whole (") + states + ") .*"))
          << each.result() << ", the model: " << generation_;
    }
    while (engines_.size() > 3) {
      end(engines_.front());  // which has an earlier model
      engines_.pop_front();
    }
    ASSERT_TRUE(eventually([&] { return names() == std::vector<std::string>{"w"}; }, 20s))
        << testing::PrintToString(names());
  }
  void end_all() {
    for (auto* const participants : {&loads_, &engines_}) {
      for (participant& each : *participants) {
        end(each);
      }
      participants->clear();
    }
    client_->remove("w");
    generation_.clear();
    ASSERT_THAT(names(), testing::IsEmpty());
  }
  /// Of each kind, once they have not changed for a while.
  [[nodiscard]] static gpushm_testing::descriptor_counts descriptors_of(pid_t pid) {
    return gpushm_tests::settled_holdings_of({pid}).descriptors;
  }

  gpushm_testing::temp_dir folder_{0755};
  const std::string run_dir_ = folder_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  std::vector<std::string> for_broker_{"--domain", "default", "--fence-delay-ms", "100"};
  std::vector<std::string> paths_;
  std::optional<fake::fake_gpus> fake_;
  std::optional<gpushm_testing::brokerd> broker_;
  std::optional<client> client_;
  epoch epoch_{};
  std::size_t model_ = 0;
  std::string generation_;  ///< "ready GENERATION" of the model; empty: it is not complete
  std::list<participant> loads_;
  std::list<participant> engines_;
  std::chrono::milliseconds load_time_{0};
  std::mt19937_64 random_;
  std::vector<kind> hunted_;
  std::map<kind, int> killed_;
  std::uint64_t kills_ = 0;
  bool has_lost_node_ = false;  ///< in this round
  int midway_ = 0;
};

TEST_P(killed_at_random, processes_leave_a_model_that_others_load_and_serve) {
  const auto kills =
      number_from_environment<std::uint64_t>("GPUSHM_KILLS", base::under_sanitizer ? 8 : 12);
  const auto seed = number_from_environment("GPUSHM_SEED", std::random_device()());
  RecordProperty("seed", std::to_string(seed));
  random_.seed(seed);
  epoch_ = client_->broker().epoch;

  auto start = gpushm_testing::clock::now();
  const auto time = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(gpushm_testing::clock::now() -
                                                                 start);
  };
  start_load();
  ASSERT_THAT(loads_.front().wait_for_result(), testing::StartsWith("ready"));
  load_time_ = time();  // undisturbed
  check();
  end_all();
  const auto in_keeper = descriptors_of(first_of("gpushm-keeper"));
  const auto in_broker = descriptors_of(first_of("gpushm-brokerd"));

  start = gpushm_testing::clock::now();
  int rounds = 0;
  try {
    // By chance one kind may be missing: then some rounds more.
    const auto goes_on = [&] {
      return kills_ < kills || (kills >= 100 && kills_ < 2 * kills && is_any_missing());
    };
    for (; goes_on() && !HasFailure(); ++rounds) {
      round();
    }
  } catch (const std::exception& why) {
    ADD_FAILURE() << why.what();
  }
  std::printf("{\"seed\": %llu, \"load_ms\": %lld, \"rounds\": %d, \"seconds\": %.1f, ",
              static_cast<unsigned long long>(seed),
              static_cast<long long>(load_time_.count()),
              rounds,
              std::chrono::duration<double>(time()).count());
  for (std::size_t i = 0; i != kind_names.size(); ++i) {
    std::printf("\"%s\": %d, ", kind_names[i], killed_[static_cast<kind>(i)]);
    RecordProperty(kind_names[i], killed_[static_cast<kind>(i)]);
  }
  std::printf("\"loader_midway\": %d, \"kills\": %llu}\n",
              midway_,
              static_cast<unsigned long long>(kills_));
  RecordProperty("loader_midway", midway_);
  ASSERT_FALSE(HasFailure()) << "GPUSHM_SEED=" << seed << ", round " << rounds << ", " << kills_
                             << " kills";

  end_all();
  EXPECT_TRUE(
      eventually([&] { return descriptors_of(first_of("gpushm-keeper")) == in_keeper; }, 20s))
      << gpushm_testing::to_text(descriptors_of(first_of("gpushm-keeper")))
      << " in the keeper, before: " << gpushm_testing::to_text(in_keeper);
  EXPECT_TRUE(
      eventually([&] { return descriptors_of(first_of("gpushm-brokerd")) == in_broker; }, 20s))
      << gpushm_testing::to_text(descriptors_of(first_of("gpushm-brokerd")))
      << " in the broker, before: " << gpushm_testing::to_text(in_broker);
  if (kills >= 100) {
    for (const kind each : wanted_kinds) {
      EXPECT_FALSE(is_missing(each)) << kind_names.at(static_cast<std::size_t>(each));
    }
  }
}

TEST_P(killed_at_random, engines_give_the_model_to_the_next_node) {
  epoch_ = client_->broker().epoch;
  start_load();
  check();
  for (int i = 0; i != 3; ++i) {
    const std::string before = generation_;
    kill_node();
    ASSERT_TRUE(eventually([&] { return names() == std::vector<std::string>{"w"}; }, 20s));
    start_load();
    EXPECT_EQ(loads_.front().wait_for_result(), before);
    EXPECT_THAT(loads_.front().process.text(gpushm_testing::stream::out),
                testing::Not(testing::HasSubstr(" here")))
        << "read again";
    check();
    EXPECT_EQ(generation_, before);
  }
  end_all();
}

/// Between the reservation of the new model and its publication. A node that is lost takes back
/// what is published, or loads the new model as the first one.
TEST_P(killed_at_random, a_model_is_replaced_while_the_broker_dies) {
  for (const kind kind : {kind::broker, kind::node}) {
    SCOPED_TRACE(kind_names.at(static_cast<std::size_t>(kind)));
    start_load(false, true);
    participant& former = loads_.front();
    const std::string before = former.wait_for_result();
    ASSERT_THAT(before, testing::StartsWith("ready")) << former.process.output().all_output();
    model_ = 1 - model_;
    start_load(true, true);
    participant& next = loads_.back();
    ASSERT_TRUE(eventually([&] { return !next.result().empty() || load_now().is_midway; }, 20s));
    ASSERT_TRUE(eventually([&] { return kill(kind); }, 20s));
    const std::string result = next.wait_for_result();
    ASSERT_THAT(result, testing::StartsWith("ready")) << next.process.output().all_output();
    EXPECT_NE(result, before);
    const auto has_name = [&] {  // what the next node has is handed back after its start
      const auto participants = client_->list("w");
      return std::any_of(participants.begin(), participants.end(), [&](const segment_info& each) {
        return each.name == "w" && result == "ready " + std::to_string(each.generation);
      });
    };
    EXPECT_TRUE(eventually(has_name, 20s)) << result;
    for (participant& each : loads_) {
      each.process.write("compare\n");
      EXPECT_EQ(each.process.wait_for_line("whole|failed .*|.* has .*", 60s), "whole")
          << each.process.output().all_output();
      end(each);
    }
    loads_.clear();
    ASSERT_TRUE(eventually([&] { return names() == std::vector<std::string>{"w"}; }, 20s))
        << testing::PrintToString(names());
  }
  client_->remove("w");
}

/// Nothing is left that could end the timeline on which the other loads wait.
TEST_P(killed_at_random, loads_go_on_when_loader_and_node_die_at_once) {
  constexpr int wanted = 3;
  int waited = 0;
  for (int i = 0; i != 10 * wanted && waited != wanted; ++i) {  // some loads are complete too soon
    epoch_ = client_->broker().epoch;
    start_load(true);
    participant& loader = loads_.front();
    ASSERT_TRUE(eventually([&] { return !loader.result().empty() || load_now().is_midway; }, 20s));
    loader.process.kill(SIGSTOP);
    start_load();
    participant& waiter = loads_.back();
    ASSERT_TRUE(eventually(
        [&] {
          return !waiter.result().empty() ||
                 waiter.process.text(gpushm_testing::stream::out).find(" there") !=
                     std::string::npos;
        },
        20s));
    waited += waiter.result().empty() ? 1 : 0;
    // The node first, so that its broker cannot end what the loader signals.
    gpushm::base::signal_group(broker_->keeper().pid(), SIGKILL);
    loader.process.kill(SIGKILL);
    EXPECT_EQ(loader.process.wait_exit(20s), gpushm_testing::killed_by(SIGKILL));
    loads_.pop_front();
    kill_node();
    check();
    end_all();
  }
  EXPECT_EQ(waited, wanted);
}

INSTANTIATE_TEST_SUITE_P(on,
                         killed_at_random,
                         testing::Values(where::host, where::fake, where::real),
                         gpushm_tests::name_of);

}  // namespace
