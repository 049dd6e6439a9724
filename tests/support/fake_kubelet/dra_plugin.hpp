// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

namespace gpushm_testing {

struct dra_health {
  int status = 0;  ///< 1: healthy, 2: unhealthy
  std::int64_t updated_s = 0;
  std::string message;
};

/// A registered plugin: its connection, which is kept open, and its health stream, which is
/// requested again after it has ended. Thread-safety: shared objects: safe.
class dra_plugin {
 public:
  /// `service` is used for calls, `health_service` (empty: none) for health. If `health_retry` is
  /// zero, health is not requested.
  dra_plugin(std::string driver,
             std::string endpoint,
             std::string service,
             std::string health_service,
             std::chrono::milliseconds health_retry);
  dra_plugin(const dra_plugin&) = delete;
  dra_plugin& operator=(const dra_plugin&) = delete;
  ~dra_plugin();

  [[nodiscard]] const std::string& driver() const { return driver_; }
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
  [[nodiscard]] const std::string& service() const { return service_; }
  [[nodiscard]] const std::string& health_service() const { return health_service_; }
  [[nodiscard]] const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  /// Also makes gRPC connect if it is idle.
  [[nodiscard]] bool is_connected() const;
  /// The last message, by device; empty before the first.
  [[nodiscard]] std::map<std::string, dra_health> health() const;
  /// Number of requests for health, and of messages received.
  [[nodiscard]] unsigned health_attempts() const;
  [[nodiscard]] unsigned health_messages() const;

 private:
  void watch_health(const std::stop_token& stop);
  void read_stream();
  template <typename Stub, typename Request, typename Response>
  void read_stream_of(Stub& stub);

  const std::string driver_;
  const std::string endpoint_;
  const std::string service_;
  const std::string health_service_;
  const std::chrono::milliseconds health_retry_;
  const std::shared_ptr<grpc::Channel> channel_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  bool ending_ = false;
  grpc::ClientContext* reading_ = nullptr;
  std::map<std::string, dra_health> health_;
  unsigned attempts_ = 0;
  unsigned messages_ = 0;
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace gpushm_testing
