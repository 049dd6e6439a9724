// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "client/attachment.hpp"
#include "client/connection.hpp"
#include "client/fork_guard.hpp"
#include "gpushm/client.hpp"

namespace gpushm::detail {

class segment_impl;

/// What a client, its segments and its subscriptions share.
/// Distinct objects: safe. Shared objects: safe.
class client_impl : public std::enable_shared_from_this<client_impl> {
 public:
  explicit client_impl(connect_options options);

  /// The connection; a new one when the broker had died. Throws as `client::connect`.
  [[nodiscard]] std::shared_ptr<connection> broker();
  [[nodiscard]] bool forked() const noexcept { return forks_ != fork_count(); }
  void check_usable(std::string_view operation, std::string_view object) const {
    check_not_forked(forks_, operation, object);
  }
  [[nodiscard]] steady_time request_deadline() const {
    return std::chrono::steady_clock::now() + options_.request_timeout;
  }

  [[nodiscard]] std::unique_ptr<segment_impl> create(std::string_view name,
                                                     const create_options& options);
  [[nodiscard]] std::unique_ptr<segment_impl> open(std::string_view name,
                                                   const open_options& options);
  /// Hands each result to `take` with its index.
  struct open_outcome {
    std::unique_ptr<segment_impl> opened;
    std::optional<error> failure;
  };
  [[nodiscard]] std::vector<open_outcome> open_many(std::span<const std::string> names,
                                                    const open_options& options);

 private:
  [[nodiscard]] std::shared_ptr<connection> connect_until(steady_time deadline);
  [[nodiscard]] std::unique_ptr<segment_impl> take(const std::shared_ptr<connection>& broker,
                                                   answer opened,
                                                   const open_options& options);
  [[nodiscard]] std::shared_ptr<attachment> attach(const std::shared_ptr<connection>& broker,
                                                   wire::opened& opened,
                                                   base::unique_fd control_page);
  [[nodiscard]] std::shared_ptr<memory::region> import(connection& broker,
                                                       const wire::opened& opened,
                                                       std::vector<base::unique_fd> chunks,
                                                       const memory::backend& backend,
                                                       gpushm::access access);
  void open_batch(std::span<const std::string> names,
                  const open_options& options,
                  std::span<open_outcome> results);

  connect_options options_;
  std::uint64_t forks_ = fork_count();

  std::mutex connect_mutex_;  // one thread connects, others wait for it
  std::shared_ptr<connection> connection_;

  std::mutex attachments_mutex_;
  std::map<std::pair<const connection*, gpushm::generation>, std::weak_ptr<attachment>>
      attachments_;
  std::size_t sweep_at_ = 64;  // size at which expired entries are swept
};

}  // namespace gpushm::detail
