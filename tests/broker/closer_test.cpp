// SPDX-License-Identifier: Apache-2.0
// The keeper's copies of closed files, with a keeper that is slow or reports problems: none stays,
// and none is free before it is gone; and of journals: one always does.
#include "broker/hub/closer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "base/files/unique_fd.hpp"
#include "gpushm/client.hpp"
#include "succession/descriptor_store/descriptor_store.hpp"
#include "succession/journal/journal.hpp"
#include "succession/recorder/descriptor_shelf.hpp"
#include "succession/recorder/recorder.hpp"
#include "succession/recorder/takeover_state.hpp"
#include "succession/records/records.hpp"
#include "tests/broker/hub_world.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/full_queue.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::broker_detail {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;

/// Receives notifications as gpushm-keeper does, but only while it is `reading`, and reports a
/// problem of another program in each barrier if it `is_full`.
class fake_keeper {
 public:
  explicit fake_keeper(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(&address.sun_path[0], path.data(), path.size());
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pollfd entry{reading ? socket_.get() : -1, POLLIN, 0};
        if (::poll(&entry, 1, 5) > 0) {
          const std::lock_guard lock(turn_);
          if (reading) {
            receive();
          }
        }
      }
    });
  }

  /// It reads nothing from here on, also nothing that it has seen.
  void stop_reading() {
    const std::lock_guard lock(turn_);
    reading = false;
  }

  [[nodiscard]] std::size_t removed() const {
    const std::lock_guard lock(mutex_);
    return removed_.size();
  }

  [[nodiscard]] std::multiset<std::string> journals() const {
    const std::lock_guard lock(mutex_);
    return journals_;
  }

  std::atomic<bool> reading = true;
  std::atomic<bool> is_full = false;

 private:
  void receive() {
    std::array<char, 512> text{};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    iovec part{text.data(), text.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t size = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    if (size < 0) {
      return;
    }
    int number = -1;
    if (const cmsghdr* const entry = CMSG_FIRSTHDR(&header); entry != nullptr) {
      std::memcpy(&number, CMSG_DATA(entry), sizeof number);
    }
    const base::unique_fd carried(number);
    const std::string_view got(text.data(), static_cast<std::size_t>(size));
    const std::lock_guard lock(mutex_);
    const auto at = got.find("FDNAME=");
    const std::string name(at == std::string_view::npos ? "" : got.substr(at));
    const bool is_journal = name.find('+') != std::string::npos;
    if (got.starts_with("BARRIER=1")) {
      const bool is_right = is_journal ? journals_.count(name) == 1 : !is_full;
      if (!is_right) {
        EXPECT_EQ(::write(carried.get(), "full", 4), 4);
      }
    } else if (got.starts_with("FDSTORE=1") && is_journal && !is_full) {
      journals_.insert(name);
    } else if (got.starts_with("FDSTOREREMOVE=1")) {
      journals_.erase(name);
      removed_.insert(name);
    }
  }

  base::unique_fd socket_;
  std::mutex turn_;
  mutable std::mutex mutex_;
  std::set<std::string> removed_;
  std::multiset<std::string> journals_;
  std::jthread thread_;
};

succession::descriptor_shelf shelf_at(const std::string& path,
                                      std::span<const records::descriptor_id> stored = {}) {
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): no thread reads it
  auto store = keeper::descriptor_store::from_environment();
  return {std::move(store).value(), "d1", stored};
}

class kept_files : public testing::Test {
 protected:
  kept_files() {
    gpushm::set_log_sink([this](gpushm::log_level, std::string_view) { ++logged_; });
  }
  ~kept_files() override { gpushm::set_log_sink(nullptr); }
  kept_files(const kept_files&) = delete;
  kept_files& operator=(const kept_files&) = delete;

  /// More than the keeper's queue has room for.
  static std::size_t more_than_its_queue() {
    std::size_t length = 512;
    std::ifstream("/proc/sys/net/unix/max_dgram_qlen") >> length;
    return length * 2 + 10;
  }

  void fill_its_queue() const {
    ASSERT_EQ(gpushm_testing::fill_queue_of(directory_ / "notify"), EAGAIN);
  }

  /// `count` files, which the keeper has.
  std::vector<succession::kept_fd> files(std::size_t count) {
    std::vector<succession::kept_fd> result;
    const int file = ::eventfd(0, EFD_CLOEXEC);
    const base::unique_fd owned(file);
    for (std::size_t i = 0; i < count; ++i) {
      result.emplace_back(base::guarded_fd(), shelf_.put(file));
    }
    return result;
  }

  gpushm_testing::temp_dir directory_;
  std::atomic<int> logged_ = 0;
  fake_keeper keeper_{directory_ / "notify"};
  succession::descriptor_shelf shelf_ = shelf_at(directory_ / "notify");
};

/// The problem is that of another descriptor, and is reported to another one.
TEST_F(kept_files, are_all_removed_from_a_keeper_that_is_full) {
  closer closes(shelf_.another());
  const std::size_t count = more_than_its_queue();
  auto kept = files(count);
  keeper_.is_full = true;
  closes.close(std::move(kept));
  closes.flush();
  EXPECT_TRUE(eventually([&] { return keeper_.removed() == count; }, 30s))
      << keeper_.removed() << " of " << count;
}

TEST_F(kept_files, are_all_removed_although_no_descriptor_was_left_meanwhile) {
  if (base::under_sanitizer) {
    GTEST_SKIP() << "a sanitizer needs descriptors to look at an exception";
  }
  closer closes(shelf_.another());
  const std::size_t count = more_than_its_queue();
  auto kept = files(count);
  // With no descriptor left, the closer cannot wait for the keeper, whose queue is full.
  keeper_.reading = false;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  closes.close(std::move(kept));
  closes.flush();
  const bool has_failed = eventually([&] { return logged_ != 0; }, 30s);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  keeper_.reading = true;
  ASSERT_TRUE(has_failed);
  EXPECT_TRUE(eventually([&] { return keeper_.removed() == count; }, 30s))
      << keeper_.removed() << " of " << count;
}

/// A journal that has refused a change is replaced. Without one of the two, the domain would be
/// lost.
TEST_F(kept_files, a_journal_is_removed_only_when_the_keeper_has_the_next_one) {
  journal::journal log = journal::journal::create(std::uint64_t{1} << 20U);
  records::encoder encoder;
  log.put(records::key_of(records::kind::broker), encoder.encode(records::broker_record{}));
  log.commit();
  shelf_.put_confirmed_journal(log.descriptor(), log.sequence());
  ASSERT_TRUE(eventually([&] { return keeper_.journals().size() == 1; }, 30s));
  const auto first = keeper_.journals();
  succession::recorder records_of(std::move(log), shelf_.another(), 1);
  records::packet_record packet;
  packet.bytes.resize(64UL << 10U);
  for (std::uint64_t i = 1; i != 1'000 && !records_of.is_behind(); ++i) {
    records_of.put(records::key_of(records::kind::packet, i), packet);
  }
  ASSERT_TRUE(records_of.is_behind());
  keeper_.is_full = true;
  int rewrites = 0;
  const auto catch_up = [&] { records_of.catch_up([&] { ++rewrites; }); };
  std::chrono::milliseconds longest_pause{0};
  for (int i = 0; i != 6; ++i) {
    catch_up();
    longest_pause = std::max(longest_pause, records_of.retry_pause());
    EXPECT_TRUE(records_of.is_behind());
    // The keeper has processed everything of the attempt.
    shelf_.remove_and_wait({});
    EXPECT_EQ(keeper_.journals(), first);
  }
  EXPECT_GT(longest_pause, 10ms) << "after its refusals; that of an offer without a reply is short";
  keeper_.is_full = false;
  // It does not wait for a keeper that does not read: that reads only after the call.
  keeper_.reading = false;
  catch_up();
  EXPECT_TRUE(records_of.is_behind());
  EXPECT_EQ(rewrites, 1) << "the same journal is offered again";
  keeper_.reading = true;
  EXPECT_TRUE(eventually(
      [&] {
        catch_up();
        return !records_of.is_behind();
      },
      30s));
  EXPECT_EQ(rewrites, 2) << "once more, with what has changed meanwhile";
  EXPECT_TRUE(eventually(
      [&] {
        records_of.commit();
        return !records_of.has_to_forget();
      },
      30s));
  EXPECT_TRUE(eventually(
      [&] { return keeper_.journals().size() == 1 && keeper_.journals() != first; }, 30s));
}

/// Neither the call nor what comes after it waits for the keeper.
TEST_F(kept_files, are_refused_only_by_a_keeper_that_has_not_read_for_long) {
  journal::journal log = journal::journal::create(std::uint64_t{1} << 20U);
  succession::recorder records_of(std::move(log), shelf_.another(), 1);
  succession::kept_fd file(base::guarded_fd(base::unique_fd(::eventfd(0, EFD_CLOEXEC))));
  records_of.keep(file);
  EXPECT_NE(file.id, 0U);
  keeper_.reading = false;
  fill_its_queue();
  bool was_busy = false;
  std::optional<errc> refused;
  EXPECT_TRUE(eventually(
      [&] {
        try {
          static_cast<void>(records_of.keep(file.get()));
        } catch (const succession::keeper_busy&) {
          was_busy = true;
        } catch (const error& why) {
          refused = why.code();
        }
        return refused.has_value();
      },
      30s));
  EXPECT_TRUE(was_busy);
  EXPECT_EQ(refused, errc::timed_out);
  keeper_.reading = true;
  records_of.forget(file.id);
  EXPECT_TRUE(eventually(
      [&] {
        records_of.commit();
        return !records_of.has_to_forget();
      },
      30s));
  EXPECT_FALSE(records_of.waits_for_keeper());
}

/// A closer that closes only what a keeper has removed that reads.
struct closer_with_keeper {
  gpushm_testing::temp_dir directory;
  fake_keeper keeper{directory / "notify"};
  succession::descriptor_shelf shelf = shelf_at(directory / "notify");
  std::shared_ptr<closer> closes = std::make_shared<closer>(shelf.another());
};

/// A keeper that reads again closes all that has waited at once.
TEST(closer_with_much_to_close, returns_charges_in_parts) {
  closer_with_keeper keeper;
  constexpr std::size_t at_once = 500;
  constexpr std::size_t count = 3 * at_once;
  for (std::size_t given = 0; given != count; given += at_once) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    const base::unique_fd reader(ends[0]);
    const base::unique_fd writer(ends[1]);
    for (std::size_t i = 0; i != at_once; ++i) {
      std::vector<base::unique_fd> one;
      one.emplace_back(::fcntl(writer.get(), F_DUPFD_CLOEXEC, 0));
      keeper.closes->close(succession::not_kept(base::guard_all(std::move(one))),
                           std::make_shared<core::charges>(),
                           given + i + 1);
    }
    keeper.closes->flush();
    ASSERT_EQ(::dup3(reader.get(), writer.get(), O_CLOEXEC), writer.get());  // closes it
    pollfd closed{reader.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&closed, 1, 30'000), 1) << "not all are closed";
  }
  std::vector<gpushm::generation> collected;
  const auto collect = [&] {
    keeper.closes->collect([&](gpushm::generation each) { collected.push_back(each); });
  };
  collect();
  EXPECT_EQ(collected.size(), 1'024U);
  EXPECT_TRUE(eventually(
      [&] {
        collect();
        return collected.size() == count;
      },
      30s));
  EXPECT_TRUE(std::is_sorted(collected.begin(), collected.end()));
  EXPECT_FALSE(keeper.closes->is_freeing());
}

class freed_memory : protected closer_with_keeper, public testing_world::hub_test {
 protected:
  explicit freed_memory(std::uint64_t quota = 4096) : hub_test({.quota_bytes = quota}, closes) {}

  void make_and_free(core::session_id session) {
    free_unread(session, make(session, "one"));
    EXPECT_EQ(hub_.domain().segment_count(), 0U);
  }
  /// Not before the keeper reads again.
  void free_unread(core::session_id session, gpushm::generation generation) {
    keeper.stop_reading();
    send_request(session, wire::release{generation, 1});
  }
  /// Returns false if it is to be received again.
  bool ask_for_another(core::session_id session, std::uint64_t bytes = 4096) {
    const auto packet =
        wire::encode({++request_, wire::reserve{"two", bytes, bytes, {}, 1, backend::host}});
    return hub_.receive(*hub_.find(session), packet, {}, now_);
  }
  [[nodiscard]] std::uint64_t used(core::resource resource) const {
    return hub_.domain().budget().used(resource);
  }
};

TEST_F(freed_memory, is_charged_until_it_is_closed_and_a_reserve_waits_for_it) {
  const auto session = greet();
  const std::uint64_t descriptors_before = used(core::resource::descriptors);
  make_and_free(session);
  EXPECT_EQ(used(core::resource::host_bytes), 4096U);
  EXPECT_EQ(used(core::resource::descriptors), descriptors_before + 1);
  EXPECT_EQ(used(core::resource::segments), 0U) << "it is gone, its memory is not";
  EXPECT_FALSE(ask_for_another(session));
  EXPECT_FALSE(ask_for_another(session));
  EXPECT_TRUE(take(session).empty());
  const closer::waiting waits = hub_.waits_to_close();
  EXPECT_EQ(waits.segments, 1U);
  EXPECT_EQ(waits.bytes, 4096U);
  EXPECT_LE(waits.since, std::chrono::steady_clock::now());
  EXPECT_GT(waits.since, std::chrono::steady_clock::time_point{});
  keeper.reading = true;
  EXPECT_TRUE(eventually([&] { return ask_for_another(session); }, 30s));
  EXPECT_EQ(hub_.waits_to_close().segments, 0U);
  expect<wire::reserved>(take(session));
  EXPECT_EQ(used(core::resource::host_bytes), 4096U);
  EXPECT_EQ(used(core::resource::descriptors), descriptors_before + 1);
  EXPECT_FALSE(closes->is_freeing());
  EXPECT_EQ(closes->freeing_bytes(), 0U);
}

TEST_F(freed_memory, is_not_waited_for_without_end) {
  const auto session = greet();
  make_and_free(session);
  EXPECT_FALSE(ask_for_another(session));
  now_ += requests::freeing_patience;
  EXPECT_TRUE(ask_for_another(session));
  const std::string refused = failure(take(session));
  EXPECT_NE(refused.find("quota_exceeded: "), std::string::npos) << refused;
  EXPECT_NE(refused.find("of removed segments, 4 KiB are not free yet (try again in some seconds"),
            std::string::npos)
      << refused;
  EXPECT_FALSE(ask_for_another(session)) << "another one waits for itself";
  // The hub ends with charges for files that are not closed.
}

TEST_F(freed_memory, is_returned_without_a_request) {
  const auto session = greet();
  make_and_free(session);
  hub_.collect_freed();
  EXPECT_EQ(hub_.statistics().allocated_bytes, 4096U);
  keeper.reading = true;
  EXPECT_TRUE(eventually(
      [&] {
        hub_.collect_freed();
        return hub_.statistics().allocated_bytes == 0;
      },
      30s));
  hub_.hang_up(session);
  for (std::size_t each = 0; each != core::resource_count; ++each) {
    EXPECT_EQ(used(static_cast<core::resource>(each)), 0U) << each;
  }
}

class freed_memory_of_two : public freed_memory {
 protected:
  freed_memory_of_two() : freed_memory(8192) {}
};

/// Others that create and remove must not delay a refusal.
TEST_F(freed_memory_of_two, is_waited_for_only_if_it_was_being_freed_before) {
  const auto session = greet();
  const auto first = make(session, "one");
  const auto other = make(session, "other");
  free_unread(session, first);
  EXPECT_FALSE(ask_for_another(session, 8192));
  keeper.reading = true;
  EXPECT_TRUE(eventually(
      [&] {
        hub_.collect_freed();
        return !closes->is_freeing();
      },
      30s));
  free_unread(session, other);
  EXPECT_TRUE(closes->is_freeing());
  EXPECT_TRUE(ask_for_another(session, 8192));
  EXPECT_NE(failure(take(session)).find("quota_exceeded: "), std::string::npos);
  keeper.reading = true;
}

/// Of each of many at once, in whatever order they end.
TEST_F(freed_memory, is_free_once_for_each_segment) {
  const auto session = greet();
  for (int round = 0; round != 50; ++round) {
    EXPECT_TRUE(eventually([&] { return ask_for_another(session); }, 30s));
    const auto generation = expect<wire::reserved>(take(session)).generation;
    if (round % 2 == 0) {  // the others have no files
      expect<wire::done>(round_trip(session,
                                    wire::attach{generation, 0, {4096}},
                                    testing_world::descriptors(testing_world::memfd(4096))));
    }
    send_request(session, wire::release{generation, 1});
  }
  hub_.hang_up(session);
  EXPECT_TRUE(eventually(
      [&] {
        hub_.collect_freed();
        return !closes->is_freeing();
      },
      30s));
  for (std::size_t each = 0; each != core::resource_count; ++each) {
    EXPECT_EQ(used(static_cast<core::resource>(each)), 0U) << each;
  }
}

/// A hub whose changes are recorded, and which stores its chunks with the keeper.
class recorded_hub final : public testing_world::hub_test {
 public:
  recorded_hub(std::shared_ptr<closer> closes,
               succession::descriptor_shelf& shelf,
               succession::recorder& records,
               core::saved_state* state = nullptr)
      : hub_test({.quota_bytes = 4096, .memory_copies = 2, .names_changes = true},
                 std::move(closes),
                 &records,
                 state),
        shelf_(shelf) {}
  void TestBody() override {}

  using hub_test::expect;
  using hub_test::greet;
  using hub_test::take;
  hub& operator*() noexcept { return hub_; }
  hub* operator->() noexcept { return &hub_; }

  /// Returns false if it is to be received again.
  bool reserve(core::session_id session, const std::string& name) {
    const auto packet =
        wire::encode({++request_, wire::reserve{name, 4096, 4096, {}, 1, backend::host}});
    return hub_.receive(*hub_.find(session), packet, {}, now_);
  }
  void attach(core::session_id session, gpushm::generation generation, base::unique_fd chunk) {
    const records::descriptor_id number = shelf_.put(chunk.get());
    std::vector<succession::kept_fd> chunks;
    chunks.emplace_back(base::guarded_fd(std::move(chunk)), number);
    const auto packet = wire::encode({++request_, wire::attach{generation, 0, {4096}}});
    EXPECT_TRUE(hub_.receive(*hub_.find(session), packet, std::move(chunks), now_));
    expect<wire::done>(take(session));
  }
  void release(core::session_id session, gpushm::generation generation) {
    send_request(session, wire::release{generation, 1});
  }
  [[nodiscard]] core::budget::amounts used() const {
    core::budget::amounts result{};
    for (std::size_t each = 0; each != result.size(); ++each) {
      result.at(each) = hub_.domain().budget().used(static_cast<core::resource>(each));
    }
    return result;
  }

 private:
  succession::descriptor_shelf& shelf_;
};

/// What one broker had not closed when it was killed, its successor closes: with a charge.
class freed_memory_of_a_predecessor : public testing::Test {
 protected:
  freed_memory_of_a_predecessor() {
    records::encoder encoder;
    journal::journal log = journal::journal::create(std::uint64_t{1} << 20U);
    log.put(records::key_of(records::kind::broker), encoder.encode(records::broker_record{}));
    log.commit();
    journal_ = copy_of(log.descriptor());
    records_.emplace(std::move(log), keeper_.shelf.another(), 1);
    dying_.emplace(keeper_.closes, keeper_.shelf, *records_);
  }

  static base::unique_fd copy_of(int file) {
    return base::unique_fd(::fcntl(file, F_DUPFD_CLOEXEC, 0));
  }
  /// As it is found after a SIGKILL now. `left`: that the keeper has.
  [[nodiscard]] succession::takeover_state what_is_left(succession::stored_files left = {}) const {
    return {journal::journal::open(copy_of(journal_.get())), std::move(left)};
  }
  /// Makes a segment and ends it, as does its creator, while the keeper does not read.
  void make_and_free() {
    recorded_hub& hub = *dying_;
    const auto session = hub.greet();
    EXPECT_TRUE(hub.reserve(session, "one"));
    generation_ = hub.expect<wire::reserved>(hub.take(session)).generation;
    base::unique_fd chunk = testing_world::memfd(4096);
    chunk_ = copy_of(chunk.get());
    hub.attach(session, generation_, std::move(chunk));
    keeper_.keeper.stop_reading();
    hub.release(session, generation_);
    EXPECT_EQ(hub->domain().segment_count(), 0U);
    hub->hang_up(session);
  }
  [[nodiscard]] std::size_t records_of_files() const {
    std::size_t result = 0;
    what_is_left().log.for_each([&](const journal::record_key& key, std::span<const std::byte>) {
      const auto what = static_cast<records::kind>(key.kind);
      result += what == records::kind::files || what == records::kind::freeing ? 1U : 0U;
    });
    return result;
  }

  closer_with_keeper keeper_;
  base::unique_fd journal_;
  base::unique_fd chunk_;
  gpushm::generation generation_ = 0;
  std::optional<succession::recorder> records_;
  std::optional<recorded_hub> dying_;
};

TEST_F(freed_memory_of_a_predecessor, is_charged_until_it_is_closed_and_a_reserve_waits_for_it) {
  make_and_free();
  const core::budget::amounts before = dying_->used();
  EXPECT_EQ(before.at(static_cast<std::size_t>(core::resource::host_bytes)), 4096U);
  succession::takeover_state from = what_is_left();
  ASSERT_EQ(from.freeing.count(generation_), 1U);
  ASSERT_EQ(from.files.count(generation_), 1U);
  const auto numbers = from.files.at(generation_).chunks;
  ASSERT_EQ(numbers.size(), 1U);
  EXPECT_EQ(from.last_freed(), numbers.front());

  succession::descriptor_shelf shelf = shelf_at(keeper_.directory / "notify", numbers);
  const auto closes = std::make_shared<closer>(shelf.another());
  succession::recorder records(std::move(from.log), shelf.another(), from.next_packet());
  recorded_hub successor(closes, shelf, records, &from.state);
  std::vector<succession::kept_fd> chunks;
  chunks.emplace_back(base::guarded_fd(std::move(chunk_)), numbers.front());
  successor->restore_freed(generation_, from.freeing.at(generation_), std::move(chunks)).reset();
  EXPECT_EQ(successor.used(), before) << "the same as before";
  closes->flush();
  const auto session = successor.greet();
  EXPECT_FALSE(successor.reserve(session, "two"));
  EXPECT_EQ(records_of_files(), 2U) << "of the next successor, too";
  successor->catch_up();
  EXPECT_EQ(records_of_files(), 2U);
  keeper_.keeper.reading = true;
  EXPECT_TRUE(eventually([&] { return successor.reserve(session, "two"); }, 30s));
  successor.expect<wire::reserved>(successor.take(session));
  EXPECT_EQ(records_of_files(), 0U);
}

TEST_F(freed_memory_of_a_predecessor, is_not_charged_if_the_keeper_has_removed_it) {
  make_and_free();
  succession::takeover_state from = what_is_left();
  succession::descriptor_shelf shelf = shelf_at(keeper_.directory / "notify", {});
  const auto closes = std::make_shared<closer>(shelf.another());
  succession::recorder records(std::move(from.log), shelf.another(), from.next_packet());
  recorded_hub successor(closes, shelf, records, &from.state);
  successor->restore_freed(generation_, from.freeing.at(generation_), {}).reset();
  EXPECT_EQ(successor.used(), core::budget::amounts{});
  EXPECT_FALSE(closes->is_freeing());
  static_cast<void>(successor.greet());
  EXPECT_EQ(records_of_files(), 0U);
  keeper_.keeper.reading = true;
}

}  // namespace
}  // namespace gpushm::broker_detail
