// SPDX-License-Identifier: Apache-2.0
// Handles as an H200 with driver 580 made them, and what the library does with them and with
// others.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "ipc/event_set.h"
#include "ipc/handle.h"
#include "ipc/numbers.h"
}

namespace {

ipc_handle handle_of(const std::string& hexadecimal) {
  ipc_handle handle{};
  std::size_t next = 0;
  for (std::size_t at = 0; at < hexadecimal.size();) {
    if (hexadecimal[at] == ' ') {
      ++at;
      continue;
    }
    handle.bytes[next++] =
        static_cast<unsigned char>(std::stoul(hexadecimal.substr(at, 2), nullptr, 16));
    at += 2;
  }
  EXPECT_EQ(next, sizeof(handle.bytes));
  return handle;
}

// Of process 0x2c3.
ipc_handle measured_memory() {
  return handle_of(
      "e0587e4f07560000 c302000000000000 0000200000000000 0002000000000000 "
      "0600000000ff0000 3300000000000000 2100d0c19800005c 0000000000000000");
}

ipc_handle measured_event() {
  return handle_of(
      "c302000000000000 0100000000000000 ff0f000000000000 0000000000000000 "
      "0000000000000000 0000000000000000 0000000000000000 0000000000000000");
}

constexpr std::int32_t exporter_pid = 0x2c3;

bool is_equal(const ipc_handle& left, const ipc_handle& right) {
  return std::memcmp(left.bytes, right.bytes, sizeof(left.bytes)) == 0;
}

TEST(memory_handles, have_their_tag_until_it_is_taken) {
  const std::uint64_t tag = ipc_make_tag(0x123456789abcdef0);
  ipc_handle handle = measured_memory();
  ASSERT_TRUE(ipc_tag_memory(&handle, exporter_pid, tag));
  EXPECT_FALSE(is_equal(handle, measured_memory()));
  EXPECT_EQ(ipc_take_memory_tag(&handle), tag);
  EXPECT_TRUE(is_equal(handle, measured_memory()));
  EXPECT_EQ(ipc_take_memory_tag(&handle), 0U);
}

TEST(memory_handles, of_unknown_layout_stay_as_they_are) {
  const std::uint64_t tag = ipc_make_tag(7);
  ipc_handle handle = measured_memory();
  EXPECT_FALSE(ipc_tag_memory(&handle, exporter_pid + 1, tag)) << "no PID of the exporter";
  for (std::size_t each = 56; each < sizeof(handle.bytes); ++each) {
    handle = measured_memory();
    handle.bytes[each] = 1;
    const ipc_handle before = handle;
    EXPECT_FALSE(ipc_tag_memory(&handle, exporter_pid, tag)) << each;
    EXPECT_TRUE(is_equal(handle, before)) << each;
  }
}

TEST(memory_handles, are_found_by_a_pid_of_their_exporter) {
  ipc_handle handle = measured_memory();
  EXPECT_EQ(ipc_memory_pid(&handle), exporter_pid);
  const std::int32_t given = ipc_pid_of_exporter(ipc_make_tag(1));
  ipc_set_memory_pid(&handle, given);
  EXPECT_EQ(ipc_memory_pid(&handle), given);
  EXPECT_GE(given, 1 << 30) << "no process has it";
  EXPECT_NE(given, ipc_pid_of_exporter(ipc_make_tag(2)));
  EXPECT_GT(IPC_PID_OF_UNKNOWN_EXPORTER, 1 << 22);
  EXPECT_LT(IPC_PID_OF_UNKNOWN_EXPORTER, 1 << 30) << "not that of an exporter with a tag";
}

TEST(event_handles, have_their_tag_until_it_is_taken) {
  for (const ipc_event_tag& added : {ipc_event_tag{ipc_make_tag(5), 77, ipc_event_by_file},
                                     ipc_event_tag{ipc_make_tag(5), 0, ipc_event_completed}}) {
    ipc_handle handle = measured_event();
    std::uint64_t file = 0;
    ASSERT_TRUE(ipc_event_file(&handle, exporter_pid, &file));
    EXPECT_EQ(file, 1U);
    ipc_tag_event(&handle, &added);
    EXPECT_FALSE(ipc_event_file(&handle, exporter_pid, &file)) << "tagged already";
    ipc_event_tag taken{};
    ASSERT_TRUE(ipc_take_event_tag(&handle, &taken));
    EXPECT_EQ(taken.process, added.process);
    EXPECT_EQ(taken.number, added.number);
    EXPECT_EQ(taken.way, added.way);
    EXPECT_TRUE(is_equal(handle, measured_event()));
    EXPECT_FALSE(ipc_take_event_tag(&handle, &taken));
  }
}

TEST(event_handles, of_unknown_layout_have_no_file) {
  std::uint64_t file = 0;
  ipc_handle handle = measured_event();
  EXPECT_FALSE(ipc_event_file(&handle, exporter_pid + 1, &file));
  for (std::size_t each = 0; each < sizeof(handle.bytes); ++each) {
    const bool is_known = (each >= 8 && each < 20);  // file and event
    handle = measured_event();
    handle.bytes[each] = static_cast<unsigned char>(handle.bytes[each] ^ 0x40U);
    EXPECT_EQ(ipc_event_file(&handle, exporter_pid, &file), is_known) << each;
  }
  handle = measured_event();
  handle.bytes[8] = 0;
  EXPECT_FALSE(ipc_event_file(&handle, exporter_pid, &file)) << "files begin with 1";
}

TEST(event_handles, with_another_byte_are_unchanged_or_lose_a_whole_tag) {
  const ipc_event_tag added{ipc_make_tag(0xfeedface), 12345, ipc_event_by_file};
  ipc_handle original = measured_event();
  ipc_tag_event(&original, &added);
  for (std::size_t at = 0; at < sizeof(original.bytes); ++at) {
    for (int value = 0; value < 256; ++value) {
      ipc_handle handle = original;
      handle.bytes[at] = static_cast<unsigned char>(value);
      const ipc_handle before = handle;
      ipc_event_tag taken{};
      if (ipc_take_event_tag(&handle, &taken)) {
        EXPECT_NE(taken.process, 0U);
        EXPECT_LT(taken.number, IPC_NUMBER_END);
        EXPECT_TRUE(taken.way == ipc_event_by_file || taken.way == ipc_event_completed);
        EXPECT_EQ(std::memcmp(handle.bytes, before.bytes, 48), 0);
        EXPECT_EQ(std::string(reinterpret_cast<const char*>(handle.bytes) + 48, 16),
                  std::string(16, '\0'));
      } else {
        EXPECT_TRUE(is_equal(handle, before)) << at << ": " << value;
      }
    }
  }
}

TEST(event_handles, are_opened_with_the_number_of_a_registered_file) {
  for (const std::uint32_t number : {1U, 77U, IPC_NUMBER_END - 1}) {
    EXPECT_EQ(ipc_number_of_pid(static_cast<std::uint32_t>(ipc_pid_of_number(number))), number);
  }
  for (const std::uint32_t pid :
       {0U, 1U, 4'194'304U, IPC_NUMBER_END - 1, 0x80000001U, 0xffffffffU}) {
    EXPECT_EQ(ipc_number_of_pid(pid), 0U) << pid;
  }
}

TEST(event_file_names, are_read_as_the_driver_writes_them) {
  std::uint32_t pid = 0;
  std::uint64_t file = 0;
  ASSERT_TRUE(ipc_read_event_file_name("/cuda.shm.0.2c3.1", &pid, &file));
  EXPECT_EQ(pid, 0x2c3U);
  EXPECT_EQ(file, 1U);
  ASSERT_TRUE(ipc_read_event_file_name("/cuda.shm.4d2.4a2cb71.ffffffffffffffff", &pid, &file));
  EXPECT_EQ(pid, 0x4a2cb71U);
  EXPECT_EQ(file, ~std::uint64_t{0});
  for (const char* const other : {"",
                                  "/",
                                  "/cuda.shm.",
                                  "/cuda.shm.0.1",
                                  "/cuda.shm.0.1.",
                                  "/cuda.shm..1.1",
                                  "/cuda.shm.0.-1.1",
                                  "/cuda.shm.0.0x1.1",
                                  "/cuda.shm.0.1.1 ",
                                  "/cuda.shm.0.1.1.1",
                                  "/cuda.shm.0.1A.1",
                                  "/cuda.shm.0.123456789.1",
                                  "/cuda.shm.0.1.12345678901234567",
                                  "/cuda_injection_path_shm",
                                  "cuda.shm.0.1.1",
                                  "/mps.shm.0.1"}) {
    EXPECT_FALSE(ipc_read_event_file_name(other, &pid, &file)) << other;
  }
}

TEST(numbers_of_descriptors, are_from_the_soft_limit_on) {
  // Where that leaves less than 1,024, the upper half.
  EXPECT_EQ(ipc_choose_numbers(1024, 1'048'576).first, 1024U);
  EXPECT_EQ(ipc_choose_numbers(1024, 1'048'576).count, 65'536U);
  EXPECT_EQ(ipc_choose_numbers(1024, 4096).count, 3072U);
  EXPECT_EQ(ipc_choose_numbers(1024, 1024).first, 512U);
  EXPECT_EQ(ipc_choose_numbers(1024, 1024).count, 512U);
  EXPECT_EQ(ipc_choose_numbers(4096, 4096).count, 2048U);
  EXPECT_EQ(ipc_choose_numbers(UINT64_MAX, UINT64_MAX).count, 65'536U);
  EXPECT_EQ(ipc_choose_numbers(0, 0).count, 0U);
}

TEST(completed_events, are_known_until_they_are_removed) {
  std::vector<char> events(20'000);
  EXPECT_FALSE(ipc_has_event(events.data()));
  std::vector<std::thread> threads;
  for (std::size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (std::size_t each = first; each < events.size(); each += 4) {
        EXPECT_TRUE(ipc_add_event(&events[each]));
        EXPECT_TRUE(ipc_add_event(&events[each])) << "again";
        EXPECT_TRUE(ipc_has_event(&events[each]));
        if (each % 8 < 4) {
          ipc_remove_event(&events[each]);
          EXPECT_FALSE(ipc_has_event(&events[each]));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::size_t each = 0; each < events.size(); ++each) {
    EXPECT_EQ(ipc_has_event(&events[each]), each % 8 >= 4) << each;
    ipc_remove_event(&events[each]);
  }
}

}  // namespace
