// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/broker_link.hpp"
#include "client/connection.hpp"
#include "client/fork_guard.hpp"
#include "client/lease_table.hpp"
#include "client/mapping.hpp"
#include "client/segment_impl.hpp"
#include "gpushm/client.hpp"

namespace gpushm::detail {

class offers;
struct granted;

/// What a client, its segments and its subscriptions share.
/// Distinct objects: safe. Shared objects: safe.
class client_impl : public std::enable_shared_from_this<client_impl> {
 public:
  explicit client_impl(connect_options options);
  client_impl(const client_impl&) = delete;
  client_impl& operator=(const client_impl&) = delete;
  ~client_impl() = default;

  /// The connection; a new one when the broker had died. Throws as `client::connect`.
  [[nodiscard]] std::shared_ptr<connection> broker() { return link_.get(); }
  [[nodiscard]] bool forked() const noexcept { return forks_ != fork_count(); }
  void check_usable(std::string_view operation, std::string_view object) const {
    check_not_forked(forks_, operation, object);
  }
  [[nodiscard]] steady_time request_deadline() const {
    return base::deadline_after(options_.request_timeout);
  }

  [[nodiscard]] segment_ptr create(std::string_view name, const create_options& options);
  [[nodiscard]] segment_ptr open(std::string_view name, const open_options& options);
  /// The same; null when the name is not there (in time), was a dead exporter's, or may still be
  /// written by a dead process.
  [[nodiscard]] segment_ptr try_open(std::string_view name, const open_options& options);
  /// Opens exactly this generation. Throws gone_or_replaced when the name is another's by now.
  [[nodiscard]] segment_ptr open_generation(std::string_view name,
                                            gpushm::generation generation,
                                            const open_options& options);
  [[nodiscard]] segment_ptr share(std::string_view name,
                                  void* pointer,
                                  std::uint64_t size_bytes,
                                  const share_options& options);
  [[nodiscard]] lease_table& leases() const noexcept { return *leases_; }

  struct open_outcome {
    segment_ptr opened;
    std::optional<error> failure;
  };
  [[nodiscard]] std::vector<open_outcome> open_many(std::span<const std::string> names,
                                                    const open_options& options);

  /// Published segments, and own unpublished ones, sorted by name.
  [[nodiscard]] std::vector<wire::segment> list(std::string_view prefix);
  /// Appends those that come after the last of `all`.
  void list_after(connection& to, std::string_view prefix, std::vector<wire::segment>& all) const;
  [[nodiscard]] wire::segment stat(std::string_view name);
  void remove(std::string_view name);
  void unfence(std::string_view name);

  /// Asks for what opens of persistent segments under `prefix` will need of the broker: the next
  /// open of each then asks nobody, and only maps. Their leases are this client's from now on, and
  /// go back with `trim`, with the end of their segment, of this client, or of the broker. Leaves
  /// out what this client has already, memory that stays its exporter's, and what has more than 253
  /// chunks; stops where there is no room (`lease_table::most_prefetched`, a quarter of the
  /// descriptors that this process may open, the broker's limits). Returns how many there are more.
  /// Throws as a request; what has come by then stays.
  std::size_t prefetch(std::string_view prefix, steady_time deadline);

 private:
  struct asked {
    std::shared_ptr<connection> broker;
    answer got;
  };

  // The steps of an open (open.cpp).
  [[nodiscard]] segment_ptr find(std::string_view name, const open_options& options);
  /// Until the broker answers with a segment or a failure. `generation` 0: any.
  [[nodiscard]] asked ask_to_open(std::string_view name,
                                  gpushm::generation generation,
                                  const open_options& options,
                                  offers& offered);
  /// Takes what is granted, maps it, and keeps it. Throws a failure.
  [[nodiscard]] segment_ptr use(asked answered,
                                std::string_view name,
                                const open_options& options,
                                offers& offered,
                                steady_time begin);
  /// The same of what was prefetched; null: nothing was.
  [[nodiscard]] segment_ptr use_prefetched(std::string_view name,
                                           gpushm::generation generation,
                                           const open_options& options);
  [[nodiscard]] segment_ptr map_and_keep(granted& what,
                                         const open_options& options,
                                         offers& offered,
                                         steady_time begin);
  [[nodiscard]] bool prefetch_batch(const std::shared_ptr<connection>& connected,
                                    const std::vector<std::string>& names,
                                    const subject& about,
                                    steady_time deadline,
                                    std::size_t& count);
  void open_batch(std::span<const std::string> names,
                  std::span<const std::size_t> wanted,
                  const open_options& options,
                  steady_time begin,
                  std::span<open_outcome> results);

  /// Sends the reservation; the lease that it gives ends with the result.
  [[nodiscard]] std::shared_ptr<segment_lease> reserve(wire::reserve wanted,
                                                       std::string_view operation,
                                                       steady_time deadline);
  /// Of memory that is mapped already, for reading and writing.
  [[nodiscard]] segment_ptr first_user(const std::shared_ptr<segment_lease>& lease,
                                       std::shared_ptr<memory::region> memory,
                                       const device_id& device);
  /// One use of it has been counted.
  [[nodiscard]] segment_ptr user_of(std::shared_ptr<mapping> used);

  connect_options options_;
  std::uint64_t forks_ = fork_count();
  std::shared_ptr<lease_table> leases_;
  broker_link link_;
};

}  // namespace gpushm::detail
