// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::bench {

/// A broker on a thread of this process, in a temporary folder.
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

/// A forked child process, and a packet socket to it. Create it while this process has one thread
/// and has not used the driver.
class second_process {
 public:
  /// Runs `work` there with the child's end of the socket, and then exits the process.
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

/// A broker in a child process, in a temporary folder.
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

/// Durations of one operation, in microseconds.
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
/// A connection to a broker after its hello, without the client library.
struct greeted {
  base::unique_fd requests;
  base::unique_fd events = {};
  [[nodiscard]] int get() const noexcept { return requests.get(); }
};
[[nodiscard]] greeted greeted_socket(const std::string& path);
/// Sends a request and returns the reply.
[[nodiscard]] received_message ask(int socket, const wire::message& request);

/// Number of GPUs that CUDA shows; 0 without a driver.
[[nodiscard]] int gpu_count();
/// Free bytes on GPU `ordinal`.
[[nodiscard]] std::uint64_t free_gpu_bytes(int ordinal);

}  // namespace gpushm::bench
