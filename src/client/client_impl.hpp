// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "client/attachment.hpp"
#include "client/connection.hpp"
#include "client/fork_guard.hpp"
#include "client/import_cache.hpp"
#include "client/mapping.hpp"
#include "gpushm/client.hpp"

namespace gpushm::detail {

class segment_impl;

/// What a client, its segments and its subscriptions share.
/// Distinct objects: safe. Shared objects: safe.
class client_impl : public std::enable_shared_from_this<client_impl> {
 public:
  explicit client_impl(connect_options options);
  client_impl(const client_impl&) = delete;
  client_impl& operator=(const client_impl&) = delete;
  ~client_impl();

  /// The connection; a new one when the broker had died. Throws as `client::connect`.
  [[nodiscard]] std::shared_ptr<connection> broker();
  [[nodiscard]] bool forked() const noexcept { return forks_ != fork_count(); }
  void check_usable(std::string_view operation, std::string_view object) const {
    check_not_forked(forks_, operation, object);
  }
  [[nodiscard]] steady_time request_deadline() const {
    return base::deadline_after(options_.request_timeout);
  }

  [[nodiscard]] std::unique_ptr<segment_impl> create(std::string_view name,
                                                     const create_options& options);
  [[nodiscard]] std::unique_ptr<segment_impl> open(std::string_view name,
                                                   const open_options& options);
  /// The same; null when the name is not there (in time), was a dead exporter's, or may still be
  /// written by a dead process.
  [[nodiscard]] std::unique_ptr<segment_impl> try_open(std::string_view name,
                                                       const open_options& options);
  /// Opens exactly this generation. Throws stale when the name is another's by now.
  [[nodiscard]] std::unique_ptr<segment_impl> open_generation(std::string_view name,
                                                              gpushm::generation generation,
                                                              const open_options& options);
  [[nodiscard]] std::unique_ptr<segment_impl> share(std::string_view name,
                                                    void* pointer,
                                                    std::uint64_t size_bytes,
                                                    const share_options& options);
  void unshare(std::string_view name);
  [[nodiscard]] import_cache& cache() const noexcept { return *cache_; }

  struct open_outcome {
    std::unique_ptr<segment_impl> opened;
    std::optional<error> failure;
  };
  [[nodiscard]] std::vector<open_outcome> open_many(std::span<const std::string> names,
                                                    const open_options& options);

 private:
  /// Asks the broker until it answers with a segment or a failure. `generation` 0: any.
  struct asked {
    std::shared_ptr<connection> broker;
    answer got;
  };
  [[nodiscard]] asked ask_to_open(std::string_view name,
                                  gpushm::generation generation,
                                  const open_options& options);
  [[nodiscard]] std::shared_ptr<connection> connect_until(steady_time deadline,
                                                          const connection* predecessor = nullptr);
  void hand_over(const std::shared_ptr<connection>& from, const std::shared_ptr<connection>& to);
  [[nodiscard]] std::unique_ptr<segment_impl> find_cached(std::string_view name,
                                                          const open_options& options);
  /// Sends the reservation; the lease that it gives ends with the result.
  [[nodiscard]] std::shared_ptr<attachment> reserve(const std::shared_ptr<connection>& broker,
                                                    wire::reserve wanted,
                                                    std::string_view operation,
                                                    steady_time deadline);
  [[nodiscard]] std::unique_ptr<segment_impl> user_of(const std::shared_ptr<mapping>& mapped);
  struct chunk_batch {
    std::vector<std::uint64_t> bytes;  ///< of `files`
    std::vector<base::guarded_fd> files;
  };
  /// What one `Opened` gave.
  struct granted {
    std::shared_ptr<attachment> lease;
    chunk_batch first;  ///< may be empty
  };
  [[nodiscard]] granted take(const std::shared_ptr<connection>& broker,
                             answer got,
                             std::string_view name,
                             const open_options& options);
  /// Maps it, and fetches the chunks that are missing.
  [[nodiscard]] std::unique_ptr<segment_impl> use(granted taken,
                                                  const open_options& options,
                                                  steady_time begin);
  [[nodiscard]] std::shared_ptr<attachment> attach(const std::shared_ptr<connection>& broker,
                                                   wire::opened& opened,
                                                   grant& granted);
  void add_attachment(const std::shared_ptr<attachment>& lease);
  void insert_attachment(const std::shared_ptr<attachment>& lease);
  [[nodiscard]] std::shared_ptr<mapping> map(const std::shared_ptr<attachment>& lease,
                                             chunk_batch first,
                                             const open_options& options);
  [[nodiscard]] std::shared_ptr<mapping> map_exporters(const std::shared_ptr<attachment>& lease,
                                                       chunk_batch first,
                                                       const open_options& options);
  [[nodiscard]] chunk_batch fetch_chunks(const attachment& lease, std::uint32_t first);
  [[nodiscard]] std::unique_ptr<memory::region> import(const attachment& lease,
                                                       chunk_batch first,
                                                       const memory::backend& backend,
                                                       gpushm::access access);
  void open_batch(std::span<const std::string> names,
                  std::span<const std::size_t> wanted,
                  const open_options& options,
                  steady_time begin,
                  std::span<open_outcome> results);

  connect_options options_;
  std::uint64_t forks_ = fork_count();
  std::shared_ptr<import_cache> cache_;

  std::mutex connect_mutex_;
  std::condition_variable connected_;
  bool connecting_ = false;  ///< one thread connects; others wait for it, each as long as it may
  std::shared_ptr<connection> connection_;

  std::mutex attachments_mutex_;
  std::map<std::pair<const connection*, gpushm::generation>, std::weak_ptr<attachment>>
      attachments_;
  std::map<std::string, std::weak_ptr<attachment>, std::less<>> shares_;
  std::size_t sweep_at_ = 64;  // size at which expired entries are swept
};

}  // namespace gpushm::detail
