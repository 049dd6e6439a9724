// SPDX-License-Identifier: Apache-2.0
#pragma once

// Helpers shared by the files with the facts.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "tests/conformance/driver_facts_agent.hpp"

namespace gpushm::conformance {

inline constexpr std::uint64_t mib = 1UL << 20U;
inline constexpr std::uint64_t gib = 1UL << 30U;
inline constexpr std::uint64_t small = 2 * mib;

inline bool eventually(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

inline std::int32_t pid_in(const char* handle) {
  std::int32_t pid = 0;
  std::memcpy(&pid, handle + cuda::ipc_handle_pid_offset, sizeof(pid));
  return pid;
}

inline void put_pid(char* handle, std::int32_t pid) {
  std::memcpy(handle + cuda::ipc_handle_pid_offset, &pid, sizeof(pid));
}

inline bool on_fake_driver() {
  return std::getenv("GPUSHM_FAKE_GPU_ROOT") != nullptr;
}

class driver_facts : public ::testing::Test {
 protected:
  void SetUp() override {
    const agent probe;
    if (probe.started().result == cuda::CUDA_ERROR_NOT_INITIALIZED) {
      GTEST_SKIP() << "no CUDA driver: " << probe.started().bytes;
    }
    ASSERT_EQ(probe.started().result, cuda::CUDA_SUCCESS);
    peers_ = probe.started().value2 >= 2 && probe.started().bytes[0] != 0;
  }
  bool peers_ = false;
};

#define EXPECT_OK(asked) EXPECT_EQ((asked).result, ::gpushm::cuda::CUDA_SUCCESS)
#define ASSERT_OK(asked) ASSERT_EQ((asked).result, ::gpushm::cuda::CUDA_SUCCESS)

// Makes `maker` allocate `bytes` of VMM memory filled with `byte`, and returns its descriptor.
inline base::unique_fd create_chunk(agent& maker, int byte, std::uint64_t bytes = small) {
  EXPECT_OK(maker.request(order::create, bytes, 1));
  EXPECT_OK(maker.request(order::fill, static_cast<std::uint64_t>(byte)));
  answer exported = maker.request(order::export_chunk, 0);
  EXPECT_OK(exported);
  EXPECT_TRUE(exported.fd);
  return std::move(exported.fd);
}

inline void import_and_map(agent& user,
                           const base::unique_fd& fd,
                           cuda::CUmemAccess_flags flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                           std::uint64_t bytes = small) {
  ASSERT_OK(user.request(order::import_chunk, bytes, 0, nullptr, fd.get()));
  ASSERT_OK(user.request(order::map_imported, flags, 0));
}

inline answer create_handle(agent& maker, int byte) {
  EXPECT_OK(maker.request(order::alloc, small));
  EXPECT_OK(maker.request(order::fill, static_cast<std::uint64_t>(byte)));
  answer handle = maker.request(order::get_handle, 0);
  EXPECT_OK(handle);
  return handle;
}

/// Address of the allocation that the agent's last order created or opened.
inline std::uint64_t address_in(agent& agent) {
  const answer where = agent.request(order::where);
  EXPECT_OK(where);
  EXPECT_NE(where.value, 0U);
  return where.value;
}

inline answer attribute_in(agent& agent,
                           std::uint64_t address,
                           cuda::CUpointer_attribute attribute) {
  return agent.request(order::attribute, address, attribute);
}

inline void fill_at(agent& agent, std::uint64_t address, std::uint64_t bytes, int byte) {
  ASSERT_OK(agent.request(order::select, address, bytes));
  ASSERT_OK(agent.request(order::fill, static_cast<std::uint64_t>(byte)));
}

/// The number of `bytes` at `address` that are not `byte`; all if they cannot be read.
inline std::uint64_t wrong_bytes_at(agent& agent,
                                    std::uint64_t address,
                                    std::uint64_t bytes,
                                    int byte) {
  EXPECT_OK(agent.request(order::select, address, bytes));
  const answer checked = agent.request(order::check, static_cast<std::uint64_t>(byte));
  EXPECT_OK(checked);
  return checked.result == cuda::CUDA_SUCCESS ? checked.value : bytes;
}

}  // namespace gpushm::conformance
