// SPDX-License-Identifier: Apache-2.0
// Handles of events (E), and the functions by which programs find the driver's (P).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>

#include "tests/conformance/driver_facts_fixture.hpp"

namespace gpushm::conformance {
namespace {

using namespace gpushm::cuda;

constexpr std::size_t unused_from = 20;

struct event_handle {
  std::int32_t pid = 0;
  std::uint64_t file = 0;
  std::uint32_t number = 0;
};

event_handle parse(const answer& handle) {
  event_handle parsed;
  std::memcpy(&parsed.pid, handle.bytes, sizeof(parsed.pid));
  std::memcpy(&parsed.file, handle.bytes + 8, sizeof(parsed.file));
  std::memcpy(&parsed.number, handle.bytes + 16, sizeof(parsed.number));
  return parsed;
}

std::string path_of(const event_handle& handle) {
  char path[64];
  std::snprintf(path,
                sizeof(path),
                "/dev/shm/cuda.shm.%x.%x.%llx",
                ::getuid(),
                static_cast<unsigned int>(handle.pid),
                static_cast<unsigned long long>(handle.file));
  return path;
}

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

// Exits at its end, because the driver of a killed process leaves its file of events.
class event_agent : public agent {
 public:
  event_agent() = default;
  event_agent(const event_agent&) = delete;
  event_agent& operator=(const event_agent&) = delete;
  ~event_agent() {
    try {
      EXPECT_EQ(end(), 0);
    } catch (const std::exception& problem) {
      ADD_FAILURE() << problem.what();
    }
  }
};

// A page with the word that an agent's stream waits for.
class gate {
 public:
  gate() : fd_(::memfd_create("gate", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd_.get(), bytes), 0);
    page_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(page_, MAP_FAILED);
  }
  gate(const gate&) = delete;
  gate& operator=(const gate&) = delete;
  ~gate() { ::munmap(page_, bytes); }

  void block(agent& agent) const {
    ASSERT_OK(agent.request(order::wait_word, 1, 0, nullptr, fd_.get()));
  }
  void open() const { __atomic_store_n(static_cast<std::uint64_t*>(page_), 1, __ATOMIC_SEQ_CST); }

 private:
  static constexpr std::size_t bytes = 4096;
  base::unique_fd fd_;
  void* page_ = nullptr;
};

TEST_F(driver_facts, E1_event_handle_names_file_and_number) {
  event_agent maker;
  const answer first = maker.request(order::event_handle);
  const answer second = maker.request(order::event_handle);
  ASSERT_OK(first);
  ASSERT_OK(second);
  for (const answer* each : {&first, &second}) {
    EXPECT_EQ(parse(*each).pid, static_cast<std::int32_t>(maker.started().value));
    for (std::size_t at = 4; at < sizeof(each->bytes); at += at == 7 ? unused_from - 7 : 1) {
      EXPECT_EQ(each->bytes[at], 0) << at;
    }
  }
  EXPECT_EQ(parse(first).file, 1U);
  EXPECT_EQ(parse(second).file, 1U);
  EXPECT_EQ(parse(first).number, 0xfffU);
  EXPECT_EQ(parse(second).number, 0xffeU);
}

TEST_F(driver_facts, E2_unused_bytes_of_event_handle_are_ignored) {
  event_agent maker;
  event_agent user;
  answer handle = maker.request(order::event_handle);
  ASSERT_OK(handle);
  std::memset(handle.bytes + unused_from, 0xa5, sizeof(handle.bytes) - unused_from);
  EXPECT_OK(user.request(order::event_open, 0, 0, handle.bytes));
}

TEST_F(driver_facts, E3_event_handle_with_own_pid_is_rejected) {
  event_agent maker;
  event_agent user;
  answer handle = maker.request(order::event_handle);
  ASSERT_OK(handle);
  EXPECT_EQ(maker.request(order::event_open, 0, 0, handle.bytes).result,
            CUDA_ERROR_INVALID_CONTEXT);
  const auto pid = static_cast<std::int32_t>(user.started().value);
  std::memcpy(handle.bytes, &pid, sizeof(pid));
  EXPECT_EQ(user.request(order::event_open, 0, 0, handle.bytes).result, CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(driver_facts, E4_wait_includes_work_recorded_after_the_handle_was_taken) {
  const gate closed;
  {
    event_agent maker;
    event_agent user;
    const answer handle = maker.request(order::event_handle);
    ASSERT_OK(handle);
    ASSERT_OK(user.request(order::event_open, 0, 0, handle.bytes));
    EXPECT_OK(user.request(order::event_query));
    closed.block(maker);
    ASSERT_OK(maker.request(order::event_record));
    EXPECT_EQ(user.request(order::event_query).result, CUDA_ERROR_NOT_READY);
    ASSERT_OK(user.request(order::event_wait));
    EXPECT_EQ(user.request(order::wait_done, 50).result, CUDA_ERROR_NOT_READY);
    closed.open();
    EXPECT_OK(user.request(order::wait_done, 20'000));
    EXPECT_OK(user.request(order::event_query));
  }
}

TEST_F(driver_facts, E5_wait_of_exporter_includes_record_of_importer) {
  const gate closed;
  {
    event_agent maker;
    event_agent user;
    const answer handle = maker.request(order::event_handle);
    ASSERT_OK(handle);
    ASSERT_OK(maker.request(order::event_record));
    ASSERT_OK(user.request(order::event_open, 0, 0, handle.bytes));
    closed.block(user);
    ASSERT_OK(user.request(order::event_record));
    ASSERT_OK(maker.request(order::event_wait));
    EXPECT_EQ(maker.request(order::wait_done, 50).result, CUDA_ERROR_NOT_READY);
    closed.open();
    EXPECT_OK(maker.request(order::wait_done, 20'000));
  }
}

TEST_F(driver_facts, E6_file_of_events_stays_after_a_kill) {
  agent killed;
  const answer exported = killed.request(order::event_handle);
  ASSERT_OK(exported);
  EXPECT_TRUE(exists(path_of(parse(exported))));
  killed.kill();
  EXPECT_TRUE(exists(path_of(parse(exported))));
  EXPECT_EQ(::unlink(path_of(parse(exported)).c_str()), 0);
}

answer entry_point(agent& user, const char* name, std::uint64_t version, std::uint64_t flags) {
  char bytes[sizeof(answer::bytes)] = {};
  std::snprintf(bytes, sizeof(bytes), "%s", name);
  return user.request(order::entry_point, version, flags, bytes);
}

TEST_F(driver_facts, P1_versions_of_entry_points) {
  agent user;
  for (const std::uint64_t version : {4010U, 11000U, 12000U}) {
    const answer found = entry_point(user, "cuIpcOpenMemHandle", version, 0);
    ASSERT_OK(found);
    EXPECT_NE(found.value, 0U) << version;
    EXPECT_EQ(found.value2, 0U) << version;
  }
  const answer old = entry_point(user, "cuMemCreate", 9000, 0);
  EXPECT_OK(old);
  EXPECT_EQ(old.value, 0U);
  EXPECT_EQ(old.value2, 2U) << "the version is not sufficient";
  const answer other = entry_point(user, "cuIpcGetMemHandleX", 12000, 0);
  EXPECT_EQ(other.value, 0U);
  EXPECT_EQ(other.value2, 1U) << "not found";
}

TEST_F(driver_facts, P2_per_thread_default_stream_has_own_entry_points) {
  constexpr std::uint64_t legacy = 1;
  constexpr std::uint64_t per_thread = 2;
  agent user;
  for (const char* const name : {"cuEventRecord", "cuEventRecordWithFlags", "cuStreamWaitEvent"}) {
    const answer one = entry_point(user, name, 12000, legacy);
    const answer other = entry_point(user, name, 12000, per_thread);
    ASSERT_OK(one);
    ASSERT_OK(other);
    EXPECT_NE(one.value, 0U) << name;
    EXPECT_NE(other.value, 0U) << name;
    EXPECT_NE(one.value, other.value) << name;
    EXPECT_EQ(entry_point(user, name, 12000, 0).value, one.value) << name;
  }
  const answer same = entry_point(user, "cuIpcGetMemHandle", 12000, per_thread);
  ASSERT_OK(same);
  EXPECT_EQ(same.value, entry_point(user, "cuIpcGetMemHandle", 12000, legacy).value);
}

}  // namespace
}  // namespace gpushm::conformance
