// SPDX-License-Identifier: Apache-2.0
// gpushm-brokerd killed by SIGKILL between two of its instructions, while it handles one request of
// each kind: its thread runs to one of its system calls, and from there is stepped to an
// instruction. The request is carried out once, and the client sees nothing. The system calls are
// spread evenly over the request, the instructions are random. GPUSHM_BROKER_STEPS: how many kills
// for each kind.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/sanitizers.hpp"
#include "gpushm/gpushm.hpp"
#include "testing/broker_process/holdings.hpp"
#include "testing/brokerd/brokerd.hpp"
#include "testing/process/deadline.hpp"
#include "testing/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;

/// The thread with this name; 0: none.
pid_t thread_named(pid_t process, const std::string& name) {
  const std::string tasks = "/proc/" + std::to_string(process) + "/task";
  std::error_code failed;
  for (const auto& each : std::filesystem::directory_iterator(tasks, failed)) {
    std::string found;
    std::getline(std::ifstream(each.path() / "comm"), found);
    if (found == name) {
      return std::stoi(each.path().filename());
    }
  }
  return 0;
}

/// A thread under ptrace.
class stepped_thread {
 public:
  explicit stepped_thread(pid_t thread) : thread_(thread) {
    share_one_cpu();
    is_attached_ = ::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0 &&
                   ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0 && wait();
  }
  stepped_thread(const stepped_thread&) = delete;
  stepped_thread& operator=(const stepped_thread&) = delete;
  ~stepped_thread() {
    if (is_attached_) {
      ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
    }
  }
  [[nodiscard]] bool is_attached() const { return is_attached_; }

  /// Runs until it has stopped `count` times, or `ended` returns true. `how`: PTRACE_SINGLESTEP, it
  /// stops after each instruction; PTRACE_SYSCALL, at the begin and the end of each system call.
  /// Returns how often it has stopped.
  std::uint64_t run(__ptrace_request how, std::uint64_t count, const std::function<bool()>& ended) {
    // A system call can wait for the client, which has ended perhaps: then a signal ends waitpid.
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGUSR1, &action, nullptr);
    std::atomic<bool> has_ended = false;
    const std::jthread watch([&, tracer = ::pthread_self()](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        std::this_thread::sleep_for(2ms);
        if (ended()) {
          has_ended = true;
          ::pthread_kill(tracer, SIGUSR1);
        }
      }
    });
    for (std::uint64_t done = 0; done < count; ++done) {
      if (has_ended || ::ptrace(how, thread_, nullptr, nullptr) != 0) {
        return done;
      }
      int status = 0;
      while (::waitpid(thread_, &status, __WALL) < 0) {
        if (has_ended) {
          ::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr);
          static_cast<void>(wait());
          return done;
        }
      }
      if (!WIFSTOPPED(status)) {
        is_attached_ = false;
        return done;
      }
    }
    return count;
  }
  void kill(pid_t process) {
    ::kill(process, SIGKILL);
    static_cast<void>(wait());
    is_attached_ = false;
  }

 private:
  bool wait() {
    int status = 0;
    pid_t found = -1;
    while ((found = ::waitpid(thread_, &status, __WALL)) < 0 && errno == EINTR) {
    }
    return found == thread_ && WIFSTOPPED(status);
  }
  /// Each step changes between the two threads, which is faster on one CPU.
  void share_one_cpu() const {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(::sched_getcpu()), &one);
    ::sched_setaffinity(0, sizeof one, &one);
    ::sched_setaffinity(thread_, sizeof one, &one);
  }

  pid_t thread_ = 0;
  bool is_attached_ = false;
};

constexpr std::size_t segment_bytes = 8'192;
/// Chunks of a segment: more than fit into two packets.
constexpr std::size_t several_batches = 600;

/// Clients of a broker. Each part of a scenario may use what the parts before it have left here.
struct world {
  std::string socket;
  std::optional<gpushm::client> exporter;
  std::optional<gpushm::client> importer;
  std::vector<gpushm::segment> created;
  std::vector<gpushm::segment> opened;
  std::optional<gpushm::subscription> events;
  std::future<void> waiting;

  [[nodiscard]] gpushm::client connect() const {
    return gpushm::client::connect({.socket_path = socket});
  }
  void create(const std::string& name, bool published = true, std::size_t chunks = 1) {
    created.push_back(exporter->create(
        name,
        {.size_bytes = segment_bytes * chunks, .device = "host", .chunk_bytes = segment_bytes}));
    created.back().write(0, std::as_bytes(std::span(name)));
    if (published) {
      created.back().publish("about " + name);
    }
  }
  void open(const std::string& name) { opened.push_back(importer->open(name, {.timeout = 20s})); }
  /// Every opened segment has the contents of its name.
  void expect_contents() const {
    for (const gpushm::segment& each : opened) {
      const std::string name = each.name();
      std::string found(name.size(), ' ');
      each.read(0, std::as_writable_bytes(std::span(found)));
      EXPECT_EQ(found, name);
      EXPECT_EQ(each.state(), gpushm::segment_state::live);
    }
  }
  void expect_leases(const std::string& name, std::uint32_t leases) {
    EXPECT_TRUE(eventually([&] { return exporter->stat(name).leases == leases; }, 10s))
        << name << " has " << exporter->stat(name).leases;
  }
};

struct scenario {
  const char* name;
  std::function<void(world&)> before;
  std::function<void(world&)> traced;  ///< while the broker is stepped, in another thread
  std::function<void(world&)> after;
};

const std::array scenarios{
    scenario{"list",
             [](world& of) { of.create("a"); },
             [](world& of) { EXPECT_EQ(of.importer->list().size(), 1U); },
             [](world& of) { of.expect_leases("a", 1); }},
    scenario{"connect",
             [](world&) {},
             [](world& of) { EXPECT_TRUE(of.connect().list().empty()); },
             [](world&) {}},
    scenario{"create",
             [](world&) {},
             [](world& of) { of.create("a", false); },
             [](world& of) {
               EXPECT_FALSE(of.importer->try_open("a"));
               of.created.back().publish();
               of.open("a");
               of.expect_contents();
               of.expect_leases("a", 2);
             }},
    scenario{"create_in_batches",
             [](world&) {},
             [](world& of) { of.create("a", false, several_batches); },
             [](world& of) {
               of.created.back().publish();
               of.open("a");
               of.expect_contents();
             }},
    scenario{"open_in_batches",
             [](world& of) { of.create("a", true, several_batches); },
             [](world& of) { of.open("a"); },
             [](world& of) {
               of.expect_contents();
               of.expect_leases("a", 2);
             }},
    scenario{"publish",
             [](world& of) { of.create("a", false); },
             [](world& of) { of.created.back().publish(); },
             [](world& of) {
               of.open("a");
               of.expect_contents();
             }},
    scenario{"open",
             [](world& of) { of.create("a"); },
             [](world& of) { of.open("a"); },
             [](world& of) {
               of.expect_contents();
               of.expect_leases("a", 2);
             }},
    scenario{"open_that_waits",
             [](world& of) {
               of.create("a", false);
               of.waiting = std::async(std::launch::async, [&of] { of.open("a"); });
               EXPECT_TRUE(eventually([&] { return of.exporter->list().size() <= 1; }, 10s));
             },
             [](world& of) {
               of.created.back().publish();
               of.waiting.get();
             },
             [](world& of) {
               of.expect_contents();
               of.expect_leases("a", 2);
             }},
    scenario{"open_many",
             [](world& of) {
               for (const char* const each : {"a", "b", "c", "d"}) {
                 of.create(each);
               }
             },
             [](world& of) {
               const std::vector<std::string> names{"a", "b", "none", "c", "d"};
               int failed = 0;
               for (gpushm::open_result& each : of.importer->open_many(names)) {
                 if (each) {
                   of.opened.push_back(std::move(each.value()));
                 } else {
                   ++failed;
                 }
               }
               EXPECT_EQ(failed, 1);
               EXPECT_EQ(of.opened.size(), 4U);
             },
             [](world& of) {
               of.expect_contents();
               of.expect_leases("d", 2);
             }},
    scenario{"event",
             [](world& of) {
               of.create("a", false);
               of.events.emplace(of.importer->subscribe(""));
             },
             [](world& of) {
               of.created.back().publish();
               // The event, or a resync in its place; not both, and none is lost.
               const auto got = of.events->next(20s);
               ASSERT_TRUE(got);
               EXPECT_TRUE(got->kind == gpushm::event_kind::published ||
                           got->kind == gpushm::event_kind::resync);
             },
             [](world& of) {
               of.exporter->remove("a");
               std::optional<gpushm::event> got;
               do {  // resyncs may come first
                 got = of.events->next(20s);
               } while (got && got->kind == gpushm::event_kind::resync);
               ASSERT_TRUE(got);
               EXPECT_EQ(got->kind, gpushm::event_kind::removed);
               EXPECT_EQ(got->name, "a");
               EXPECT_EQ(of.created.back().state(), gpushm::segment_state::removed);
             }},
    scenario{"remove",
             [](world& of) {
               of.create("a");
               of.open("a");
             },
             [](world& of) { of.exporter->remove("a"); },
             [](world& of) {
               EXPECT_EQ(of.opened.back().state(), gpushm::segment_state::removed);
               EXPECT_FALSE(of.importer->try_open("a"));
               of.create("a");
               of.opened.clear();
               of.open("a");
               of.expect_contents();
             }},
    scenario{"release",
             [](world& of) {
               of.create("a");
               of.open("a");
             },
             [](world& of) {
               of.opened.clear();
               EXPECT_TRUE(eventually([&] { return of.exporter->stat("a").leases == 1; }, 20s));
             },
             [](world& of) {
               of.open("a");
               of.expect_contents();
               of.expect_leases("a", 2);
             }},
    scenario{"disconnect",
             [](world& of) {
               of.create("a");
               of.open("a");
             },
             [](world& of) {
               of.opened.clear();
               of.importer.reset();
               EXPECT_TRUE(eventually([&] { return of.exporter->stat("a").leases == 1; }, 20s));
             },
             [](world&) {}},
};

class stepped_broker : public testing::TestWithParam<scenario> {
 protected:
  void SetUp() override {
    EXPECT_TRUE(eventually(
        [&] {
          try {
            return gpushm::client::connect({.socket_path = socket_}).list().empty();
          } catch (const gpushm::error&) {
            return false;
          }
        },
        20s));
  }
  void TearDown() override {
    if (HasFailure()) {
      std::printf("%s\n", broker_.keeper().output().all_output().c_str());
    }
  }

  struct point {
    std::uint64_t stops = UINT64_MAX;  ///< at system calls; the largest: it is not killed
    std::uint64_t steps = 0;           ///< instructions after that
  };
  /// Returns the number of stops until the request was answered, or until it was killed.
  std::uint64_t run(const char* thread_name, const point& at) {
    world of;
    of.socket = socket_;
    of.exporter = of.connect();
    of.importer = of.connect();
    GetParam().before(of);
    const pid_t process = broker_.pid();
    std::optional<stepped_thread> thread;
    thread.emplace(thread_named(process, thread_name));
    if (!thread->is_attached()) {
      ADD_FAILURE() << "cannot trace the thread " << thread_name;
      return 0;
    }
    auto request = std::async(std::launch::async, [&] { GetParam().traced(of); });
    const auto ended = [&] { return request.wait_for(0s) == std::future_status::ready; };
    const std::uint64_t stops = thread->run(PTRACE_SYSCALL, at.stops, ended);
    if (stops == at.stops && thread->run(PTRACE_SINGLESTEP, at.steps, ended) == at.steps) {
      thread->kill(process);
      ++killed_;
    }
    thread.reset();
    EXPECT_EQ(request.wait_for(30s), std::future_status::ready);
    request.get();
    GetParam().after(of);
    return stops;
  }

  /// Kills at instructions of this thread that are spread over the request.
  void kill_everywhere(const char* thread_name) {
    const std::uint64_t whole = run(thread_name, {});
    ASSERT_GT(whole, 2U);
    // Of the domain without clients.
    const auto is_idle = [&] {
      return settled_descriptors()["anon_inode:[pidfd]"] == keepers_pidfds;
    };
    ASSERT_TRUE(eventually(is_idle, 20s));
    const auto kept = settled_descriptors();
    const int kills = number_of_kills();
    for (int i = 0; i < kills && !HasFailure(); ++i) {
      const point at{whole * static_cast<std::uint64_t>(i) / static_cast<std::uint64_t>(kills),
                     random_() % (std::uint64_t{1} << random_() % most_bits)};
      run(thread_name, at);
      EXPECT_TRUE(eventually([&] { return is_empty(); }, 20s)) << "segments are left";
      if (HasFailure()) {
        FAIL() << thread_name << " killed " << at.steps << " instructions after stop " << at.stops
               << " of " << whole;
      }
    }
    EXPECT_TRUE(eventually([&] { return settled_descriptors() == kept; }, 20s))
        << gpushm_testing::to_text(settled_descriptors())
        << " in the keeper, before: " << gpushm_testing::to_text(kept);
    EXPECT_GT(killed_, 0);
    std::printf("%s, %s: %llu stops, killed %d times\n",
                GetParam().name,
                thread_name,
                static_cast<unsigned long long>(whole),
                killed_);
  }

 private:
  /// Of its guard, and of its program.
  static constexpr std::size_t keepers_pidfds = 2;

  [[nodiscard]] static int number_of_kills() {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
    const char* const wanted = std::getenv("GPUSHM_BROKER_STEPS");
    return wanted != nullptr ? std::atoi(wanted) : gpushm::base::under_sanitizer ? 2 : 6;
  }
  [[nodiscard]] bool is_empty() const {
    return gpushm::client::connect({.socket_path = socket_}).list().empty();
  }
  [[nodiscard]] gpushm_testing::descriptor_counts settled_descriptors() {
    return gpushm_tests::settled_holdings_of({broker_.keeper().pid()}).descriptors;
  }

  /// An unoptimised broker executes up to 2^15 instructions between two system calls.
  static constexpr std::uint64_t most_bits = 16;

  int killed_ = 0;
  std::minstd_rand random_{1};
  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  gpushm_testing::brokerd broker_{run_dir_, {"--domain", "default"}};
};

TEST_P(stepped_broker, handles_each_request_once) {
  kill_everywhere("gpushm-broker");
}

INSTANTIATE_TEST_SUITE_P(of, stepped_broker, testing::ValuesIn(scenarios), [](const auto& chosen) {
  return std::string(chosen.param.name);
});

/// Packets with descriptors are read by another thread.
class stepped_receiver : public stepped_broker {};

TEST_P(stepped_receiver, receives_descriptors_once) {
  kill_everywhere("gpushm-receiver");
}

INSTANTIATE_TEST_SUITE_P(of,
                         stepped_receiver,
                         testing::Values(scenarios[1], scenarios[2], scenarios[3]),
                         [](const auto& chosen) { return std::string(chosen.param.name); });

}  // namespace
