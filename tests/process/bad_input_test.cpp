// SPDX-License-Identifier: Apache-2.0
// Clients that send invalid input to a broker process. The broker replies with an error or
// disconnects them; its state is unchanged, nothing leaks, and other clients are unaffected.

#include "tests/support/broker_process/bad_input.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"
#include "protocol/wire/state_table.hpp"
#include "tests/support/broker_process/holdings.hpp"
#include "tests/support/broker_process/raw_client.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

using gpushm::errc;
using gpushm::base::unique_fd;
using gpushm_testing::eventually;
using std::chrono::seconds;
namespace wire = gpushm::wire;

gpushm::generation reserve(raw_client& client, const std::string& name, std::uint32_t chunks) {
  const auto reply = client.request(reserve_pages(name, chunks));
  EXPECT_TRUE(reply.descriptors.empty());
  return std::get<wire::reserved>(reply.message.value().body).generation;
}

bool is_done(const raw_reply& reply) {
  return reply.message && std::holds_alternative<wire::done>(reply.message->body);
}

// ---- descriptors ----

unique_fd open_file(const char* path) {
  return unique_fd(::open(path, O_RDWR | O_CLOEXEC));
}

unique_fd read_end_of_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[1]);
  return unique_fd(ends[0]);
}

unique_fd read_only_copy(const unique_fd& fd) {
  return unique_fd(
      ::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), O_RDONLY | O_CLOEXEC));
}

TEST_F(bad_input, wrong_kind_of_chunk_is_refused) {
  auto client = greeted();
  const auto generation = reserve(client, "wrong-kind", 1);
  const auto good = make_chunk(4096);
  std::vector<std::pair<std::string, unique_fd>> wrong;
  wrong.emplace_back("pipe", read_end_of_pipe());
  wrong.emplace_back("/dev/null", open_file("/dev/null"));
  wrong.emplace_back("unsealed memfd", make_chunk(4096, false));
  wrong.emplace_back("memfd of another size", make_chunk(8192));
  wrong.emplace_back("read-only memfd", read_only_copy(good));
  wrong.emplace_back("socket", unique_fd(::dup(client.socket())));
  wrong.emplace_back("directory", unique_fd(::open("/", O_RDONLY | O_CLOEXEC)));
  wrong.emplace_back("path only", unique_fd(::open("/dev/null", O_PATH | O_CLOEXEC)));
  wrong.emplace_back("state table", unique_fd(::dup(client.state_table())));
  for (const auto& [kind, fd] : wrong) {
    ASSERT_TRUE(fd) << kind;
    const int number = fd.get();
    EXPECT_EQ(failure_of(client.request(wire::attach{generation, 0, {4096}}, {&number, 1})),
              errc::wrong_descriptor_kind)
        << kind;
  }
  EXPECT_EQ(failure_of(client.request(wire::publish{generation, {}})),
            errc::wrong_descriptor_count);
  const int number = good.get();
  EXPECT_TRUE(is_done(client.request(wire::attach{generation, 0, {4096}}, {&number, 1})));
  EXPECT_TRUE(is_done(client.request(wire::publish{generation, {}})));
}

TEST_F(bad_input, batch_with_one_wrong_chunk_has_no_effect) {
  auto client = greeted();
  const auto generation = reserve(client, "one-wrong", 3);
  const std::array<unique_fd, 3> files{make_chunk(4096), make_chunk(4096, false), make_chunk(4096)};
  const std::array<int, 3> numbers{files[0].get(), files[1].get(), files[2].get()};
  const auto holding = settled_holdings_of({broker_.pid()});
  EXPECT_EQ(failure_of(client.request(wire::attach{generation, 0, {4096, 4096, 4096}}, numbers)),
            errc::wrong_descriptor_kind);
  EXPECT_TRUE(back_to(holding, {broker_.pid()}));
}

TEST_F(bad_input, wrong_number_of_descriptors_is_refused) {
  auto client = greeted();
  const auto generation = reserve(client, "counts", 2);
  const std::array<unique_fd, 3> files{make_chunk(4096), make_chunk(4096), make_chunk(4096)};
  const std::array<int, 3> numbers{files[0].get(), files[1].get(), files[2].get()};
  const std::span<const int> all(numbers);
  const wire::attach two{generation, 0, {4096, 4096}};
  for (const std::size_t sent : {0U, 1U, 3U}) {
    EXPECT_EQ(failure_of(client.request(two, all.first(sent))), errc::wrong_descriptor_count)
        << sent;
  }
  // The announced number is right, but exceeds the segment's chunks.
  EXPECT_EQ(failure_of(client.request(wire::attach{generation, 0, {4096, 4096, 4096}}, all)),
            errc::wrong_descriptor_count);
  EXPECT_TRUE(is_done(client.request(two, all.first(2))));
}

TEST_F(bad_input, unexpected_descriptors_are_refused) {
  auto client = greeted();
  const auto file = make_chunk(4096);
  const int number = file.get();
  EXPECT_EQ(failure_of(client.request(wire::list{}, {&number, 1})), errc::wrong_descriptor_count);
  EXPECT_EQ(failure_of(client.request(reserve_pages("with-descriptor", 1), {&number, 1})),
            errc::wrong_descriptor_count);
  EXPECT_TRUE(bystander_.list().empty());
}

TEST_F(bad_input, other_client_cannot_attach_publish_or_fetch) {
  auto owner = greeted();
  auto other = greeted();
  const auto generation = reserve(owner, "owned", 1);
  const auto file = make_chunk(4096);
  const int number = file.get();
  EXPECT_TRUE(failure_of(other.request(wire::attach{generation, 0, {4096}}, {&number, 1})));
  EXPECT_TRUE(failure_of(other.request(wire::fetch_chunks{generation, 0})));
  EXPECT_TRUE(failure_of(other.request(wire::publish{generation + 1, {}})));
  EXPECT_EQ(failure_of(other.request(wire::stat{"owned"})), errc::no_such_segment);
}

// ---- packets ----

std::vector<wire::body> every_request() {
  wire::open_many many{{"a", "b"}, 0, 0};
  return {reserve_pages("r", 2),
          wire::attach{1, 0, {4096}},
          wire::publish{1, std::vector<std::byte>(100)},
          wire::open{"o", 0, 0},
          many,
          wire::fetch_chunks{1, 0},
          wire::release{1, 1},
          wire::remove{"r"},
          wire::list{"p", "q"},
          wire::stat{"s"},
          wire::subscribe{"p"},
          wire::unsubscribe{1},
          wire::bye{}};
}

TEST_F(bad_input, truncated_packets_are_protocol_errors) {
  for (const auto& body : every_request()) {
    const auto whole = wire::encode({7, body});
    for (std::size_t size = 0; size < whole.size(); size += 3) {
      auto client = greeted();
      const std::span<const std::byte> part(whole.data(), size);
      const bool readable = wire::decode(part).has_value();
      client.send_bytes(part);
      if (!readable) {
        const auto reply = client.receive();
        EXPECT_TRUE(reply.closed || failure_of(reply) == errc::protocol_error);
        EXPECT_TRUE(client.closed_within(seconds(5)));
      }
    }
  }
}

TEST_F(bad_input, too_long_packet_ends_connection) {
  auto client = greeted();
  const std::vector<std::byte> large(wire::max_packet_bytes + 1);
  // A kernel with small socket buffers refuses to send it, which is also acceptable.
  bool sent = false;
  try {
    sent = client.send_bytes(large);
  } catch (const gpushm::error&) {
    sent = false;
  }
  EXPECT_TRUE(!sent || client.closed_within(seconds(5)));
}

TEST_F(bad_input, request_before_hello_or_second_hello_ends_connection) {
  for (const auto& body : every_request()) {
    raw_client client(broker_.socket_path());
    EXPECT_EQ(failure_of(client.request(body)), errc::protocol_error);
    EXPECT_TRUE(client.closed_within(seconds(5)));
  }
  auto client = greeted();
  EXPECT_EQ(failure_of(client.request(wire::hello{})), errc::protocol_error);
  EXPECT_TRUE(client.closed_within(seconds(5)));
}

TEST_F(bad_input, broker_messages_end_connection) {
  for (const wire::body& body : std::vector<wire::body>{wire::welcome{},
                                                        wire::reserved{},
                                                        wire::opened{},
                                                        wire::chunks{},
                                                        wire::listing{},
                                                        wire::event{},
                                                        wire::failure{},
                                                        wire::done{}}) {
    auto client = greeted();
    EXPECT_EQ(failure_of(client.request(body)), errc::protocol_error);
    EXPECT_TRUE(client.closed_within(seconds(5)));
  }
}

/// Time to see a session that is ending, also on a loaded machine.
class bad_input_with_slow_fence : public bad_input {
 protected:
  bad_input_with_slow_fence() : bad_input({"fence_delay_ms=1000"}) {}
};

TEST_F(bad_input_with_slow_fence, closed_event_lane_ends_connection_after_queued_goodbye) {
  for (const bool sends_goodbye : {true, false}) {
    auto client = greeted();
    auto wanted = gpushm_testing::reserve_pages("kv", 1);
    wanted.lifetime = gpushm::lifetime::persistent;
    ASSERT_NE(gpushm_testing::publish_segment(client, wanted), 0U);
    for (int i = 0; i < 300; ++i) {  // read before the goodbye
      client.send(wire::release{12'345, 1});
    }
    if (sends_goodbye) {
      client.send(wire::bye{});
    }
    client.hang_up_events();
    EXPECT_TRUE(client.closed_within(seconds(5)));
    EXPECT_EQ(ending_count_after_creator_exit("kv"), sends_goodbye ? 0U : 1U);
    bystander_.remove("kv");
  }
}

TEST_F(bad_input, descriptors_on_event_lane_end_connection) {
  auto client = greeted();
  const auto file = gpushm_testing::make_chunk(4096);
  const std::array<int, 1> descriptors{file.get()};
  EXPECT_EQ(gpushm::transport::send_packet(
                client.events(), gpushm::wire::encode({0, wire::report{}}), descriptors),
            gpushm::transport::send_result::sent);
  EXPECT_EQ(failure_of(client.receive()), errc::protocol_error);
  EXPECT_TRUE(client.closed_within(seconds(5)));
}

TEST_F(bad_input, flipped_bits_are_rejected_or_another_request) {
  std::mt19937 random(20240611);  // NOLINT(cert-msc51-cpp): the same packets in every run
  const auto bodies = every_request();
  for (int round = 0; round < 3'000; ++round) {
    auto packet = wire::encode({9, bodies.at(random() % bodies.size())});
    const std::size_t flips = 1 + random() % 3;
    for (std::size_t i = 0; i < flips; ++i) {
      packet.at(random() % packet.size()) ^= std::byte{1} << (random() % 8);
    }
    auto client = greeted();
    const auto file = make_chunk(4096);
    const int number = file.get();
    const auto decoded = wire::decode(packet);
    client.send_bytes(packet, std::span(&number, random() % 2));
    if (!decoded) {
      const auto reply = client.receive();
      ASSERT_TRUE(reply.closed || failure_of(reply) == errc::protocol_error) << "round " << round;
    }
  }
  EXPECT_TRUE(eventually([&] { return bystander_.list().empty(); }, seconds(20)));
}

TEST_F(bad_input, invalid_names_and_sizes_are_refused) {
  auto client = greeted();
  const std::vector<std::string> bad_names{
      "", std::string(256, 'n'), "\xff\xfe", "a\xc0\x80", "line\nbreak", std::string("nul\0", 4)};
  for (const auto& name : bad_names) {
    EXPECT_EQ(failure_of(client.request(reserve_pages(name, 1))), errc::invalid_argument) << name;
    EXPECT_EQ(
        code_of([&] { (void)bystander_.create(name, {.size_bytes = 4096, .device = "host"}); }),
        errc::invalid_argument)
        << name;
  }
  auto no_bytes = reserve_pages("no-bytes", 1);
  no_bytes.size_bytes = 0;
  EXPECT_EQ(failure_of(client.request(no_bytes)), errc::invalid_argument);
  auto no_chunks = reserve_pages("no-chunks", 1);
  no_chunks.chunk_count = 0;
  EXPECT_EQ(failure_of(client.request(no_chunks)), errc::invalid_argument);
  auto too_few = reserve_pages("too-few", 1);
  too_few.size_bytes = 8192;
  EXPECT_EQ(failure_of(client.request(too_few)), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { (void)bystander_.create("no-bytes", {.device = "host"}); }),
            errc::invalid_argument);
  EXPECT_TRUE(bystander_.list().empty());
}

TEST_F(bad_input, duplicate_and_unknown_names_are_refused) {
  auto created = bystander_.create("models/llama", {.size_bytes = 4096, .device = "host"});
  created.publish();
  auto other = connect();
  EXPECT_EQ(
      code_of([&] { (void)other.create("models/llama", {.size_bytes = 4096, .device = "host"}); }),
      errc::already_exists);
  try {
    (void)other.open("models/lama");
    FAIL() << "no error";
  } catch (const gpushm::error& failure) {
    EXPECT_EQ(failure.code(), errc::no_such_segment);
  }
  EXPECT_EQ(code_of([&] { (void)other.open("models/llama", {.expected_size_bytes = 1}); }),
            errc::size_mismatch);
  EXPECT_EQ(code_of([&] { created.publish(); }), errc::already_published);
  EXPECT_EQ(bystander_.list().size(), 1U);
}

// ---- memory that peers may map ----

TEST_F(bad_input, peer_cannot_resize_received_memory) {
  auto created = bystander_.create("sealed", {.size_bytes = 4096, .device = "host"});
  created.publish();
  auto client = greeted();
  const auto reply = client.request(wire::open{"sealed", 0, 0});
  for (const int fd : {reply.descriptors.at(0).get(), client.state_table()}) {
    EXPECT_NE(::ftruncate(fd, 0), 0);
    EXPECT_NE(::ftruncate(fd, 1 << 20), 0);
  }
}

TEST_F(bad_input, peer_cannot_write_state_table) {
  auto client = greeted();
  const int table = client.state_table();
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, table, 0), MAP_FAILED);
  const char byte = 1;
  EXPECT_EQ(::pwrite(table, &byte, 1, 0), -1);
  EXPECT_NE(::fallocate(table, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  // A read-only mapping must not become writable afterwards.
  void* mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, table, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_NE(::mprotect(mapped, 4096, PROT_READ | PROT_WRITE), 0);
  ::munmap(mapped, 4096);
}

TEST_F(bad_input, hole_in_chunk_reads_as_zero) {
  auto created = bystander_.create("punched", {.size_bytes = 4096, .device = "host"});
  created.fill(std::byte{7});
  created.publish();
  auto client = greeted();
  const auto reply = client.request(wire::open{"punched", 0, 0});
  ASSERT_EQ(reply.descriptors.size(), 1U);
  EXPECT_EQ(
      ::fallocate(
          reply.descriptors.front().get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096),
      0);
  auto other = connect();
  const auto opened = other.open("punched");
  std::array<std::byte, 1> first{std::byte{1}};
  opened.read(0, first);  // does not fault
  EXPECT_EQ(first[0], std::byte{0});
  EXPECT_EQ(created.state(), gpushm::segment_state::live);
  EXPECT_EQ(bystander_.stat("punched").size_bytes, 4096U);
}

}  // namespace
}  // namespace gpushm_tests
