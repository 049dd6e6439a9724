// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "client/lease/broker_link.hpp"
#include "client/lease/lease_table.hpp"
#include "client/lease/mapping.hpp"
#include "client/segment/segment_impl.hpp"
#include "client/session/connection.hpp"
#include "client/session/fork_guard.hpp"
#include "gpushm/client.hpp"

struct gpushm_descriptor;

namespace gpushm::client_detail {

class offers;
struct granted;
struct resolved_descriptor;

/// State shared by a client, its segments and its subscriptions.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class client_impl : public std::enable_shared_from_this<client_impl> {
 public:
  explicit client_impl(connect_options options);
  client_impl(const client_impl&) = delete;
  client_impl& operator=(const client_impl&) = delete;
  ~client_impl();

  /// Returns the connection; a new one if the broker had died. Throws as `client::connect`, and
  /// cancelled if `stop` is requested while it connects.
  [[nodiscard]] std::shared_ptr<connection> broker(const std::stop_token& stop = {}) {
    return link_->get(stop);
  }
  [[nodiscard]] bool forked() const noexcept { return forks_ != fork_count(); }
  void check_usable(std::string_view operation, std::string_view object) const {
    check_not_forked(forks_, operation, object);
  }
  [[nodiscard]] steady_time request_deadline() const {
    return base::deadline_after(options_.request_limit);
  }

  [[nodiscard]] segment_ptr create(std::string_view name, const create_options& options);
  [[nodiscard]] segment_ptr open(std::string_view name, const open_options& options);
  /// As `open`; null if the name is not published (in time), is a dead exporter's, or may still be
  /// written by a dead process.
  [[nodiscard]] segment_ptr try_open(std::string_view name, const open_options& options);
  /// Opens exactly this generation. Throws gone_or_replaced if another segment has the name.
  [[nodiscard]] segment_ptr open_generation(std::string_view name,
                                            gpushm::generation generation,
                                            const open_options& options);
  [[nodiscard]] segment_ptr share(std::string_view name,
                                  void* pointer,
                                  std::uint64_t size_bytes,
                                  const share_options& options);
  [[nodiscard]] lease_table& leases() const noexcept { return *leases_; }

  // The parts of requests that timelines also use (timelines.cpp).

  struct open_reply {
    std::shared_ptr<connection> broker;
    reply got;
  };
  /// Blocks until the broker replies with a segment or a failure. `generation` 0: any.
  [[nodiscard]] open_reply request_open(std::string_view name,
                                        gpushm::generation generation,
                                        const open_options& options,
                                        offers& offered);
  /// Accepts the grant of a timeline page, of a timeline, or, without a kind, of a segment.
  /// Throws the error of a failure, invalid_argument for another kind.
  [[nodiscard]] std::shared_ptr<segment_lease> accept(open_reply& received,
                                                      std::string_view name,
                                                      std::uint64_t expected_size_bytes,
                                                      std::optional<backend> kind);
  /// Sends the reservation; destroying the result ends the granted lease.
  [[nodiscard]] std::shared_ptr<segment_lease> reserve(wire::reserve reserve,
                                                       std::string_view operation,
                                                       steady_time deadline,
                                                       const std::stop_token& stop = {}) {
    return reserve_with(std::move(reserve), operation, deadline, stop).first;
  }
  /// As above, with the memory that the broker has made: that of a timeline page.
  [[nodiscard]] std::pair<std::shared_ptr<segment_lease>, base::guarded_fd> reserve_with(
      wire::reserve reserve,
      std::string_view operation,
      steady_time deadline,
      const std::stop_token& stop = {});

  // Registered descriptors (registered.cpp).

  /// `number` 0: a random one. Throws as a request, already_exists, writer_ending,
  /// invalid_argument, wrong_descriptor_kind, unsupported_version.
  [[nodiscard]] std::unique_ptr<gpushm_descriptor> register_descriptor(int file,
                                                                       std::uint32_t number,
                                                                       std::uint64_t tag);
  /// `tag` 0: any. Throws as a request, no_such_segment, writer_ending, invalid_argument.
  [[nodiscard]] resolved_descriptor resolve_descriptor(std::uint32_t number, std::uint64_t tag);

  struct open_outcome {
    segment_ptr opened;
    std::optional<error> failure;
  };
  [[nodiscard]] std::vector<open_outcome> open_many(std::span<const std::string> names,
                                                    const open_options& options);

  /// Returns published segments, and this client's unpublished ones, sorted by name.
  [[nodiscard]] std::vector<wire::segment> list(std::string_view prefix);
  /// Appends the segments after the last of `segments`.
  void list_after(connection& connection,
                  std::string_view prefix,
                  std::vector<wire::segment>& segments) const;
  /// `generation` 0: any; gone_or_replaced if another one has the name. The same for `remove`.
  [[nodiscard]] wire::segment stat(std::string_view name, gpushm::generation generation = 0);
  void remove(std::string_view name, gpushm::generation generation = 0);
  void unfence(std::string_view name);

  // ---- versions (docs/adr/0046); each throws as a request, unsupported_version, and what the
  // ---- broker refuses with

  [[nodiscard]] std::uint64_t create_version(std::string_view base,
                                             std::uint64_t number,
                                             std::vector<std::string> parts,
                                             std::uint32_t keep_versions,
                                             std::uint64_t keep_bytes);
  void change_version(std::string_view base,
                      wire::version_change change,
                      std::uint64_t number,
                      std::string_view alias);
  [[nodiscard]] std::uint64_t resolve_version(std::string_view name);
  [[nodiscard]] std::vector<wire::version_info> list_versions(std::string_view base);

  /// See `client::prefetch`. The limits are `lease_table::max_prefetched`, a quarter of the
  /// descriptors that this process may open, and the broker's. Throws as a request; segments
  /// received before that are kept.
  std::size_t prefetch(std::string_view prefix, steady_time deadline);

 private:
  /// Throws unsupported_version unless the broker has versions of names.
  static void check_knows(const connection& broker,
                          std::string_view operation,
                          std::string_view name);
  [[nodiscard]] wire::body request_about_version(wire::body message,
                                                 std::string_view operation,
                                                 std::string_view name);
  /// What the names by alias of one `open_many` refer to: those with the same base and alias, to
  /// the version that the first of them gets.
  struct same_versions {
    std::vector<std::string> names;                                ///< all, by numbers
    std::vector<std::optional<segment_lease::name_word>> aliases;  ///< of each; none: by number
  };
  /// Opens that first one of each.
  [[nodiscard]] same_versions open_same_versions(std::span<const std::string> names,
                                                 const open_options& options,
                                                 std::span<open_outcome> results);
  [[nodiscard]] std::vector<open_outcome> open_all(std::span<const std::string> names,
                                                   const open_options& options,
                                                   std::vector<open_outcome> results);

  // The steps of an open (open.cpp).
  [[nodiscard]] segment_ptr find(std::string_view name, const open_options& options);
  /// Accepts the grant, maps the memory and caches the mapping. Throws the error of a failure.
  [[nodiscard]] segment_ptr use(open_reply received,
                                std::string_view name,
                                const open_options& options,
                                offers& offered,
                                steady_time begin);
  /// As `use`, for a prefetched segment; null if there is none.
  [[nodiscard]] segment_ptr use_prefetched(std::string_view name,
                                           gpushm::generation generation,
                                           const open_options& options);
  [[nodiscard]] segment_ptr map_and_keep(granted& grant,
                                         const open_options& options,
                                         offers& offered,
                                         steady_time begin,
                                         const std::optional<lease_table::alias>& alias);
  [[nodiscard]] bool prefetch_batch(const std::shared_ptr<connection>& connected,
                                    const std::vector<std::string>& names,
                                    const subject& about,
                                    steady_time deadline,
                                    std::size_t& count);
  /// Keeps what `replies` about `names` grant: persistent segments, or all if `any_lifetime`.
  /// Returns false if there is no room for more.
  [[nodiscard]] bool keep_prefetched(const std::shared_ptr<connection>& connected,
                                     std::vector<reply> replies,
                                     std::span<const std::string> names,
                                     bool any_lifetime,
                                     const subject& about,
                                     std::size_t& count);
  /// Those of the options, without errors of the broker's end: opens will request them.
  void prefetch_names();
  void open_batch(std::span<const std::string> names,
                  std::span<const std::size_t> indexes,
                  const open_options& options,
                  steady_time begin,
                  std::span<open_outcome> results);

  [[nodiscard]] std::shared_ptr<segment_lease> register_number(
      const std::shared_ptr<connection>& connected,
      int file,
      std::uint32_t number,
      std::span<const std::byte> facts,
      steady_time deadline);

  /// For memory that is already mapped for reading and writing.
  [[nodiscard]] segment_ptr first_user(const std::shared_ptr<segment_lease>& lease,
                                       std::shared_ptr<memory::region> memory,
                                       const device_id& device);
  /// Precondition: one use of it has been counted.
  [[nodiscard]] segment_ptr user_of(std::shared_ptr<mapping> used);

  connect_options options_;
  std::uint64_t forks_ = fork_count();
  std::shared_ptr<broker_link> link_;
  /// The link's. Segments own it, and so the link: it outlives this object for them.
  std::shared_ptr<lease_table> leases_;
};

}  // namespace gpushm::client_detail
