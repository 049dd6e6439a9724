// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "broker/server/server.hpp"

namespace gpushm::broker_detail::testing_world {

/// A broker on a thread of this process that a test can identify. It serves from construction to
/// destruction.
class served_broker {
 public:
  /// `begins` runs on that thread before it serves.
  explicit served_broker(
      const broker_options& options, std::function<void()> begins = [] {})
      : server_(options, nullptr) {
    start begin{std::move(begins), {}};
    thread_ = std::thread([&] {
      server_.run(
          [](void* context) {
            auto& begun = *static_cast<start*>(context);
            begun.begins();
            begun.ready.set_value();
          },
          &begin);
    });
    begin.ready.get_future().wait();
  }
  served_broker(const served_broker&) = delete;
  served_broker& operator=(const served_broker&) = delete;
  ~served_broker() {
    server_.stop();
    thread_.join();
  }
  /// CPU time of its thread.
  [[nodiscard]] std::chrono::nanoseconds cpu_time() {
    clockid_t clock{};
    EXPECT_EQ(::pthread_getcpuclockid(thread_.native_handle(), &clock), 0);
    timespec used{};
    EXPECT_EQ(::clock_gettime(clock, &used), 0);
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  }

 private:
  struct start {
    std::function<void()> begins;
    std::promise<void> ready;
  };
  server server_;
  std::thread thread_;
};

}  // namespace gpushm::broker_detail::testing_world
