// SPDX-License-Identifier: Apache-2.0
// gpushm-brokerd whose journal has no room for one of a request's records: it answers only once
// everything is recorded, and clients see the same as from a broker with room. Its limit of file
// sizes (RLIMIT_FSIZE) is set from outside; the journal is filled by requests so far that another
// record fails each time. Then there is room again, or it is killed while there is none, or at one
// of the system calls after that. GPUSHM_FULL_JOURNALS: how often for each kind of request.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/wire/messages.hpp"
#include "succession/journal/journal.hpp"
#include "succession/records/records.hpp"
#include "tests/brokerd/broker_scenarios.hpp"
#include "tests/brokerd/stepped_thread.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/spawn.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::base::unique_fd;
using gpushm_testing::eventually;
using gpushm_tests::scenario;
using gpushm_tests::stepped_thread;
using gpushm_tests::thread_named;
using gpushm_tests::world;

/// Records by kind.
using record_counts = std::map<std::uint32_t, std::size_t>;

/// The beginning of a journal's file (src/succession/journal/journal.cpp), and the file's size.
struct journal_extent {
  std::uint64_t magic = 0;
  std::uint64_t version = 0;
  std::uint64_t sequence = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t file_bytes = 0;
  friend bool operator==(const journal_extent&, const journal_extent&) = default;
};

unique_fd opened(const std::filesystem::path& file) {
  return unique_fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
}

journal_extent extent_of(int file) {
  journal_extent result;
  struct stat status {};
  EXPECT_EQ(::fstat(file, &status), 0);
  EXPECT_GT(::pread(file, &result, offsetof(journal_extent, file_bytes), 0), 0);
  result.file_bytes = static_cast<std::uint64_t>(status.st_size);
  return result;
}

/// Of a copy of the file, which must not change meanwhile.
record_counts records_in(int file) {
  struct stat status {};
  EXPECT_EQ(::fstat(file, &status), 0);
  unique_fd copy(::memfd_create("copy", MFD_CLOEXEC));
  EXPECT_EQ(::sendfile(copy.get(), file, nullptr, static_cast<std::size_t>(status.st_size)),
            status.st_size);
  record_counts result;
  gpushm::journal::journal::open(std::move(copy))
      .for_each([&](const gpushm::journal::record_key& key, std::span<const std::byte>) {
        ++result[key.kind];
      });
  return result;
}

class journaled_broker : public testing::Test {
 protected:
  void SetUp() override {
    EXPECT_TRUE(eventually([&] { return can_connect(); }, 20s));
    if (!find_journal()) {
      GTEST_SKIP() << "this process may not read the journal in the keeper's descriptors";
    }
    if (!gpushm_testing::find_in_path("prlimit")) {
      GTEST_SKIP() << "no prlimit (util-linux)";
    }
    filler_ = gpushm_testing::patient_client(socket_);
    create_and_remove(0);  // a domain that has had no segment has one record less
    quiet_filler_ = gpushm_testing::raw_session::greeted(socket_);
    // On a busy machine the broker may still record what the above has left.
    std::int64_t longest_cost = 0;
    ASSERT_TRUE(eventually(
        [&] {
          least_cost_ = cost_of_subscription(0);
          longest_cost = cost_of_subscription(longest_prefix);
          return std::abs(longest_cost - (least_cost_ + longest_prefix)) <= 16;
        },
        20s))
        << longest_cost << " and " << least_cost_;
  }
  void TearDown() override {
    if (HasFailure()) {
      std::printf("%s\n", broker_.keeper().output().all_output().c_str());
    }
  }

  /// Segments in the domain's ledger: rows of 512 bytes behind the first one, which begin with a
  /// generation.
  [[nodiscard]] std::size_t rows_of_ledger() const {
    std::ifstream file(run_dir_ + "/locks/d.default.segments", std::ios::binary);
    std::array<char, 512> row{};
    std::size_t result = 0;
    for (bool is_first = true; file.read(row.data(), row.size()); is_first = false) {
      std::uint64_t generation = 0;
      std::memcpy(&generation, row.data(), sizeof generation);
      result += !is_first && generation != 0 ? 1 : 0;
    }
    return result;
  }
  [[nodiscard]] bool can_connect() const {
    try {
      return gpushm_testing::patient_client(socket_).list().empty();
    } catch (const gpushm::error&) {
      return false;
    }
  }

  /// The current journal, in the keeper; empty: there is none that can be read. One reading of the
  /// keeper's descriptors can miss it, when another one has just taken its place.
  [[nodiscard]] unique_fd find_journal() {
    unique_fd result;
    static_cast<void>(eventually(
        [&] {
          result = read_journal();
          return static_cast<bool>(result);
        },
        1s));
    return result;
  }
  [[nodiscard]] unique_fd read_journal() {
    unique_fd result;
    std::error_code failed;
    const std::string directory = "/proc/" + std::to_string(broker_.keeper().pid()) + "/fd";
    for (const auto& each : std::filesystem::directory_iterator(directory, failed)) {
      const auto target = std::filesystem::read_symlink(each.path(), failed).string();
      if (target.find("memfd:gpushm-journal") == std::string::npos) {
        continue;
      }
      unique_fd found = opened(each.path());
      if (found &&
          (!result || extent_of(result.get()).sequence < extent_of(found.get()).sequence)) {
        result = std::move(found);
      }
    }
    return result;
  }
  /// Once it has not changed for a while: a broker records after it has answered.
  [[nodiscard]] unique_fd settled_journal() {
    unique_fd result = find_journal();
    journal_extent last;
    EXPECT_TRUE(eventually(
        [&] {
          std::this_thread::sleep_for(3ms);
          result = find_journal();
          const bool is_same =
              std::exchange(last, extent_of(result.get())) == extent_of(result.get());
          return is_same && !is_freeing();
        },
        20s));
    return result;
  }
  /// What was removed is not closed yet: its records will be erased.
  [[nodiscard]] bool is_freeing() {
    try {
      constexpr auto freeing = static_cast<std::uint32_t>(gpushm::records::kind::freeing);
      return records_in(find_journal().get()).count(freeing) != 0;
    } catch (const gpushm::error&) {  // it has changed while it was copied
      return true;
    }
  }
  [[nodiscard]] journal_extent settled_extent() { return extent_of(settled_journal().get()); }
  /// Bytes of further records before the file must grow: room to erase each is reserved.
  [[nodiscard]] std::int64_t room() {
    constexpr std::uint64_t bytes_to_erase = 32;
    const unique_fd file = settled_journal();
    std::uint64_t reserved = bytes_to_erase;
    for (const auto& [kind, count] : records_in(file.get())) {
      reserved += count * bytes_to_erase;
    }
    const journal_extent extent = extent_of(file.get());
    return static_cast<std::int64_t>(extent.file_bytes - extent.used_bytes) -
           static_cast<std::int64_t>(reserved);
  }

  /// Requests that other clients do not see: `times` subscriptions with a prefix of this length.
  void subscribe(std::int64_t times, std::int64_t prefix_bytes) {
    // No segment has it, which would be listed.
    const std::string prefix = '~' + std::string(static_cast<std::size_t>(prefix_bytes), '~');
    for (std::int64_t i = 0; i < times; ++i) {
      const auto subscribed = quiet_filler_->request(gpushm::wire::subscribe{prefix});
      ASSERT_NE(gpushm_testing::body_of<gpushm::wire::subscribed>(subscribed), nullptr);
      const auto ended = quiet_filler_->request(gpushm::wire::unsubscribe{subscribed.message->id});
      ASSERT_NE(gpushm_testing::body_of<gpushm::wire::done>(ended), nullptr);
    }
  }
  /// The bytes of one.
  std::int64_t cost_of_subscription(std::int64_t prefix_bytes) {
    constexpr std::int64_t times = 10;
    const auto before = settled_extent();
    subscribe(times, prefix_bytes);
    const auto after = settled_extent();
    return static_cast<std::int64_t>(after.used_bytes - before.used_bytes) / times;
  }
  /// Fills the journal of a broker that is idle, up to a little less than what a scenario needs.
  void fill_coarsely() {
    constexpr std::int64_t left = 120'000;  // a few requests fill what is left precisely
    constexpr std::int64_t most = gpushm::max_metadata_bytes;
    for (std::int64_t gap = room() - left; gap > 0; gap = room() - left) {
      create_and_remove(static_cast<std::size_t>(std::min(gap, most)));
    }
  }
  void create_and_remove(std::size_t metadata_bytes) {
    auto created = filler_->create("filler", {.size_bytes = 4096, .device = "host"});
    created.publish(std::vector<std::byte>(metadata_bytes));
    filler_->remove("filler");
  }
  /// Leaves room for about this many bytes.
  void fill_to(std::int64_t bytes) {
    constexpr std::int64_t last = 3;
    constexpr std::int64_t not_certain = 16;  // one of as many: some cost a little more
    for (int i = 0; i < 8; ++i) {
      const std::int64_t gap = room() - bytes;
      const std::int64_t times = gap / least_cost_;
      if (times > last) {
        subscribe(times - std::max(last, times / not_certain), 0);
        continue;
      }
      if (times > 0) {
        subscribe(times, std::min(gap / times - least_cost_, longest_prefix));
      }
      return;
    }
  }

  /// Of this broker, not of a successor. By a process of its uid: even root may lack the
  /// capability.
  void limit_files(const std::string& bytes) const {
    gpushm_testing::spawn_options command;
    command.argv = {
        "prlimit", "--pid", std::to_string(broker_.pid()), "--fsize=" + bytes + ":unlimited"};
    if (::geteuid() == 0) {
      command.uid = gpushm_testing::brokerd_uid();
      command.gid = gpushm_testing::brokerd_uid();
    }
    const auto ran = gpushm_testing::run_program(command);
    EXPECT_TRUE(ran.status.success()) << ran.err;
  }
  [[nodiscard]] std::size_t failed_puts() {
    child_output().read_some(gpushm_testing::clock::now());
    const std::string& text = child_output().text(gpushm_testing::stream::err);
    std::size_t result = 0;
    constexpr std::string_view line = "File too large";
    for (std::size_t at = text.find(line); at != std::string::npos; at = text.find(line, at + 1)) {
      ++result;
    }
    return result;
  }
  [[nodiscard]] gpushm_testing::child_output& child_output() { return broker_.keeper().output(); }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  gpushm_testing::brokerd broker_{run_dir_, {"--domain", "default"}};
  std::optional<gpushm::client> filler_;
  std::optional<gpushm_testing::raw_session> quiet_filler_;
  static constexpr std::int64_t longest_prefix = 200;
  std::int64_t least_cost_ = 0;  ///< of a subscription
};

class broker_with_full_journal : public journaled_broker,
                                 public testing::WithParamInterface<scenario> {
 protected:
  enum class then { has_room, is_killed, is_killed_when_it_has_room };
  /// The scenario with so much room for records; nothing: with enough. Returns whether it was not
  /// enough.
  bool run(std::optional<std::int64_t> bytes, then next_step) {
    if (bytes) {
      fill_coarsely();
    }
    world world;
    world.socket = socket_;
    world.exporter = gpushm_testing::patient_client(socket_);
    world.importer = gpushm_testing::patient_client(socket_);
    GetParam().before(world);
    const std::size_t failed_before = failed_puts();
    if (bytes) {
      fill_to(*bytes);
      limit_files("0");
    }
    const auto before = settled_extent();
    auto request = std::async(std::launch::async, [&] { GetParam().traced(world); });
    const auto has_ended = [&] { return request.wait_for(0s) == std::future_status::ready; };
    const auto has_failed = [&] { return failed_puts() != failed_before; };
    EXPECT_TRUE(eventually([&] { return has_ended() || has_failed(); }, 60s));
    const bool was_full = bytes && has_failed();
    if (was_full) {
      std::this_thread::sleep_for(25ms);  // it tries again, without success
    }
    if (was_full && next_step == then::is_killed) {
      EXPECT_TRUE(broker_.kill());
      request.get();
      GetParam().after(world);
      return true;
    }
    std::optional<stepped_thread> thread;
    if (was_full && next_step == then::is_killed_when_it_has_room) {
      thread.emplace(thread_named(broker_.pid(), "gpushm-broker"));
      EXPECT_TRUE(thread->is_attached());
    }
    if (bytes) {
      limit_files("unlimited");
    }
    if (thread) {
      const pid_t process = broker_.pid();
      // Stops at system calls: those that make the new journal, and some after it.
      constexpr std::uint64_t most_stops = 40;
      const std::uint64_t stops = random_() % most_stops;
      if (thread->run(PTRACE_SYSCALL, stops, has_ended) == stops) {
        thread->kill(process);
      }
      thread.reset();
      request.get();
      GetParam().after(world);
      return true;
    }
    EXPECT_EQ(request.wait_for(gpushm_testing::scaled_timeout(30s)), std::future_status::ready);
    request.get();
    if (!bytes) {
      bytes_ = static_cast<std::int64_t>(settled_extent().used_bytes - before.used_bytes);
      records_ = settled_records();
    } else {
      EXPECT_TRUE(eventually([&] { return settled_records() == records_; }, 20s))
          << "records: " << testing::PrintToString(settled_records())
          << ", of a broker with room: " << testing::PrintToString(records_);
      EXPECT_TRUE(broker_.kill());
    }
    GetParam().after(world);
    return was_full;
  }

  [[nodiscard]] static int number_of_runs() {
    return gpushm_testing::number_from_environment("GPUSHM_FULL_JOURNALS", 3);
  }

  /// Those that a successor must have.
  [[nodiscard]] record_counts settled_records() {
    auto result = records_in(settled_journal().get());
    // Whether a lane that has carried nothing has a record does not matter.
    result.erase(static_cast<std::uint32_t>(gpushm::records::kind::lane));
    if (GetParam().name == std::string("stopped_client")) {  // how much is unread is not certain
      result.erase(static_cast<std::uint32_t>(gpushm::records::kind::packet));
      result.erase(static_cast<std::uint32_t>(gpushm::records::kind::handled));
    }
    return result;
  }

  std::int64_t bytes_ = 0;  ///< recorded by the scenario
  std::minstd_rand random_{
      static_cast<std::minstd_rand::result_type>(std::hash<std::string>()(GetParam().name))};
  record_counts records_;  ///< when it has ended
};

TEST_P(broker_with_full_journal, replies_once_everything_is_recorded) {
  run(std::nullopt, then::has_room);
  const int runs = number_of_runs();
  int full = 0;
  for (int i = 0; i < runs && !HasFailure(); ++i) {
    const std::int64_t room = bytes_ * (2 * i + 1) / (2 * runs);
    constexpr std::array directory{
        then::is_killed_when_it_has_room, then::is_killed, then::has_room};
    full += run(room, directory.at(static_cast<std::size_t>(i) % directory.size())) ? 1 : 0;
    EXPECT_TRUE(eventually([&] { return can_connect(); }, 20s)) << "segments are left";
    if (HasFailure()) {
      FAIL() << "with room for " << room << " bytes of " << bytes_;
    }
  }
  EXPECT_GT(full, 0);
  std::printf("%s: %lld bytes of records, full %d times\n",
              GetParam().name,
              static_cast<long long>(bytes_),
              full);
}

INSTANTIATE_TEST_SUITE_P(of,
                         broker_with_full_journal,
                         testing::ValuesIn(gpushm_tests::scenarios()),
                         [](const auto& chosen) { return std::string(chosen.param.name); });

// A turn opens 32 of them; the names are recorded by the first one only.
TEST_F(journaled_broker, records_the_names_of_an_open_many_once) {
  gpushm_testing::raw_session member = gpushm_testing::raw_session::greeted(socket_);
  gpushm::wire::open_many request;
  constexpr std::size_t count = 700;
  constexpr std::size_t longest = 255;
  for (std::size_t i = 0; i != count; ++i) {
    std::string name = std::to_string(i);
    name.resize(longest, 'n');
    request.names.push_back(std::move(name));
  }
  const auto before = settled_extent();
  ASSERT_TRUE(member.send(request));
  for (std::size_t i = 0; i != count; ++i) {
    const auto reply = member.receive(20s);
    ASSERT_NE(gpushm_testing::body_of<gpushm::wire::failure>(reply), nullptr);
  }
  const auto after = settled_extent();
  EXPECT_LT(after.used_bytes - before.used_bytes, 10 * count * longest);
  EXPECT_EQ(after.sequence, before.sequence);
}

// The end of a session with many waiting opens changes more objects than a turn does.
TEST_F(journaled_broker, is_continued_after_too_many_changes_to_record_each) {
  auto exporter = gpushm_testing::patient_client(socket_);
  auto kept = exporter.create("kept", {.size_bytes = 4096, .device = "host"});
  kept.publish();
  gpushm_testing::raw_session waiting = gpushm_testing::raw_session::greeted(socket_);
  constexpr std::size_t ending = 20;  // segments that end with the session
  for (std::size_t i = 0; i != ending; ++i) {
    const auto reply =
        waiting.request(gpushm_testing::reserve_exported("ends/" + std::to_string(i)));
    ASSERT_NE(gpushm_testing::body_of<gpushm::wire::reserved>(reply), nullptr);
  }
  EXPECT_EQ(rows_of_ledger(), 1 + ending);
  constexpr std::size_t most = 4'096;
  for (std::size_t asked = 0; asked < most;) {
    gpushm::wire::open_many request;
    request.timeout_ms = 60'000;
    while (request.names.size() < gpushm::wire::max_batch && asked < most) {
      request.names.push_back("none/" + std::to_string(asked++));
    }
    ASSERT_TRUE(waiting.send(request));
    for (std::size_t i = 0; i < request.names.size(); ++i) {
      const auto reply = waiting.receive();
      ASSERT_NE(gpushm_testing::body_of<gpushm::wire::waiting>(reply), nullptr);
    }
  }
  for (int i = 0; i < 3; ++i) {
    static_cast<void>(waiting.request(gpushm::wire::subscribe{}));
  }
  const auto before = settled_extent();
  constexpr auto waiting_record = static_cast<std::uint32_t>(gpushm::core::record_kind::waiting);
  EXPECT_EQ(records_in(settled_journal().get())[waiting_record], most);
  waiting.hang_up();
  // Into the same journal, which had room.
  EXPECT_TRUE(eventually(
      [&] { return records_in(settled_journal().get()).count(waiting_record) == 0; }, 20s));
  EXPECT_EQ(settled_extent().sequence, before.sequence);
  EXPECT_TRUE(eventually([&] { return rows_of_ledger() == 1; }, 20s)) << rows_of_ledger();
  EXPECT_TRUE(broker_.kill());
  EXPECT_EQ(exporter.list().size(), 1U);
  EXPECT_EQ(kept.state(), gpushm::segment_state::live);
  EXPECT_EQ(gpushm_testing::patient_client(socket_).open("kept").generation(), kept.generation());
}

}  // namespace
