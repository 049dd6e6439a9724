// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
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

/// A process that this one has forked, and a packet socket to it. To be made while this process has
/// one thread and has not used the driver.
class second_process {
 public:
  /// `work` runs there with its end of the socket, and the process ends with it.
  explicit second_process(const std::function<void(int)>& work);
  second_process(const second_process&) = delete;
  second_process& operator=(const second_process&) = delete;
  /// Closes the socket and waits for the process.
  ~second_process();
  [[nodiscard]] int socket() const { return socket_.get(); }

 private:
  base::unique_fd socket_;
  int pid_ = -1;
};

/// A broker in a process of its own, in a folder of its own.
class broker_process {
 public:
  broker_process();
  broker_process(const broker_process&) = delete;
  broker_process& operator=(const broker_process&) = delete;
  ~broker_process();
  [[nodiscard]] client connect() const;
  [[nodiscard]] const std::string& socket_path() const { return options_.socket_path; }

 private:
  std::string folder_;
  broker_options options_;
  std::optional<second_process> process_;
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
struct greeted {
  base::unique_fd requests;
  base::unique_fd events = {};
  [[nodiscard]] int get() const noexcept { return requests.get(); }
};
[[nodiscard]] greeted greeted_socket(const std::string& path);
/// Sends a request and returns what comes back.
[[nodiscard]] received_message ask(int socket, const wire::message& request);

/// GPUs that CUDA shows; 0 when there is no driver.
[[nodiscard]] int gpu_count();
/// Free bytes on GPU `ordinal`.
[[nodiscard]] std::uint64_t free_gpu_bytes(int ordinal);

}  // namespace gpushm::bench
