// SPDX-License-Identifier: Apache-2.0
// Registered descriptors: gpushm/descriptor.h with a broker in this process.
#include "client/segment/registered.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "base/files/unique_fd.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/descriptor.h"
#include "gpushm/gpushm.hpp"
#include "tests/client/scripted_broker.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm {
namespace {

using namespace std::chrono_literals;
using base::unique_fd;
using gpushm_testing::eventually;

struct closes {
  void operator()(gpushm_descriptor* descriptor) const noexcept {
    gpushm_descriptor_close(descriptor);
  }
};
using registration = std::unique_ptr<gpushm_descriptor, closes>;

unique_fd new_file(std::size_t bytes = 4096) {
  unique_fd file(::memfd_create("events", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  return file;
}

std::pair<dev_t, ino_t> identity(int file) {
  struct stat info {};
  EXPECT_EQ(::fstat(file, &info), 0);
  return {info.st_dev, info.st_ino};
}

std::string last_text() {
  const gpushm_string text = gpushm_error_message(gpushm_last_error());
  return {text.data, text.size};
}

class registered : public testing::Test {
 protected:
  registration add(const client& client,
                   int file,
                   std::uint32_t number = 0,
                   std::uint64_t tag = 0) {
    gpushm_descriptor* result = nullptr;
    code_ = gpushm_client_register_descriptor(client.handle(), file, number, tag, &result);
    EXPECT_EQ(code_ == GPUSHM_OK, result != nullptr);
    return registration(result);
  }
  unique_fd resolve(const client& client, std::uint32_t number, std::uint64_t tag = 0) {
    int result = -1;
    code_ = gpushm_client_resolve_descriptor(client.handle(), number, tag, &result);
    EXPECT_EQ(code_ == GPUSHM_OK, result != -1);
    return unique_fd(result);
  }
  [[nodiscard]] client connect() const { return client::connect({.socket_path = socket_}); }

  gpushm_testing::temp_dir directory_;
  const std::string socket_ = directory_ / "socket";
  broker broker_ = broker::start({.socket_path = socket_});
  client exporter_ = connect();
  client importer_ = connect();
  gpushm_errc code_ = GPUSHM_OK;
};

TEST_F(registered, descriptors_are_fetched_by_their_number) {
  const unique_fd file = new_file();
  ASSERT_EQ(::pwrite(file.get(), "one", 3, 0), 3);
  ASSERT_EQ(::lseek(file.get(), 17, SEEK_SET), 17);
  registration made = add(exporter_, file.get(), 4'711, 99);
  ASSERT_EQ(code_, GPUSHM_OK) << last_text();
  EXPECT_EQ(gpushm_descriptor_number(made.get()), 4'711U);
  for (const std::uint64_t tag : {std::uint64_t{0}, std::uint64_t{99}}) {
    const unique_fd got = resolve(importer_, 4'711, tag);
    ASSERT_TRUE(got) << last_text();
    EXPECT_NE(got.get(), file.get());
    EXPECT_EQ(identity(got.get()), identity(file.get()));
    EXPECT_EQ(::fcntl(got.get(), F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(::lseek(got.get(), 0, SEEK_CUR), 17) << "the same open file description";
    ASSERT_EQ(::pwrite(got.get(), "two", 3, 0), 3);
  }
  std::array<char, 3> bytes{};
  ASSERT_EQ(::pread(file.get(), bytes.data(), bytes.size(), 0), 3);
  EXPECT_EQ(std::string(bytes.data(), bytes.size()), "two");

  EXPECT_FALSE(resolve(importer_, 4'711, 98));
  EXPECT_EQ(code_, GPUSHM_ERRC_NO_SUCH_SEGMENT);
  EXPECT_EQ(last_text(),
            "resolve \".fd/4711\": another descriptor is registered under this number in domain "
            "default (its process has closed it, or uses another domain)");
  EXPECT_FALSE(resolve(importer_, 4'712));
  EXPECT_EQ(code_, GPUSHM_ERRC_NO_SUCH_SEGMENT);
  EXPECT_EQ(last_text(),
            "resolve \".fd/4712\": no descriptor is registered under this number in domain default "
            "(its process has closed it, or uses another domain)");

  // Its owner fetches it, too, which returns no lease that it has.
  for (int i = 0; i != 3; ++i) {
    EXPECT_TRUE(resolve(exporter_, 4'711));
  }
  EXPECT_TRUE(resolve(importer_, 4'711)) << last_text();
  made.reset();
  EXPECT_TRUE(eventually([&] { return !resolve(importer_, 4'711); }, 10s));
  EXPECT_EQ(code_, GPUSHM_ERRC_NO_SUCH_SEGMENT);
  EXPECT_NE(::fcntl(file.get(), F_GETFD), -1) << "it stays the caller's";
  made = add(exporter_, file.get(), 4'711);
  EXPECT_TRUE(made) << last_text();
}

TEST_F(registered, numbers_are_unique_and_random_if_none_is_given) {
  const unique_fd file = new_file();
  const registration first = add(exporter_, file.get(), 7);
  EXPECT_FALSE(add(importer_, file.get(), 7));
  EXPECT_EQ(code_, GPUSHM_ERRC_ALREADY_EXISTS);
  EXPECT_TRUE(resolve(importer_, 7)) << "the first one stays";
  std::vector<registration> registrations;
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i != 20; ++i) {
    registrations.push_back(add(exporter_, file.get()));
    ASSERT_TRUE(registrations.back()) << last_text();
    numbers.push_back(gpushm_descriptor_number(registrations.back().get()));
    EXPECT_THAT(numbers.back(), testing::AllOf(testing::Ge(1U), testing::Lt(1U << 30U)));
    EXPECT_EQ(identity(resolve(importer_, numbers.back()).get()), identity(file.get()));
  }
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (const std::uint32_t number : {1U << 30U, 0xFFFFFFFFU}) {
    EXPECT_FALSE(add(exporter_, file.get(), number));
    EXPECT_EQ(code_, GPUSHM_ERRC_INVALID_ARGUMENT);
    EXPECT_FALSE(resolve(importer_, number));
    EXPECT_EQ(code_, GPUSHM_ERRC_INVALID_ARGUMENT);
  }
  EXPECT_FALSE(resolve(importer_, 0));
  EXPECT_EQ(code_, GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_descriptor_number(nullptr), 0U);
  gpushm_descriptor_close(nullptr);
}

TEST_F(registered, descriptors_of_other_kinds_are_refused) {
  const auto refused_as = [&](int file) {
    EXPECT_FALSE(add(exporter_, file, 7));
    return code_;
  };
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const unique_fd reads(pipe[0]);
  const unique_fd writes(pipe[1]);
  EXPECT_EQ(refused_as(reads.get()), GPUSHM_ERRC_WRONG_DESCRIPTOR_KIND);
  const unique_fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(refused_as(null.get()), GPUSHM_ERRC_WRONG_DESCRIPTOR_KIND);
  const unique_fd directory(::open(directory_.path().c_str(), O_DIRECTORY | O_CLOEXEC));
  EXPECT_EQ(refused_as(directory.get()), GPUSHM_ERRC_WRONG_DESCRIPTOR_KIND);
  const unique_fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(refused_as(socket.get()), GPUSHM_ERRC_WRONG_DESCRIPTOR_KIND);
  const unique_fd large = new_file(GPUSHM_MAX_DESCRIPTOR_FILE_BYTES + 1);
  EXPECT_EQ(refused_as(large.get()), GPUSHM_ERRC_WRONG_DESCRIPTOR_KIND);
  EXPECT_EQ(last_text(),
            "register \".fd/7\": this is neither a descriptor of /dev/nvidiactl nor a file of a "
            "tmpfs of at most 1 MiB (register memory that the driver has exported, or its file of "
            "events)");
  EXPECT_EQ(refused_as(-1), GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(refused_as(1'000'000), GPUSHM_ERRC_INVALID_ARGUMENT);
  const unique_fd largest = new_file(GPUSHM_MAX_DESCRIPTOR_FILE_BYTES);
  EXPECT_TRUE(add(exporter_, largest.get(), 7)) << "a refusal leaves nothing";
  gpushm_descriptor* result = nullptr;
  EXPECT_EQ(gpushm_client_register_descriptor(nullptr, largest.get(), 7, 0, &result),
            GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_client_register_descriptor(exporter_.handle(), largest.get(), 7, 0, nullptr),
            GPUSHM_ERRC_INVALID_ARGUMENT);
}

TEST_F(registered, descriptors_are_no_segments) {
  const unique_fd file = new_file();
  const auto code_of = [](auto&& call) {
    try {
      call();
    } catch (const error& why) {
      return why.code();
    }
    return errc{};
  };
  subscription others = importer_.subscribe("");
  subscription subscription = importer_.subscribe(".fd/");
  const registration made = add(exporter_, file.get(), 7);
  EXPECT_EQ(code_of([&] { static_cast<void>(importer_.open(".fd/7")); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] {
              static_cast<void>(exporter_.create(".fd/8", {.size_bytes = 4096, .device = "host"}));
            }),
            errc::invalid_argument);
  EXPECT_TRUE(resolve(importer_, 7)) << "opens as a segment have returned nothing";

  EXPECT_TRUE(importer_.list("").empty());
  const auto listed = importer_.list(".fd/");
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed.front().name, ".fd/7");
  EXPECT_EQ(listed.front().backend, backend::descriptor);
  EXPECT_EQ(to_string(listed.front().backend), "descriptor");
  EXPECT_EQ(listed.front().leases, 1U) << "who fetches it has none";
  EXPECT_EQ(listed.front().creator_pid, ::getpid());
  EXPECT_EQ(importer_.stat(".fd/7").backend, backend::descriptor);
  EXPECT_EQ(importer_.prefetch(""), 0U);

  const auto published = subscription.next(10s);
  ASSERT_TRUE(published);
  EXPECT_EQ(published->kind, event_kind::published);
  EXPECT_EQ(published->name, ".fd/7");
  segment made_later = exporter_.create("w", {.size_bytes = 4096, .device = "host"});
  made_later.publish();
  const auto first = others.next(10s);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->name, "w") << "no event of the registration came before";

  importer_.remove(".fd/7");  // of the same user: as an operator does
  EXPECT_FALSE(resolve(importer_, 7));
}

TEST_F(registered, descriptors_are_described) {
  const unique_fd file = new_file();
  const registration made = add(exporter_, file.get(), 7, 99);
  gpushm_descriptor_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(gpushm_client_describe_descriptor(importer_.handle(), 7, &info), GPUSHM_OK)
      << last_text();
  struct stat own {};
  ASSERT_EQ(::stat("/proc/self/ns/pid", &own), 0);
  EXPECT_EQ(info.number, 7U);
  EXPECT_EQ(info.tag, 99U);
  EXPECT_EQ(info.pid, ::getpid());
  EXPECT_EQ(info.pid_namespace, own.st_ino);
  EXPECT_EQ(info.kind, GPUSHM_DESCRIPTOR_FILE);
  EXPECT_EQ(std::string(info.comm), std::string(program_invocation_short_name).substr(0, 15));
  EXPECT_EQ(info.comm_size, std::string(info.comm).size());
  EXPECT_EQ(info.creator_pid, ::getpid());
  EXPECT_EQ(info.creator_uid, ::getuid());
  EXPECT_EQ(gpushm_client_describe_descriptor(importer_.handle(), 8, &info),
            GPUSHM_ERRC_NO_SUCH_SEGMENT);
  EXPECT_EQ(gpushm_client_describe_descriptor(importer_.handle(), 7, nullptr),
            GPUSHM_ERRC_INVALID_ARGUMENT);
}

TEST(registered_facts, are_the_same_after_a_round_trip_and_checked) {
  using client_detail::registered_facts;
  for (const registered_facts& each :
       {registered_facts{1, 2, 3, GPUSHM_DESCRIPTOR_GPU_MEMORY, "python3"},
        registered_facts{~0ULL, ~0ULL, -1, GPUSHM_DESCRIPTOR_FILE, std::string(15, 'x')},
        registered_facts{}}) {
    auto bytes = client_detail::encode(each);
    ASSERT_EQ(bytes.size(), 40U);
    EXPECT_EQ(client_detail::decode_facts(bytes), each);
    bytes.resize(64);
    EXPECT_EQ(client_detail::decode_facts(bytes), each) << "a later version may add something";
    for (std::size_t size = 0; size != 40; ++size) {
      EXPECT_EQ(client_detail::decode_facts(std::span(bytes).first(size)), std::nullopt);
    }
    bytes[20] = std::byte{3};
    EXPECT_EQ(client_detail::decode_facts(bytes), std::nullopt) << "an unknown kind";
  }
  const std::vector<std::byte> full(40, std::byte{'x'});
  std::vector<std::byte> unterminated = full;
  unterminated[20] = std::byte{2};
  unterminated[21] = unterminated[22] = unterminated[23] = std::byte{0};
  EXPECT_EQ(client_detail::decode_facts(unterminated)->comm, std::string(15, 'x'));
}

TEST_F(registered, descriptors_leave_nothing) {
  const unique_fd file = new_file();
  {  // what the first of each call opens stays
    const registration first = add(exporter_, file.get());
    ASSERT_TRUE(resolve(importer_, gpushm_descriptor_number(first.get()))) << last_text();
  }
  // The broker's copy is closed by a thread of its own, after the record has gone.
  ASSERT_TRUE(eventually(
      [&] {
        return broker_.statistics().segments == 0 &&
               gpushm_testing::total(gpushm_testing::count_descriptors(::getpid()),
                                     "memfd:events") == 1;
      },
      10s));
  const auto begin = gpushm_testing::count_descriptors(::getpid());
  const auto connections = broker_.statistics().connections;
  {
    std::vector<registration> registrations;
    for (int i = 0; i != 100; ++i) {
      registrations.push_back(add(exporter_, file.get()));
      ASSERT_TRUE(registrations.back()) << last_text();
    }
    for (int i = 0; i != 1'000; ++i) {
      const auto number =
          gpushm_descriptor_number(registrations[static_cast<std::size_t>(i) % 100].get());
      ASSERT_TRUE(resolve(importer_, number)) << last_text();
      static_cast<void>(resolve(importer_, number, 1));  // fetched and not given
    }
    EXPECT_EQ(broker_.statistics().segments, 100U);
    EXPECT_EQ(broker_.statistics().leases, 100U);
  }
  EXPECT_TRUE(eventually([&] { return broker_.statistics().segments == 0; }, 10s));
  EXPECT_EQ(broker_.statistics().leases, 0U);
  EXPECT_EQ(broker_.statistics().connections, connections);
  EXPECT_TRUE(eventually(
      [&] {
        return gpushm_testing::total(gpushm_testing::count_descriptors(::getpid())) ==
               gpushm_testing::total(begin);
      },
      10s))
      << gpushm_testing::to_text(gpushm_testing::count_descriptors(::getpid()))
      << "\nbefore: " << gpushm_testing::to_text(begin);
}

TEST_F(registered, descriptors_outlive_the_client_object_and_end_with_their_handle) {
  const unique_fd file = new_file();
  std::optional<client> own = connect();
  registration made = add(*own, file.get(), 7);
  own.reset();
  EXPECT_TRUE(resolve(importer_, 7)) << last_text();
  made.reset();
  EXPECT_TRUE(eventually([&] { return !resolve(importer_, 7); }, 10s));
}

TEST_F(registered, descriptors_stay_the_parents_after_a_fork) {
  const unique_fd file = new_file();
  registration made = add(exporter_, file.get(), 7);
  const pid_t child = ::fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    int failed = gpushm_descriptor_number(made.get()) == 7 ? 0 : 1;
    int got = -1;
    failed |= gpushm_client_resolve_descriptor(exporter_.handle(), 7, 0, &got) == GPUSHM_ERRC_FORKED
                  ? 0
                  : 2;
    gpushm_descriptor_close(made.release());
    ::_exit(failed);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(resolve(importer_, 7)) << last_text();
}

TEST_F(registered, descriptors_end_with_a_broker_that_has_no_record_of_them) {
  const unique_fd file = new_file();
  const registration made = add(exporter_, file.get(), 7, 99);
  ASSERT_TRUE(made);
  { const auto ended = std::move(broker_); }
  EXPECT_FALSE(resolve(importer_, 7));
  broker_ = broker::start({.socket_path = socket_});
  // A broker in a process keeps no list of what it had: nothing is handed back (brokerd has one).
  EXPECT_FALSE(resolve(importer_, 7));
  EXPECT_EQ(code_, GPUSHM_ERRC_NO_SUCH_SEGMENT);
  const registration again = add(exporter_, file.get(), 7, 99);
  EXPECT_TRUE(again) << last_text();
}

TEST(registered_at_an_earlier_broker, descriptors_are_refused_and_the_connection_stays) {
  int reserves = 0;
  gpushm_tests::scripted_broker earlier([&](const wire::message& message) {
    std::vector<gpushm_tests::scripted_broker::reply> replies;
    if (std::holds_alternative<wire::reserve>(message.body)) {
      ++reserves;
    }
    replies.push_back({{message.id, wire::listing{}}});
    return replies;
  });
  client connected = client::connect({.socket_path = earlier.socket_path()});
  const unique_fd file = new_file();
  gpushm_descriptor* made = nullptr;
  EXPECT_EQ(gpushm_client_register_descriptor(connected.handle(), file.get(), 7, 0, &made),
            GPUSHM_ERRC_UNSUPPORTED_VERSION);
  EXPECT_EQ(reserves, 0);
  EXPECT_TRUE(connected.list().empty());
}

/// For the function that has no client object.
class resolved_by_a_library : public registered {
 protected:
  void SetUp() override { ::setenv("GPUSHM_SOCKET", socket_.c_str(), 1); }
  void TearDown() override {
    ::unsetenv("GPUSHM_SOCKET");
    ::unsetenv("GPUSHM_IPC_DOMAIN");
  }
  static std::uint64_t own_namespace() {
    struct stat info {};
    EXPECT_EQ(::stat("/proc/self/ns/pid", &info), 0);
    return info.st_ino;
  }
};

// One test: a process has one such client.
TEST_F(resolved_by_a_library, descriptors_are_those_of_the_process_that_is_meant) {
  static bool has_run = false;
  if (std::exchange(has_run, true)) {
    GTEST_SKIP() << "repeated in one process, whose client is that of another broker";
  }
  const unique_fd file = new_file();
  registration made = add(exporter_, file.get(), 7);
  int got = -1;
  ASSERT_EQ(gpushm_resolve_fd(::getpid(), own_namespace(), 7, &got), 0) << last_text();
  EXPECT_EQ(identity(got), identity(file.get()));
  EXPECT_EQ(::fcntl(got, F_GETFD), FD_CLOEXEC);
  ::close(got);
  ASSERT_EQ(gpushm_resolve_fd(0, 0, 7, &got), 0) << last_text();
  ::close(got);
  got = -7;
  EXPECT_EQ(gpushm_resolve_fd(::getpid() + 1, own_namespace(), 7, &got), -ESRCH);
  EXPECT_EQ(gpushm_resolve_fd(::getpid(), own_namespace() + 1, 7, &got), -ESRCH);
  EXPECT_EQ(gpushm_resolve_fd(::getpid(), own_namespace(), 8, &got), -ENOENT);
  EXPECT_EQ(gpushm_resolve_fd(::getpid(), own_namespace(), 0, &got), -EINVAL);
  EXPECT_EQ(gpushm_resolve_fd(::getpid(), own_namespace(), -7, &got), -EINVAL);
  EXPECT_EQ(gpushm_resolve_fd(::getpid(), own_namespace(), 1 << 30, &got), -EINVAL);
  EXPECT_EQ(gpushm_resolve_fd(::getpid(), own_namespace(), 7, nullptr), -EINVAL);
  EXPECT_EQ(got, -7) << "written only on success";
  EXPECT_EQ(broker_.statistics().connections, 3U) << "one client for all calls";

  // A forked child connects again, which starts threads, and its end is not the parent's.
  if (!gpushm::base::under_thread_sanitizer) {  // it ends such a child
    const pid_t child = ::fork();
    ASSERT_NE(child, -1);
    if (child == 0) {
      int found = -1;
      const int result = gpushm_resolve_fd(::getppid(), 0, 7, &found);
      ::_exit(result == 0 && identity(found) == identity(file.get()) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }

  std::vector<std::jthread> callers;
  std::array<int, 4> failures{};
  for (int& failed : failures) {
    callers.emplace_back([&failed] {
      for (int i = 0; i != 50; ++i) {
        int found = -1;
        failed += gpushm_resolve_fd(::getpid(), own_namespace(), 7, &found) == 0 ? 0 : 1;
        ::close(found);
      }
    });
  }
  callers.clear();
  EXPECT_EQ(failures, (std::array<int, 4>{}));

  made.reset();
  EXPECT_TRUE(eventually([&] { return gpushm_resolve_fd(0, 0, 7, &got) == -ENOENT; }, 10s));
  { const auto ended = std::move(broker_); }
  EXPECT_EQ(gpushm_resolve_fd(0, 0, 7, &got), -ECONNREFUSED) << last_text();
  broker_ = broker::start({.socket_path = socket_});
  made = add(exporter_, file.get(), 7);
  ASSERT_EQ(gpushm_resolve_fd(0, 0, 7, &got), 0) << last_text();
  ::close(got);
}

}  // namespace
}  // namespace gpushm
