// SPDX-License-Identifier: Apache-2.0
// A client whose threads work while it forks.
//   fork_hammer SOCKET ROUNDS
// Each child calls every public function of its copies, which must throw `forked` and not wait for
// a lock that will never be released, destroys the copies, and then uses the library itself:
// connects, creates, opens, imports. A child that hangs is killed by its alarm; the program then
// prints the call that it was in and exits with 1.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/standard_error_log.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::client;
using gpushm::segment;

constexpr int threads = 3;

/// The child's current call, readable by its parent.
struct shared_note {
  std::array<char, 64> doing{};
};

struct objects {
  std::string socket;
  std::optional<client> connected;
  std::optional<segment> created;
  std::optional<segment> opened;
  std::optional<gpushm::subscription> events;
  std::vector<std::byte> ticket;
};

client connect(const std::string& socket) {
  return client::connect({.socket_path = socket, .timeout = 5s});
}

/// Runs in threads of the parent all the time.
void work(objects& objects, const std::atomic<bool>& stop, int number) {
  const std::string own = "hammer/" + std::to_string(number);
  const std::array<std::string, 2> names{"hammer/made", own};
  for (int round = 0; !stop; ++round) {
    try {
      client& client = *objects.connected;
      auto own_segment = client.create(own, {.size_bytes = 4096, .device = "host"});
      own_segment.publish("metadata");
      (void)client.open_many(names);
      (void)client.open("hammer/made").metadata();
      (void)objects.created->metadata();
      (void)objects.opened->metadata();
      (void)client.list();
      (void)client.cache_stats();
      client.trim();
      (void)client.broker();
      (void)gpushm::export_segment(*objects.created);
      (void)gpushm::import_memory(objects.ticket);
      gpushm_tests::log_to_standard_error();
      if (round % 8 == number) {
        (void)connect(objects.socket).list();
      }
    } catch (const gpushm::error& why) {
      std::cerr << "work: " << why.what() << std::endl;
    }
  }
}

class child_calls {
 public:
  child_calls(objects& objects, shared_note& note) : of_(objects), note_(note) {}

  /// Returns 0 if every call had the expected result.
  int run() {
    throws_forked("create", [&] {
      (void)of_.connected->create("x", {.size_bytes = 4096, .device = "host"});
    });
    std::array<std::byte, 8> bytes{};
    throws_forked("share", [&] { (void)of_.connected->share("x", bytes.data(), bytes.size()); });
    throws_forked("open", [&] { (void)of_.connected->open("hammer/made"); });
    throws_forked("try_open", [&] { (void)of_.connected->try_open("hammer/made"); });
    const std::array<std::string, 1> names{"hammer/made"};
    throws_forked("open_many", [&] { (void)of_.connected->open_many(names); });
    throws_forked("list", [&] { (void)of_.connected->list(); });
    throws_forked("stat", [&] { (void)of_.connected->stat("hammer/made"); });
    throws_forked("remove", [&] { of_.connected->remove("hammer/made"); });
    throws_forked("subscribe", [&] { (void)of_.connected->subscribe(); });
    throws_forked("broker", [&] { (void)of_.connected->broker(); });
    throws_forked("cache_stats", [&] { (void)of_.connected->cache_stats(); });
    throws_forked("trim", [&] { of_.connected->trim(); });
    throws_forked("next", [&] { (void)of_.events->next(0ms); });
    throws_forked("metadata", [&] { (void)of_.created->metadata(); });
    throws_forked("publish", [&] { of_.created->publish(); });
    throws_forked("export_segment", [&] { (void)gpushm::export_segment(*of_.created); });
    // Functions that need no broker.
    works("segment", [&] {
      (void)of_.created->state();
      (void)of_.created->name();
      (void)of_.created->epoch();
      of_.opened->read(0, bytes);
      of_.created->write(0, bytes);
      of_.created->fill(std::byte{1});
    });
    works("destroy", [&] {
      of_.events.reset();
      of_.opened.reset();
      of_.created.reset();
      *of_.connected = connect(of_.socket);  // move assignment destroys the copy
      of_.connected.reset();
    });
    works("own", [&] {
      gpushm_tests::log_to_standard_error();
      auto own = connect(of_.socket);
      auto created =
          own.create("child/" + std::to_string(::getpid()), {.size_bytes = 4096, .device = "host"});
      created.publish();
      (void)own.open("hammer/made");
      (void)own.list();
      auto imported = gpushm::import_memory(of_.ticket);
      (void)imported.state();
    });
    return failed_ ? 1 : 0;
  }

 private:
  void begin(const char* operation) {
    std::strncpy(note_.doing.data(), operation, note_.doing.size() - 1);
  }
  template <typename Call>
  void throws_forked(const char* operation, Call&& call) {
    begin(operation);
    try {
      call();
      report_failure(operation, "no error");
    } catch (const gpushm::error& why) {
      if (why.code() != gpushm::errc::forked) {
        report_failure(operation, why.what());
      }
    }
  }
  template <typename Call>
  void works(const char* operation, Call&& call) {
    begin(operation);
    try {
      call();
    } catch (const std::exception& why) {
      report_failure(operation, why.what());
    }
  }
  void report_failure(const char* operation, const char* why) {
    std::cout << operation << ": " << why << std::endl;
    failed_ = true;
  }

  objects& of_;
  shared_note& note_;
  bool failed_ = false;
};

int hammer(const std::string& socket, int rounds, shared_note& note) {
  objects objects;
  objects.socket = socket;
  objects.connected = connect(socket);
  objects.created = objects.connected->create(
      "hammer/made",
      {.size_bytes = 4096, .device = "host", .lifetime = gpushm::lifetime::persistent});
  objects.created->publish("metadata");
  objects.opened = objects.connected->open("hammer/made");
  objects.events = objects.connected->subscribe("nothing");
  objects.ticket = gpushm::export_segment(*objects.created);
  std::atomic<bool> stop{false};
  std::vector<std::jthread> busy;
  for (int i = 0; i < threads; ++i) {
    busy.emplace_back([&, i] { work(objects, stop, i); });
  }
  int result = 0;
  for (int round = 0; round < rounds && result == 0; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      ::_exit(child_calls(objects, note).run());
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) {
      std::cout << "child " << round << " in " << note.doing.data() << ": "
                << (WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status)) : "failed")
                << std::endl;
      result = 1;
    }
  }
  stop = true;
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv, argv + argc);
    void* const page = ::mmap(
        nullptr, sizeof(shared_note), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return hammer(arguments.at(1), std::stoi(arguments.at(2)), *static_cast<shared_note*>(page));
  } catch (const std::exception& problem) {
    std::cerr << "fork_hammer: " << problem.what() << '\n';
    return 1;
  }
}
