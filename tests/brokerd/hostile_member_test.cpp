// SPDX-License-Identifier: Apache-2.0
// Members that would keep a killed broker from having a successor.
#include "tests/brokerd/hostile_member.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/messages.hpp"
#include "succession/journal/journal.hpp"
#include "succession/recorder/step.hpp"
#include "succession/records/records.hpp"
#include "tests/brokerd/stepped_thread.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/forked_process.hpp"
#include "tests/support/raw_session/raw_session.hpp"
#include "tests/support/stuck_file/stuck_file.hpp"

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using gpushm_testing::eventually;
using gpushm_tests::brokerd_with_hostile_member;

/// Packets behind the one that ends the session are dropped by calls that the program may make.
TEST_F(brokerd_with_hostile_member, is_not_ended_by_packets_that_it_does_not_read) {
  const pid_t before = broker_.pid();
  const std::array<std::byte, 4> invalid{};
  for (int member = 0; member != 200; ++member) {
    const auto socket = gpushm::transport::connect_packet_socket(socket_, 5s);
    for (int packet = 0; packet != 40; ++packet) {
      static_cast<void>(gpushm::transport::send_packet(socket.get(), invalid, {}));
    }
  }
  static_cast<void>(connect().list(""));
  EXPECT_EQ(broker_.pid(), before) << log();
}

TEST_F(brokerd_with_hostile_member, is_replaced_although_a_thread_is_blocked_in_close) {
  if (const auto why = gpushm_testing::why_no_stuck_file()) {
    GTEST_SKIP() << *why;
  }
  gpushm::client user = connect();
  gpushm::segment created = user.create(
      "w", {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
  created.publish();
  const pid_t blocked = broker_.pid();
  {
    const gpushm_testing::stuck_file file;
    const auto member = gpushm::transport::connect_packet_socket(socket_, 5s);
    const std::array<std::byte, 4> invalid{};
    const std::array<int, 1> descriptors{file.get()};
    ASSERT_EQ(gpushm::transport::send_packet(member.get(), invalid, descriptors),
              gpushm::transport::send_result::sent);
    ASSERT_TRUE(eventually([&] { return file.is_being_closed(); }, 10s));
    gpushm::base::signal_process(blocked, SIGKILL);
    EXPECT_TRUE(eventually(
        [&] { return broker_.pid() != 0 && broker_.pid() != blocked && connect().try_open("w"); },
        10s))
        << log();
    EXPECT_EQ(created.state(), gpushm::segment_state::live);
    EXPECT_TRUE(fs::exists("/proc/" + std::to_string(blocked))) << "nothing was blocked";
  }
  EXPECT_TRUE(eventually([&] { return !fs::exists("/proc/" + std::to_string(blocked)); }, 10s))
      << "the keeper has not reaped it";
}

/// What a member can do with the state table that it was given, under this uid: a word of those
/// that it succeeds in. `gives_up_root`: without the capabilities of root.
std::string attempts_on(int table, uid_t uid, bool gives_up_root) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const gpushm::base::unique_fd reader(ends[0]);
  gpushm::base::unique_fd writer(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    bool is_member = ::setresgid(uid, uid, uid) == 0 && ::setresuid(uid, uid, uid) == 0;
    if (gives_up_root) {
      // NOLINTNEXTLINE(modernize-avoid-c-arrays): as capset expects
      __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
      __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
      is_member = is_member && ::syscall(SYS_capset, &header, &none[0]) == 0;
    }
    std::string done = is_member ? "" : "(cannot be that member) ";
    const std::string path = "/proc/self/fd/" + std::to_string(table);
    const int again = ::open(path.c_str(), O_RDWR | O_CLOEXEC);  // may succeed
    for (const int file : {table, again}) {
      const char byte = 1;
      void* const read_only = ::mmap(nullptr, 4'096, PROT_READ, MAP_SHARED, file, 0);
      if (::mmap(nullptr, 4'096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) != MAP_FAILED ||
          (read_only != MAP_FAILED && (::mprotect(read_only, 4'096, PROT_READ | PROT_WRITE) == 0 ||
                                       ::madvise(read_only, 4'096, MADV_REMOVE) == 0))) {
        done += "maps ";
      }
      if (::pwrite(file, &byte, 1, 0) != -1 ||
          ::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4'096) == 0) {
        done += "writes ";
      }
      if (::ftruncate(file, 0) == 0 || ::fallocate(file, 0, 0, 1 << 24) == 0) {
        done += "resizes ";
      }
    }
    [[maybe_unused]] const auto written = ::write(writer.get(), done.data(), done.size());
    ::_exit(0);
  }
  writer.reset();
  std::array<char, 200> text{};
  const ssize_t size = ::read(reader.get(), text.data(), text.size());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

TEST_F(brokerd_with_hostile_member, gives_its_state_table_to_readers_only) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to become members of several uids";
  }
  const auto expect_nothing = [](int table) {
    ASSERT_NE(table, -1);
    EXPECT_EQ(attempts_on(table, 12'345, false), "");
    EXPECT_EQ(attempts_on(table, 0, true), "") << "root of a restricted container";
    EXPECT_EQ(attempts_on(table, gpushm_testing::brokerd_uid(), false), "");
    EXPECT_EQ(attempts_on(table, 0, false), "");
  };
  auto session = gpushm_testing::raw_session::greeted(socket_);
  expect_nothing(session.state_table());
  // Of the broker that has died, and of its successor.
  const gpushm::base::unique_fd before(::fcntl(session.state_table(), F_DUPFD_CLOEXEC, 0));
  ASSERT_TRUE(broker_.kill());
  expect_nothing(before.get());
  static_cast<void>(session.receive(500ms));  // takes the table
  expect_nothing(session.state_table());
  expect_nothing(gpushm_testing::raw_session::greeted(socket_).state_table());
}

/// A copy of a journal, and the death notes of the journal itself. Its broker has that open, too:
/// `journal::open` would give back pages that the broker is about to write.
class kept_journal {
 public:
  /// Throws if the journal has changed meanwhile.
  explicit kept_journal(int file)
      : page_(gpushm::base::map_file("read the death notes", file, page_bytes, true)),
        copy_(gpushm::journal::journal::open(copy_of(file))) {}
  [[nodiscard]] gpushm::journal::death_notes& notes() const {
    return *reinterpret_cast<gpushm::journal::death_notes*>(
        static_cast<std::byte*>(page_.get().address) + notes_offset);
  }
  [[nodiscard]] std::optional<std::span<const std::byte>> find(
      const gpushm::journal::record_key& key) const {
    return copy_.find(key);
  }

 private:
  static gpushm::base::unique_fd copy_of(int file) {
    struct stat status {};
    gpushm::base::unique_fd result(::memfd_create("copy", MFD_CLOEXEC));
    if (::fstat(file, &status) != 0 ||
        ::sendfile(result.get(), file, nullptr, static_cast<std::size_t>(status.st_size)) !=
            status.st_size) {
      throw std::runtime_error("the journal cannot be copied");
    }
    return result;
  }
  static constexpr std::size_t page_bytes = 4'096;
  static constexpr std::size_t notes_offset = 128;  // asserted in journal.cpp
  gpushm::base::unique_mapping page_;
  gpushm::journal::journal copy_;
};

/// Of the domain "default", from the keeper's copies. Nothing: this reading of the keeper's
/// descriptors has missed it, because another one has just taken its place, or it has changed.
std::optional<kept_journal> read_journal(pid_t keeper) {
  namespace records = gpushm::records;
  for (const auto& each : fs::directory_iterator("/proc/" + std::to_string(keeper) + "/fd")) {
    std::error_code failed;
    if (fs::read_symlink(each.path(), failed).string().find("gpushm-journal") ==
        std::string::npos) {
      continue;
    }
    const gpushm::base::unique_fd file(::open(each.path().c_str(), O_RDWR | O_CLOEXEC));
    try {
      kept_journal journal(file.get());
      const auto bytes = journal.find(records::key_of(records::kind::broker));
      if (bytes &&
          std::get<records::broker_record>(records::decode(records::kind::broker, *bytes)).domain ==
              "default") {
        return journal;
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): asked for again
    }
  }
  return std::nullopt;
}

kept_journal journal_of(pid_t keeper) {
  std::optional<kept_journal> journal;
  if (!eventually(
          [&] {
            journal = read_journal(keeper);
            return journal.has_value();
          },
          20s)) {
    throw std::runtime_error("the keeper has no journal of this domain");
  }
  return std::move(*journal);
}

void stop_all_threads(pid_t process) {
  gpushm::base::signal_process(process, SIGSTOP);
  const auto is_stopped = [](const auto& task) {
    return gpushm_testing::state_in(task.path()) == 'T';
  };
  if (!eventually(
          [&] {
            const std::filesystem::directory_iterator tasks("/proc/" + std::to_string(process) +
                                                            "/task");
            return std::all_of(begin(tasks), end(tasks), is_stopped);
          },
          20s)) {
    throw std::runtime_error("the process has a thread that does not stop");
  }
}

/// As if a request of the session had ended two brokers already, and the third handled it now.
TEST_F(brokerd_with_hostile_member, drops_a_session_after_three_deaths_in_its_requests) {
  gpushm::client first = connect();
  gpushm::client second = connect();
  gpushm::segment kept = second.create("w", {.size_bytes = 4'096, .device = "host"});
  kept.publish();
  {
    auto journal = journal_of(broker_.keeper().pid());
    stop_all_threads(broker_.pid());  // its own step would end with other notes
    // Numbers of sessions begin with 1.
    journal.notes().blamed = journal.notes().handling = 1;
    journal.notes().deaths = 2;
    ASSERT_TRUE(broker_.kill());
  }
  EXPECT_TRUE(connect().try_open("w"));
  EXPECT_TRUE(eventually([&] { return second.stat("w").leases == 1; }, 10s));
  // The request that finds the connection ended fails, if it was sent before; the next one
  // connects.
  EXPECT_TRUE(eventually(
      [&] {
        try {
          return first.list().size() == 1U;
        } catch (const gpushm::error& gone) {
          EXPECT_EQ(gone.code(), gpushm::errc::broker_gone);
          return false;
        }
      },
      20s));
  EXPECT_NE(
      broker_.keeper().wait_for_line(
          "several brokers in a row have ended in a step for it", 10s, gpushm_testing::stream::err),
      "");
  // Its new session is not suspected.
  ASSERT_TRUE(broker_.kill());
  EXPECT_EQ(first.list().size(), 1U);
  EXPECT_EQ(second.stat("w").leases, 1U);
}

/// The largest number of a session so far.
gpushm::core::session_id last_session(pid_t keeper) {
  namespace core = gpushm::core;
  const kept_journal journal = journal_of(keeper);
  const auto bytes = journal.find(gpushm::records::key_of({core::record_kind::numbers}));
  const auto value = bytes ? gpushm::records::decode(core::record_kind::numbers, *bytes)
                           : core::saved_value(core::saved_numbers{});
  return std::get<core::saved_numbers>(value).next_session - 1;
}

/// Others wait behind them in the backlog.
TEST_F(brokerd_with_hostile_member, makes_no_session_of_a_connection_that_is_closed_already) {
  const gpushm::client first = connect();
  const gpushm::core::session_id before = last_session(broker_.keeper().pid());
  const pid_t broker = broker_.pid();
  gpushm::base::signal_process(broker, SIGSTOP);
  constexpr int flood = 100;  // fits into each backlog
  for (int i = 0; i != flood; ++i) {
    const auto closed = gpushm::transport::connect_packet_socket(socket_, 5s);
  }
  gpushm::base::signal_process(broker, SIGCONT);
  const gpushm::client second = connect();
  EXPECT_LT(last_session(broker_.keeper().pid()), before + flood / 2);
}

/// Killed while it queues the events about one change, which takes many turns.
TEST_F(brokerd_with_hostile_member, leaves_no_subscriber_without_its_event) {
  constexpr int members = 40;
  constexpr int subscriptions = 64;
  std::list<std::pair<gpushm_testing::raw_session, std::set<std::uint64_t>>> subscribers;
  for (int i = 0; i != members; ++i) {
    auto& [member, waits_for] = subscribers.emplace_back(
        gpushm_testing::raw_session::greeted(socket_), std::set<std::uint64_t>());
    for (int each = 0; each != subscriptions; ++each) {
      const auto begun = member.request(gpushm::wire::subscribe{});
      ASSERT_NE(gpushm_testing::body_of<gpushm::wire::subscribed>(begun), nullptr);
      waits_for.insert(begun.message->id);
    }
  }
  auto cause = gpushm_testing::raw_session::greeted(socket_);
  ASSERT_NE(gpushm_testing::publish_segment(cause, gpushm_testing::reserve_pages("w", 1)), 0U);
  ASSERT_TRUE(broker_.kill());
  for (auto& [member, waits_for] : subscribers) {
    while (!waits_for.empty()) {  // for the event, or a resync
      const auto got = member.receive(gpushm_testing::scaled_timeout(20s));
      ASSERT_TRUE(got.message) << waits_for.size() << " have none";
      ASSERT_NE(gpushm_testing::body_of<gpushm::wire::event>(got), nullptr);
      waits_for.erase(got.message->id);
    }
  }
}

/// More changes than may be left when a request is received.
TEST_F(brokerd_with_hostile_member, replies_to_all_requests_while_events_are_left) {
  constexpr int subscribers = 20;
  constexpr int subscriptions = 64;
  std::list<gpushm_testing::raw_session> silent;
  for (int i = 0; i != subscribers; ++i) {
    auto& member = silent.emplace_back(gpushm_testing::raw_session::greeted(socket_));
    for (int each = 0; each != subscriptions; ++each) {
      const auto begun = member.request(gpushm::wire::subscribe{});
      ASSERT_NE(gpushm_testing::body_of<gpushm::wire::subscribed>(begun), nullptr);
    }
  }
  auto creator = gpushm_testing::raw_session::greeted(socket_);
  ASSERT_NE(gpushm_testing::publish_segment(creator, gpushm_testing::reserve_pages("w", 1)), 0U);
  constexpr int readers = 20;
  constexpr int requests = 3;
  std::list<gpushm_testing::raw_session> reading;
  for (int i = 0; i != readers; ++i) {
    auto& reader = reading.emplace_back(gpushm_testing::raw_session::greeted(socket_));
    for (int each = 0; each != requests; ++each) {
      ASSERT_TRUE(reader.send(gpushm::wire::open{"w", 0, 0}));
    }
  }
  for (auto& reader : reading) {
    for (int each = 0; each != requests; ++each) {
      const auto got = reader.receive(gpushm_testing::scaled_timeout(30s));
      EXPECT_NE(gpushm_testing::body_of<gpushm::wire::opened>(got), nullptr);
    }
  }
}

/// A flood of connections sends none.
TEST_F(brokerd_with_hostile_member, has_no_event_lane_of_a_connection_without_hello) {
  const auto kept = [&] {
    const auto subscribers = gpushm_testing::count_descriptors(broker_.keeper().pid());
    return gpushm_testing::total(subscribers, "socket");
  };
  const gpushm::client first = connect();
  const std::size_t before = kept();
  constexpr std::size_t many = 30;
  std::vector<gpushm::base::unique_fd> silent;
  for (std::size_t i = 0; i != many; ++i) {
    silent.push_back(gpushm::transport::connect_packet_socket(socket_, 20s));
  }
  const gpushm::client last = connect();  // has its turns behind theirs
  ASSERT_TRUE(eventually([&] { return kept() >= before + many; }, 20s));
  EXPECT_LT(kept(), before + 2 * many);
}

TEST_F(brokerd_with_hostile_member, gets_a_session_number_that_none_before_had) {
  namespace core = gpushm::core;
  const auto has_session = [&](core::session_id number) {
    const kept_journal journal = journal_of(broker_.keeper().pid());
    return journal.find(gpushm::records::key_of({core::record_kind::session, number})).has_value();
  };
  const auto last_number = [&] { return last_session(broker_.keeper().pid()); };
  core::session_id before = 0;
  {
    const gpushm::client first = connect();
    const gpushm::client second = connect();
    before = last_number();
    EXPECT_TRUE(has_session(before));
  }
  EXPECT_TRUE(eventually([&] { return !has_session(before); }, 20s));
  ASSERT_TRUE(broker_.kill());
  const gpushm::client third = connect();
  EXPECT_GT(last_number(), before);
  EXPECT_TRUE(has_session(last_number()));
}

/// Deaths in a step of this kind, or in one in which brokers before it have died already.
class brokerd_killed_in_steps : public brokerd_with_hostile_member {
 protected:
  using step_kind = gpushm::succession::step_kind;
  static constexpr std::uint32_t names = 100;

  /// It is killed in a step of this kind, the `entry`-th one, in which `deaths` brokers before it
  /// have died. Others are a request with many names, and an arriving connection.
  void kill_in(step_kind kind, std::uint32_t deaths, std::uint32_t timeout_ms, int entry = 1) {
    using gpushm::succession::step_note;
    constexpr std::uint64_t most_calls = 3'000;
    auto journal = journal_of(broker_.keeper().pid());
    hostile_.emplace(gpushm_testing::raw_session::greeted(socket_));
    const gpushm::core::session_id number = last_session(broker_.keeper().pid());
    gpushm_tests::stepped_thread thread(gpushm_tests::thread_named(broker_.pid(), "gpushm-broker"));
    ASSERT_TRUE(thread.is_attached());
    gpushm::wire::open_many request;
    request.timeout_ms = timeout_ms;
    for (std::uint32_t i = 0; i != names; ++i) {
      request.names.push_back("none/" + std::to_string(i));
    }
    ASSERT_TRUE(hostile_->send(request));
    const auto newcomer = gpushm::transport::connect_packet_socket(socket_, 20s);
    int entries = 0;
    bool was_it = false;
    ASSERT_TRUE(thread.run_until(
        [&] {
          const std::uint64_t now = journal.notes().handling;
          const gpushm::core::session_id session = gpushm::succession::session_in(now);
          const bool is_it = now >> step_note::session_bits == static_cast<std::uint64_t>(kind) &&
                             now != 0 && (session == 0 || session == number);
          entries += is_it && !was_it ? 1 : 0;
          was_it = is_it;
          if (!is_it || entries != entry) {
            return false;
          }
          journal.notes().blamed = now;
          journal.notes().deaths = deaths;
          return true;
        },
        most_calls));
    const pid_t before = broker_.pid();
    thread.kill(before);
    ASSERT_TRUE(eventually([&] { return broker_.pid() != 0 && broker_.pid() != before; }, 20s));
  }

  std::optional<gpushm_testing::raw_session> hostile_;
};

/// Steps that no packet begins: the rest of an open_many, and a deadline. Each would end every
/// broker in turn, if the third one, or the thirtieth, did not give up what it is for.
TEST_F(brokerd_killed_in_steps, names_what_it_does_when_it_dies) {
  gpushm::client good = connect();
  gpushm::segment kept = good.create("w", {.size_bytes = 4'096, .device = "host"});
  kept.publish();
  const auto is_leased = [&] {  // a connection may end while it asks
    try {
      return good.stat("w").leases == 1;
    } catch (const gpushm::error&) {
      return false;
    }
  };
  kill_in(step_kind::open_rest, 1, 60'000, 2);
  std::set<std::uint32_t> replied;
  for (std::uint32_t i = 0; i != names; ++i) {
    const auto reply = hostile_->receive(20s);
    const auto* const waits = gpushm_testing::body_of<gpushm::wire::waiting>(reply);
    ASSERT_NE(waits, nullptr);
    EXPECT_TRUE(replied.insert(waits->index).second) << "name " << waits->index << " twice";
  }
  hostile_.reset();
  EXPECT_TRUE(eventually(is_leased, 20s));
  EXPECT_EQ(log().find("several brokers"), std::string::npos);
  kill_in(step_kind::open_rest, 2, 60'000);
  hostile_.reset();
  EXPECT_TRUE(eventually(is_leased, 20s));
  EXPECT_NE(
      broker_.keeper().wait_for_line(
          "several brokers in a row have ended in a step for it", 20s, gpushm_testing::stream::err),
      "");
  const auto epoch = connect().broker().epoch;
  kill_in(step_kind::deadlines, 2, 1);
  hostile_.reset();
  EXPECT_EQ(connect().broker().epoch, epoch) << "a domain is given up later than a session";
  kill_in(step_kind::deadlines, 29, 1);
  hostile_.reset();
  EXPECT_NE(connect().broker().epoch, epoch);
  EXPECT_TRUE(eventually(is_leased, 20s)) << "handed back";
}

/// What is done before a packet is a request, or a connection a session.
TEST_F(brokerd_killed_in_steps, names_also_what_comes_before_requests) {
  gpushm::client good = connect();
  gpushm::segment kept = good.create("w", {.size_bytes = 4'096, .device = "host"});
  kept.publish();
  const auto epoch = good.broker().epoch;
  kill_in(step_kind::receive, 2, 60'000);
  EXPECT_TRUE(hostile_->closed_within(gpushm_testing::scaled_timeout(20s)));
  EXPECT_TRUE(connect().try_open("w"));
  kill_in(step_kind::accept, 2, 60'000);
  EXPECT_EQ(connect().broker().epoch, epoch) << "a domain is given up later than a session";
  EXPECT_TRUE(connect().try_open("w"));
  kill_in(step_kind::accept, 29, 60'000);
  EXPECT_NE(connect().broker().epoch, epoch);
  EXPECT_TRUE(eventually([&] { return connect().try_open("w").has_value(); }, 20s))
      << "handed back";
}

/// As if no broker could read it.
TEST_F(brokerd_with_hostile_member, gives_up_a_journal_that_no_broker_can_continue) {
  gpushm::client user = connect();
  gpushm::segment lost = user.create("w", {.size_bytes = 4'096, .device = "host"});
  lost.publish();
  const auto epoch = user.broker().epoch;
  gpushm::client neighbour = gpushm::client::connect({.socket_path = run_dir_ + "/d/other/socket"});
  gpushm::segment kept = neighbour.create("w", {.size_bytes = 4'096, .device = "host"});
  kept.publish();
  {
    auto journal = journal_of(broker_.keeper().pid());
    journal.notes().failed_starts = 29;
    ASSERT_TRUE(broker_.kill());
    EXPECT_TRUE(connect().try_open("w"));
    EXPECT_EQ(journal.notes().failed_starts, 0U) << "it was continued";
  }
  {
    auto journal = journal_of(broker_.keeper().pid());
    journal.notes().failed_starts = 1'000;
    ASSERT_TRUE(broker_.kill());
  }
  EXPECT_NE(connect().broker().epoch, epoch);
  // It is handed back, as after the death of broker and keeper. Its own state is live also as long
  // as its process has not noticed that they have died.
  EXPECT_TRUE(eventually(
      [&] { return connect().try_open("w") && lost.state() == gpushm::segment_state::live; }, 10s));
  EXPECT_EQ(connect().stat("w").generation, lost.generation());
  EXPECT_EQ(neighbour.stat("w").leases, 1U) << "another domain is lost, too";
  EXPECT_EQ(kept.state(), gpushm::segment_state::live);
}

/// As a keeper with too low a limit.
TEST_F(brokerd_with_hostile_member, loses_only_the_segment_that_the_keeper_has_lost) {
  gpushm::client user = connect();
  const auto create = [&](const std::string& name) {
    gpushm::segment created = user.create(
        name, {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    created.publish();
    return created;
  };
  const gpushm::segment lost = create("lost");
  const gpushm::segment kept = create("kept");
  gpushm::client reader = connect();
  const gpushm::segment opened = reader.open("lost");
  std::uint64_t number = 0;
  {
    const auto journal = journal_of(broker_.keeper().pid());
    const auto entry =
        journal.find(gpushm::records::key_of(gpushm::records::kind::files, lost.generation()));
    ASSERT_TRUE(entry);
    number = std::get<gpushm::records::files_record>(
                 gpushm::records::decode(gpushm::records::kind::files, *entry))
                 .chunks.at(0);
  }
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number, 36).ptr;
  gpushm_testing::spawn_options remove;
  remove.argv = {"/usr/bin/python3",  // not one in a directory that only this user can read
                 "-c",
                 "import socket, sys\n"
                 "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(\n"
                 "    ('FDSTOREREMOVE=1\\nFDNAME=d1.' + sys.argv[2]).encode(), sys.argv[1])",
                 run_dir_ + "/keeper/notify",
                 std::string(digits.data(), end)};
  if (::geteuid() == 0) {
    remove.uid = remove.gid = gpushm_testing::brokerd_uid();
  }
  const auto removed = gpushm_testing::run_program(remove);
  ASSERT_EQ(removed.status, gpushm_testing::exited(0)) << removed.err;
  ASSERT_TRUE(broker_.kill());
  EXPECT_TRUE(connect().try_open("kept"));
  EXPECT_FALSE(connect().try_open("lost"));
  EXPECT_EQ(opened.state(), gpushm::segment_state::removed);
  EXPECT_EQ(kept.state(), gpushm::segment_state::live);
  // The name can be used again, and nothing of it comes back.
  const gpushm::segment again = create("lost");
  ASSERT_TRUE(broker_.kill());
  EXPECT_EQ(again.state(), gpushm::segment_state::live);
  EXPECT_EQ(connect().list().size(), 2U);
}

TEST(brokerd_with_small_keeper, acknowledges_only_what_has_room_there) {
  const gpushm_testing::temp_dir directory(0755);
  const std::string run_dir = directory / "run";
  const std::string socket = run_dir + "/d/default/socket";
  gpushm_testing::make_run_directory(run_dir);
  auto keeper = gpushm_testing::child::start(gpushm_testing::brokerd_command(
      run_dir, {"--domain", "default,other"}, {"--max-descriptors", "60"}));
  ASSERT_TRUE(eventually([&] { return fs::exists(socket); }, 20s));
  gpushm::client user = gpushm_testing::patient_client(socket);
  std::vector<gpushm::segment> subscribers;
  std::optional<gpushm::errc> refused;
  while (subscribers.size() != 80 && !refused) {
    try {
      gpushm::segment created = user.create(
          "w/" + std::to_string(subscribers.size()),
          {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
      created.publish();
      subscribers.push_back(std::move(created));
    } catch (const gpushm::error& why) {
      refused = why.code();
    }
  }
  EXPECT_EQ(refused, gpushm::errc::too_many_descriptors);
  EXPECT_GE(subscribers.size(), 16U);
  for (int kills = 0; kills != 2; ++kills) {
    ASSERT_TRUE(gpushm_testing::kill_program_kept_by(keeper.pid()));
    EXPECT_EQ(user.list().size(), subscribers.size()) << keeper.output().all_output();
    for (const gpushm::segment& each : subscribers) {
      EXPECT_EQ(each.state(), gpushm::segment_state::live);
    }
  }
}

/// Linux counts them for the uid of broker and keeper: more than their limit of open files, and
/// neither the keeper nor the threads that receive descriptors get any.
class brokerd_with_few_open_files : public brokerd_with_hostile_member {
 protected:
  brokerd_with_few_open_files() : brokerd_with_hostile_member("default", 2'048) {}

  /// Sessions that ask for 100 descriptors `opens` times each, and do not read.
  void add_silent(int sessions, int opens, bool is_dropped) {
    auto owner = gpushm_testing::raw_session::greeted(socket_);
    gpushm_testing::publish_segment(owner, gpushm_testing::reserve_pages("many", 100));
    for (int member = 0; member != sessions; ++member) {
      auto& session = silent_.emplace_back(gpushm_testing::raw_session::greeted(socket_));
      for (int i = 0; i != opens; ++i) {
        EXPECT_TRUE(session.send(gpushm::wire::open{"many", 0, 0}));
      }
      if (is_dropped) {
        const std::array<std::byte, 4> invalid{};
        session.send_bytes(invalid);
      }
    }
    for (const auto& each : silent_) {
      EXPECT_TRUE(
          eventually([&] { return gpushm::transport::unread_bytes(each.socket()) == 0; }, 20s));
    }
  }
  void expect_service() {
    try {
      gpushm::client user = connect();
      for (int i = 0; i != 3; ++i) {
        gpushm::segment created =
            user.create("w/" + std::to_string(i), {.size_bytes = 4'096, .device = "host"});
        created.publish();
        EXPECT_EQ(user.list("w/").size(), 1U);
      }
    } catch (const gpushm::error& why) {
      ADD_FAILURE() << why.what();
    }
    auto& output = broker_.keeper().output();
    output.read_to_end(std::chrono::steady_clock::now() + 200ms);
    EXPECT_EQ(output.all_output().find("did not read its notifications"), std::string::npos);
  }

 private:
  std::list<gpushm_testing::raw_session> silent_;
};

TEST_F(brokerd_with_few_open_files, goes_on_although_members_leave_descriptors_unread) {
  add_silent(8, 10, false);
  expect_service();
}

/// What has been sent to them stays in flight when the broker closes their connections.
TEST_F(brokerd_with_few_open_files, goes_on_although_dropped_members_leave_descriptors_unread) {
  add_silent(40, 1, true);
  expect_service();
}

/// All of them together would be more than the limit.
TEST_F(brokerd_with_few_open_files, counts_what_its_predecessors_have_sent) {
  for (int kills = 0; kills != 8; ++kills) {
    add_silent(3, 1, false);
    ASSERT_TRUE(broker_.kill());
  }
  expect_service();
}

/// Outside of a container nothing else ends the broker then.
TEST_F(brokerd_with_hostile_member, serves_clients_without_its_keeper) {
  gpushm::client before = connect();
  static_cast<void>(before.list());
  const pid_t broker = broker_.pid();
  broker_.keeper().kill(SIGSTOP);  // or it would start another worker
  gpushm::base::signal_process(gpushm_testing::worker_of_keeper(broker_.keeper().pid()), SIGKILL);
  broker_.keeper().kill(SIGKILL);
  static_cast<void>(broker_.keeper().wait_exit(20s));
  try {
    gpushm::client after = connect();
    for (gpushm::client* each : {&before, &after}) {
      gpushm::segment created = each->create("w", {.size_bytes = 4'096, .device = "host"});
      created.publish();
      EXPECT_TRUE(connect().try_open("w"));
      each->remove("w");
    }
    EXPECT_EQ(after.list().size(), 0U);
  } catch (const gpushm::error& why) {
    ADD_FAILURE() << why.what();
  }
  gpushm::base::signal_process(broker, SIGKILL);  // no child of this process's any longer
}

/// Creates a segment of one chunk, and returns the chunk's number in the keeper.
gpushm::records::descriptor_id number_of_chunk(gpushm_testing::raw_session& member,
                                               const std::string& name,
                                               pid_t keeper) {
  const auto generation =
      gpushm_testing::publish_segment(member, gpushm_testing::reserve_pages(name, 1));
  const auto journal = journal_of(keeper);
  const auto found =
      journal.find(gpushm::records::key_of(gpushm::records::kind::files, generation));
  return std::get<gpushm::records::files_record>(
             gpushm::records::decode(gpushm::records::kind::files, found.value()))
      .chunks.at(0);
}

class brokerd_with_few_connections : public gpushm_tests::brokerd_with_foreign_member {
 protected:
  brokerd_with_few_connections() : brokerd_with_foreign_member("default", 0, "64") {}
};

/// Connections that stay have a bound by uid (or container), also under a successor.
TEST_F(brokerd_with_few_connections, leaves_some_for_another_uid) {
  if (const auto tenant = gpushm_testing::one_tenant_here()) {
    GTEST_SKIP() << "all members are one tenant here: " << *tenant;
  }
  std::list<gpushm_testing::raw_session> subscribers;
  const auto fill = [&] {
    try {
      while (subscribers.size() != 64) {
        subscribers.push_back(as_hostile(
            [](const auto& socket) { return gpushm_testing::raw_session::greeted(socket); }));
      }
    } catch (const gpushm_testing::harness_error&) {  // refused
      EXPECT_EQ(::seteuid(0), 0);
      fs::current_path("/");
    }
  };
  fill();
  EXPECT_GT(subscribers.size(), 32U);
  EXPECT_LE(subscribers.size(), 56U);
  const std::size_t most = subscribers.size();
  for (int kills = 0; kills != 2; ++kills) {
    std::vector<gpushm::client> others;
    while (others.size() != 4) {
      others.push_back(connect());
      EXPECT_EQ(others.back().list().size(), 0U);
    }
    ASSERT_TRUE(broker_.kill());
    fill();
    EXPECT_LE(subscribers.size(), most);
  }
}

/// Nothing is charged for it, so a flood of them would fill the keeper, which then loses what
/// others store. The numbers of descriptors in the keeper follow one another.
TEST_F(brokerd_with_few_connections, stores_no_connection_that_it_refuses) {
  if (const auto tenant = gpushm_testing::one_tenant_here()) {
    GTEST_SKIP() << "all members are one tenant here: " << *tenant;
  }
  auto member = gpushm_testing::raw_session::greeted(socket_);
  std::list<gpushm_testing::raw_session> subscribers;
  const auto is_refused = [&] {
    try {
      subscribers.push_back(as_hostile(
          [](const auto& socket) { return gpushm_testing::raw_session::greeted(socket); }));
      return false;
    } catch (const gpushm_testing::harness_error&) {
      EXPECT_EQ(::seteuid(0), 0);
      fs::current_path("/");
      return true;
    }
  };
  while (!is_refused()) {
    ASSERT_LT(subscribers.size(), 64U);
  }
  const auto first = number_of_chunk(member, "first", broker_.keeper().pid());
  for (int i = 0; i != 20; ++i) {
    ASSERT_TRUE(is_refused());
  }
  EXPECT_LT(number_of_chunk(member, "second", broker_.keeper().pid()), first + 10);
}

/// The numbers of descriptors in the keeper follow one another.
TEST_F(brokerd_with_hostile_member, takes_no_descriptors_that_its_requests_do_not_take) {
  namespace wire = gpushm::wire;
  auto member = gpushm_testing::raw_session::greeted(socket_);
  const auto number_of_next = [&](const std::string& name) {
    return number_of_chunk(member, name, broker_.keeper().pid());
  };
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const gpushm::base::unique_fd reader(ends[0]);
  const gpushm::base::unique_fd writer(ends[1]);
  const std::vector<int> many(250, reader.get());
  const auto reserved = member.request(gpushm_testing::reserve_pages("reserved", 250));
  const auto* const grant = gpushm_testing::body_of<wire::reserved>(reserved);
  ASSERT_NE(grant, nullptr);
  const auto first = number_of_next("first");
  const std::vector<std::uint64_t> sizes(250, 4'096);
  const std::vector<wire::body> requests{
      wire::list{},
      wire::attach{grant->generation, 0, {4'096}},     // another number
      wire::attach{grant->generation, 1, sizes},       // not the next chunks
      wire::attach{grant->generation + 1, 0, sizes}};  // not reserved
  for (const wire::body& each : requests) {
    const auto reply = member.request(each, many);
    EXPECT_TRUE(gpushm_testing::failure_of(reply)) << reply.closed;
  }
  EXPECT_LT(number_of_next("second"), first + 10) << "they were given to the keeper";
}

}  // namespace
