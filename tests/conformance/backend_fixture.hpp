// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/temp_dir.hpp"

/// A broker and two clients, for tests of each kind of memory.
namespace gpushm::backend_tests {

/// The device of the memory, and the device that uses it.
struct place {
  const char* name;
  const char* home;
  const char* user;
  std::size_t gpus;
};
inline std::ostream& operator<<(std::ostream& out, const place& value) {
  return out << value.name;
}

inline constexpr std::uint64_t mib = 1UL << 20U;

inline std::size_t visible_gpu_count() {
  try {
    return driver::visible_gpus().size();
  } catch (const error&) {
    return 0;
  }
}

inline std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  std::mt19937 random(seed);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

class backend_fixture : public testing::TestWithParam<place> {
 protected:
  void SetUp() override {
    if (visible_gpu_count() < GetParam().gpus) {
      GTEST_SKIP() << "needs " << GetParam().gpus << " GPUs, CUDA reports " << visible_gpu_count();
    }
    if (GetParam().gpus > 1 && !reach_each_other()) {
      GTEST_SKIP() << "GPU " << GetParam().user << " cannot access the memory of GPU "
                   << GetParam().home;
    }
    options_.socket_path = folder_ / "socket";
    options_.raise_descriptor_limit = true;
    options_.accept_fake_chunks = std::getenv("GPUSHM_FAKE_GPU_ROOT") != nullptr;
    broker_.emplace(broker::start(options_));
    producer_.emplace(connect());
    consumer_.emplace(connect());
  }

  [[nodiscard]] static bool reach_each_other() {
    const auto& home = driver::find_device(GetParam().home);
    const auto& user = driver::find_device(GetParam().user);
    int can = home.ordinal == user.ordinal ? 1 : 0;
    if (can == 0) {
      driver::cuda_driver::instance()->cuDeviceCanAccessPeer(&can, user.handle, home.handle);
    }
    return can != 0;
  }
  [[nodiscard]] client connect() const {
    return client::connect({.socket_path = options_.socket_path});
  }
  [[nodiscard]] bool on_gpu() const { return GetParam().gpus > 0; }
  [[nodiscard]] create_options make(std::uint64_t size_bytes, std::uint64_t chunk_bytes = 0) const {
    return {.size_bytes = size_bytes, .device = GetParam().home, .chunk_bytes = chunk_bytes};
  }
  [[nodiscard]] open_options use(access rights = access::read) const {
    return {.access = rights, .device = on_gpu() ? GetParam().user : ""};
  }
  [[nodiscard]] std::shared_ptr<const memory::backend> home() const {
    return memory::backend_for_create(GetParam().home, false);
  }
  [[nodiscard]] std::shared_ptr<const memory::backend> user() const {
    return memory::backend_for_open(home()->kind(), home()->device(), use().device);
  }

  /// Returns when the broker has processed everything that both clients sent: releases have no
  /// reply.
  void settle() {
    static_cast<void>(producer_->list());
    static_cast<void>(consumer_->list());
  }

  /// Free memory of the home GPU; there is no exact figure for the host.
  [[nodiscard]] std::uint64_t free_bytes() const {
    const auto& gpu = driver::find_device(GetParam().home);
    const auto context = driver::retain_primary_context(gpu.handle, "test", gpu.id.uuid);
    const driver::context_scope scope(context.get().context, "test", gpu.id.uuid);
    std::size_t free_now = 0;
    std::size_t total_now = 0;
    driver::cuda_driver::instance()->cuMemGetInfo_v2(&free_now, &total_now);
    return free_now;
  }

  gpushm_testing::temp_dir folder_;
  broker_options options_;
  std::optional<broker> broker_;
  std::optional<client> producer_;
  std::optional<client> consumer_;
};

template <typename Call>
errc code_of(Call&& call) {
  try {
    call();
  } catch (const error& why) {
    EXPECT_FALSE(why.cause().empty());
    EXPECT_FALSE(why.next_step().empty()) << why.what();
    return why.code();
  }
  ADD_FAILURE() << "no error";
  return errc::system_error;
}

/// Waits for a condition: the broker closes the files of freed segments on its own thread, within a
/// second by design.
template <typename Condition>
bool soon(Condition&& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  do {
    if (holds()) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

/// For INSTANTIATE_TEST_SUITE_P.
inline auto all_places() {
  return testing::Values(place{"host", "host", "", 0},
                         place{"gpu", "0", "0", 1},
                         place{"peer_gpu", "0", "1", 2},
                         place{"other_gpu", "1", "1", 2});
}

}  // namespace gpushm::backend_tests
