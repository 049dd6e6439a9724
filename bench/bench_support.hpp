// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "wire/messages.hpp"

namespace gpushm::bench {

/// A broker on a thread of this process, in a folder of its own.
class private_broker {
 public:
  private_broker();
  private_broker(const private_broker&) = delete;
  private_broker& operator=(const private_broker&) = delete;
  ~private_broker();
  [[nodiscard]] client connect() const;
  [[nodiscard]] const std::string& socket_path() const { return options_.socket_path; }

 private:
  std::string folder_;
  broker_options options_;
  std::optional<broker> broker_;
};

/// Durations of one thing, in microseconds.
class samples {
 public:
  template <typename Call>
  void time(Call&& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    add(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
  }
  void add(double microseconds) { values_.push_back(microseconds); }
  [[nodiscard]] double median() const;
  [[nodiscard]] std::size_t size() const { return values_.size(); }

 private:
  std::vector<double> values_;
};

/// A packet's message and descriptors.
struct received_message {
  wire::message message;
  std::vector<base::unique_fd> descriptors;
};
/// A connection to a broker that has said hello, without the client library.
[[nodiscard]] base::unique_fd greeted_socket(const std::string& path);
/// Sends a request and returns what comes back.
[[nodiscard]] received_message ask(int socket, const wire::message& request);

/// GPUs that CUDA shows; 0 when there is no driver.
[[nodiscard]] int gpu_count();
/// Free bytes on GPU `ordinal`.
[[nodiscard]] std::uint64_t free_gpu_bytes(int ordinal);

}  // namespace gpushm::bench
