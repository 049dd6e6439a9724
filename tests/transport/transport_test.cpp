// SPDX-License-Identifier: Apache-2.0
// Packets and descriptors over real sockets.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "gpushm/error.hpp"
#include "protocol/transport/credentials.hpp"
#include "protocol/transport/listener.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/messages.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::transport {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::temp_dir;

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

template <typename Call>
std::string error_of(Call&& call, errc expected) {
  try {
    call();
  } catch (const error& why) {
    EXPECT_EQ(to_string(why.code()), to_string(expected)) << why.what();
    EXPECT_FALSE(why.next_step().empty()) << why.what();
    return why.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

std::vector<std::byte> bytes(std::size_t count, int value = 7) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

class packet_pair : public testing::Test {
 protected:
  packet_pair() : before_(open_descriptors()) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()),
              0);
    left_ = base::unique_fd(ends[0]);
    right_ = base::unique_fd(ends[1]);
    file_ = base::unique_fd(::memfd_create("transport-test", MFD_CLOEXEC));
  }
  void expect_nothing_left() const { EXPECT_EQ(open_descriptors(), before_ + 3); }
  received receive() { return receive_packet(right_.get(), buffer_); }

  std::size_t before_;
  base::unique_fd left_;
  base::unique_fd right_;
  base::unique_fd file_;
  std::vector<std::byte> buffer_ = bytes(wire::max_packet_bytes);
};

TEST_F(packet_pair, keeps_packets_and_their_descriptors_together) {
  const std::array<int, 2> two{file_.get(), file_.get()};
  EXPECT_EQ(send_packet(left_.get(), bytes(3, 1), two), send_result::sent);
  EXPECT_EQ(send_packet(left_.get(), bytes(5, 2), {}), send_result::sent);
  {
    const auto first = receive();
    ASSERT_EQ(first.status, receive_status::packet);
    EXPECT_EQ(std::vector<std::byte>(first.packet.begin(), first.packet.end()), bytes(3, 1));
    ASSERT_EQ(first.descriptors.size(), 2U);
    struct stat sent {};
    struct stat got {};
    ASSERT_EQ(::fstat(file_.get(), &sent), 0);
    ASSERT_EQ(::fstat(first.descriptors[1].get(), &got), 0);
    EXPECT_EQ(sent.st_ino, got.st_ino);
    EXPECT_EQ(::fcntl(first.descriptors[0].get(), F_GETFD), FD_CLOEXEC);
  }
  const auto second = receive();
  EXPECT_EQ(second.packet.size(), 5U);
  EXPECT_TRUE(second.descriptors.empty());
  EXPECT_EQ(receive().status, receive_status::would_block);
  expect_nothing_left();
}

TEST_F(packet_pair, carries_at_most_253_descriptors) {
  const std::vector<int> most(wire::max_batch, file_.get());
  EXPECT_EQ(send_packet(left_.get(), bytes(1), most), send_result::sent);
  {
    const auto got = receive();
    EXPECT_EQ(got.status, receive_status::packet);
    EXPECT_EQ(got.descriptors.size(), 253U);
  }
  const std::vector<int> more(wire::max_batch + 1, file_.get());
  EXPECT_EQ(error_of([&] { static_cast<void>(send_packet(left_.get(), bytes(1), more)); },
                     errc::too_many_descriptors),
            "send: 254 descriptors in one packet (send them in batches of at most 253)");
  EXPECT_EQ(receive().status, receive_status::would_block);
  expect_nothing_left();
}

TEST_F(packet_pair, carries_the_largest_packet) {
  EXPECT_EQ(send_packet(left_.get(), bytes(wire::max_packet_bytes), {}), send_result::sent);
  EXPECT_EQ(receive().packet.size(), wire::max_packet_bytes);
}

TEST_F(packet_pair, drops_oversized_packet_with_descriptors) {
  const std::vector<int> fds(10, file_.get());
  EXPECT_EQ(send_packet(left_.get(), bytes(101), fds), send_result::sent);
  EXPECT_EQ(send_packet(left_.get(), bytes(100), {}), send_result::sent);
  const auto got = receive_packet(right_.get(), std::span(buffer_).first(100));
  EXPECT_EQ(got.status, receive_status::truncated);
  EXPECT_TRUE(got.descriptors.empty());
  EXPECT_TRUE(got.packet.empty());
  EXPECT_EQ(receive_packet(right_.get(), std::span(buffer_).first(100)).status,
            receive_status::packet);
  expect_nothing_left();
}

TEST_F(packet_pair, reports_lost_descriptors_and_keeps_none) {
  const std::vector<int> fds(20, file_.get());
  EXPECT_EQ(send_packet(left_.get(), bytes(9), fds), send_result::sent);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  // Room for five: descriptors are numbered from the lowest free one.
  const int lowest = ::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0);
  ::close(lowest);
  const rlimit low{static_cast<rlim_t>(lowest) + 5, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto got = receive();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(got.status, receive_status::descriptors_lost);
  EXPECT_EQ(got.packet.size(), 9U) << "the packet itself is complete";
  EXPECT_TRUE(got.descriptors.empty());
  expect_nothing_left();
}

TEST_F(packet_pair, reports_disconnected_peer) {
  right_.reset();
  EXPECT_EQ(send_packet(left_.get(), bytes(1), {}), send_result::closed);  // and no SIGPIPE
  EXPECT_EQ(receive_packet(left_.get(), buffer_).status, receive_status::closed);
  EXPECT_TRUE(wait_readable(left_.get(), 0ms));
}

TEST_F(packet_pair, delivers_data_sent_before_disconnect) {
  EXPECT_EQ(send_packet(left_.get(), bytes(4), {}), send_result::sent);
  left_.reset();
  EXPECT_EQ(receive().packet.size(), 4U);
  EXPECT_EQ(receive().status, receive_status::closed);
}

TEST_F(packet_pair, reports_peer_that_does_not_read) {
  int sent = 0;
  while (send_packet(left_.get(), bytes(64 * 1024), {}) == send_result::sent) {
    ASSERT_LT(++sent, 10'000);
  }
  EXPECT_GT(sent, 0);
  EXPECT_GT(unread_bytes(left_.get()), 0);
  EXPECT_FALSE(wait_writable(left_.get(), 0ms));
  EXPECT_TRUE(wait_readable(right_.get(), 0ms));
  for (int i = 0; i < sent; ++i) {
    EXPECT_EQ(receive().status, receive_status::packet);
  }
  EXPECT_TRUE(wait_writable(left_.get(), 0ms));
  EXPECT_EQ(unread_bytes(left_.get()), 0);
  EXPECT_FALSE(wait_readable(right_.get(), 1ms));
}

TEST_F(packet_pair, accepts_timeouts_above_poll_limit) {
  EXPECT_EQ(send_packet(left_.get(), bytes(1), {}), send_result::sent);
  EXPECT_TRUE(wait_readable(right_.get(), std::chrono::hours(24 * 365)));
}

TEST_F(packet_pair, has_peer_credentials) {
  const auto peer = peer_of(left_.get());
  EXPECT_EQ(peer.pid, ::getpid());
  EXPECT_EQ(peer.uid, ::geteuid());
  EXPECT_EQ(peer.gid, ::getegid());
}

// ---- listener
// --------------------------------------------------------------------------------------

class listening : public testing::Test {
 protected:
  listening() : before_(open_descriptors()) {}
  ~listening() override { EXPECT_EQ(open_descriptors(), before_); }
  [[nodiscard]] bool exists(const std::string& path) const {
    struct stat info {};
    return ::lstat(path.c_str(), &info) == 0;
  }
  base::unique_fd bound(int type, bool listens) const {
    base::unique_fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    if (listens) {
      EXPECT_EQ(::listen(socket.get(), 1), 0);
    }
    return socket;
  }

  temp_dir folder_;
  std::string path_ = folder_ / "socket";
  std::size_t before_;
};

TEST_F(listening, creates_socket_with_mode_and_cleans_up) {
  for (const mode_t mode : {mode_t{0600}, mode_t{0666}}) {
    const listener created(path_, mode, std::nullopt);
    struct stat info {};
    ASSERT_EQ(::stat(path_.c_str(), &info), 0);
    EXPECT_TRUE(S_ISSOCK(info.st_mode));
    EXPECT_EQ(info.st_mode & 0777U, mode);
    EXPECT_FALSE(exists(path_ + ".new"));
    const auto client = connect_packet_socket(path_, 0ms);
    EXPECT_EQ(::fcntl(client.get(), F_GETFD), FD_CLOEXEC);
    EXPECT_NE(::fcntl(client.get(), F_GETFL) & O_NONBLOCK, 0);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(listening, move_keeps_socket) {
  listener created(path_, 0600, std::nullopt);
  {
    const listener moved(std::move(created));
    static_cast<void>(connect_packet_socket(path_, 0ms));
  }
  EXPECT_FALSE(exists(path_));
}

TEST_F(listening, fails_if_live_broker_listens) {
  const listener live(path_, 0600, std::nullopt);
  EXPECT_EQ(error_of([&] { listener(path_, 0600, std::nullopt); }, errc::address_in_use),
            "serve \"" + path_ +
                "\": a live broker serves this socket (use the existing broker, stop it, or "
                "serve another path)");
  static_cast<void>(connect_packet_socket(path_, 0ms));
}

TEST_F(listening, connect_distinguishes_files_from_sockets) {
  const std::string file = path_ + ".txt";
  base::unique_fd(::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)).reset();
  EXPECT_EQ(error_of([&] { static_cast<void>(connect_packet_socket(file, 0ms)); },
                     errc::broker_unreachable),
            "connect \"" + file +
                "\": this is a file, not a broker's socket (pass the path of the socket)");
  EXPECT_EQ(
      error_of([&] { static_cast<void>(connect_packet_socket("/", 0ms)); },
               errc::broker_unreachable),
      "connect \"/\": this is a directory, not a broker's socket (pass the path of the socket)");
}

TEST_F(listening, replaces_socket_of_dead_broker) {
  bound(SOCK_SEQPACKET, true).reset();
  ASSERT_TRUE(exists(path_));
  EXPECT_EQ(error_of([&] { static_cast<void>(connect_packet_socket(path_, 0ms)); },
                     errc::broker_unreachable),
            "connect \"" + path_ +
                "\": no broker listens on this socket: its broker has exited (start a broker with "
                "`gpushm "
                "serve`; it replaces the socket)");
  // Left by a killed broker: an unlocked lock file and an incomplete socket.
  base::unique_fd(::open((path_ + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)).reset();
  base::unique_fd(::open((path_ + ".new").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)).reset();
  {
    const listener created(path_, 0600, std::nullopt);
    static_cast<void>(connect_packet_socket(path_, 0ms));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(listening, fails_if_another_program_listens) {
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM, SOCK_DGRAM}) {
    const auto foreign = bound(type, type != SOCK_DGRAM);
    EXPECT_EQ(error_of([&] { listener(path_, 0600, std::nullopt); }, errc::address_in_use),
              "serve \"" + path_ +
                  "\": another program listens on this socket (use the existing broker, stop it, "
                  "or serve another path)");
    EXPECT_TRUE(exists(path_));
    ::unlink(path_.c_str());
  }
}

TEST_F(listening, fails_if_path_is_a_file) {
  base::unique_fd(::open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)).reset();
  EXPECT_EQ(error_of([&] { listener(path_, 0600, std::nullopt); }, errc::address_in_use),
            "serve \"" + path_ +
                "\": the path is a file that is not a socket (serve another path; nothing but a "
                "socket is replaced)");
  EXPECT_TRUE(exists(path_));
}

TEST_F(listening, keeps_socket_that_replaced_its_own) {
  {
    const listener created(path_, 0600, std::nullopt);
    ::unlink(path_.c_str());
    bound(SOCK_STREAM, false).reset();
  }
  EXPECT_TRUE(exists(path_));
}

TEST_F(listening, keeps_lock_of_another_broker) {
  std::optional<listener> first;
  first.emplace(path_, 0600, std::nullopt);
  // As if the directory were replaced, or only these two files.
  ASSERT_EQ(::unlink((path_ + ".lock").c_str()), 0);
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  const listener second(path_, 0600, std::nullopt);
  first.reset();
  struct stat status {};
  EXPECT_EQ(::stat((path_ + ".lock").c_str(), &status), 0) << "the lock is the second broker's";
  EXPECT_EQ(::stat(path_.c_str(), &status), 0) << "the socket is the second broker's";
  EXPECT_THROW(listener(path_, 0600, std::nullopt), error);
}

TEST_F(listening, uses_given_lock_path) {
  const std::string elsewhere = folder_ / "locks";
  ASSERT_EQ(::mkdir(elsewhere.c_str(), 0700), 0);
  const std::string lock = elsewhere + "/d.lock";
  struct stat status {};
  {
    const listener one(path_, 0600, std::nullopt, lock);
    EXPECT_EQ(::stat(lock.c_str(), &status), 0);
    EXPECT_NE(::stat((path_ + ".lock").c_str(), &status), 0);
    EXPECT_THROW(listener(path_ + "2", 0600, std::nullopt, lock), error);
  }
  EXPECT_NE(::stat(lock.c_str(), &status), 0);
}

TEST_F(listening, path_must_fit_into_address) {
  const std::string too_long = folder_ / std::string(120, 'x');
  const std::string text =
      "the socket's path does not fit into an address (at most 107 bytes) (give a shorter path, "
      "for "
      "instance a relative one)";
  EXPECT_EQ(error_of([&] { listener(too_long, 0600, std::nullopt); }, errc::invalid_argument),
            "serve \"" + too_long + "\": " + text);
  EXPECT_EQ(error_of([&] { static_cast<void>(connect_packet_socket(too_long, 0ms)); },
                     errc::invalid_argument),
            "connect \"" + too_long + "\": " + text);
  error_of([&] { static_cast<void>(connect_packet_socket("", 0ms)); }, errc::invalid_argument);
  error_of([&] { static_cast<void>(connect_packet_socket(std::string("a\0b", 3), 0ms)); },
           errc::invalid_argument);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(listening, connect_fails_without_listener) {
  EXPECT_EQ(error_of([&] { static_cast<void>(connect_packet_socket(path_, 0ms)); },
                     errc::broker_unreachable),
            "connect \"" + path_ +
                "\": the socket does not exist (start a broker with `gpushm serve`, or mount the "
                "domain's "
                "directory)");
  const auto foreign = bound(SOCK_STREAM, true);
  EXPECT_EQ(error_of([&] { static_cast<void>(connect_packet_socket(path_, 0ms)); },
                     errc::broker_unreachable),
            "connect \"" + path_ +
                "\": the socket is not a broker's: it has another type (check the path)");
}

TEST_F(listening, full_backlog_is_unreachable_at_deadline) {
  const auto busy = bound(SOCK_SEQPACKET, true);  // backlog of one, no accepts
  std::vector<base::unique_fd> clients;
  const auto connect_all = [&] {
    for (int i = 0; i < 100; ++i) {
      clients.push_back(connect_packet_socket(path_, 10ms));
    }
  };
  EXPECT_EQ(
      error_of(connect_all, errc::broker_unreachable),
      "connect \"" + path_ +
          "\": the broker does not accept connections (its backlog is full) (try again with a "
          "longer timeout)");
}

}  // namespace
}  // namespace gpushm::transport
