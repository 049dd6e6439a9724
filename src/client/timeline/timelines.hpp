// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "client/segment/client_impl.hpp"
#include "client/timeline/timeline_pages.hpp"

struct gpushm_timeline;

namespace gpushm::client_detail {

/// Timelines that this process has opened, with their lease.
struct opened_timelines {
  std::shared_ptr<segment_lease> lease;
  timeline_range range;
  std::uint32_t count = 0;
};

/// The timelines of a client, and their pages at the broker.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class timelines : public std::enable_shared_from_this<timelines> {
 public:
  explicit timelines(std::shared_ptr<client_impl> client) : client_(std::move(client)) {}
  timelines(const timelines&) = delete;
  timelines& operator=(const timelines&) = delete;
  ~timelines() = default;

  [[nodiscard]] client_impl& client() const noexcept { return *client_; }
  [[nodiscard]] timeline_pages& pages() noexcept { return pages_; }

  /// Creates and publishes a timeline. Throws as a request.
  [[nodiscard]] std::unique_ptr<gpushm_timeline> create(std::string_view name);
  /// Takes over a timeline whose signaler has handed it over or has ended: creates it again. Waits
  /// until its name is free, or `deadline`. Throws as a request.
  [[nodiscard]] std::unique_ptr<gpushm_timeline> take_over(const std::string& name,
                                                           std::uint64_t value,
                                                           steady_time deadline);
  /// Timelines that belong to a segment of this process. Throws invalid_argument (another process
  /// has created it), and as a request.
  [[nodiscard]] std::vector<std::unique_ptr<gpushm_timeline>> create_for(
      const gpushm_segment& segment, std::uint32_t count);
  /// Blocks until the segment's creator has created them. Throws as `open`.
  [[nodiscard]] std::unique_ptr<gpushm_timeline> open_for(const gpushm_segment& segment,
                                                          std::uint32_t index,
                                                          const open_options& options);
  /// Blocks until the name is published. Generation 0: any. Throws as `client_impl::open`.
  [[nodiscard]] std::unique_ptr<gpushm_timeline> open(std::string_view name,
                                                      const open_options& options,
                                                      gpushm::generation generation = 0);

  // Used by channels.

  /// Reserves a new page of this process, and publishes it. Throws as a request.
  [[nodiscard]] std::shared_ptr<mapped_page> make_page(std::string name,
                                                       std::uint64_t bytes,
                                                       steady_time deadline);
  /// Takes free timelines; makes a page if no page has any. Throws as a request.
  [[nodiscard]] timeline_range take_timelines(std::uint32_t count, steady_time deadline);
  /// Reserves a name for timelines of this process, which other processes do not see before they
  /// are published. Throws as a request, and cancelled if `stop` was requested while a dead process
  /// that may still write had the name.
  [[nodiscard]] std::shared_ptr<segment_lease> reserve_timelines(std::string name,
                                                                 const timeline_range& range,
                                                                 std::uint32_t count,
                                                                 steady_time deadline,
                                                                 const std::stop_token& stop = {});
  /// Opens timelines by name; generation 0: any. Blocks until the name is published. Throws as
  /// `open`.
  [[nodiscard]] opened_timelines open_timelines(std::string_view name,
                                                gpushm::generation generation,
                                                const open_options& options);
  /// Opens a page of another process. Throws as `open`.
  [[nodiscard]] std::shared_ptr<mapped_page> open_page(const std::string& name,
                                                       gpushm::generation generation);

 private:
  struct new_timelines {
    std::uint32_t count = 1;  ///< of one name
    bool for_segment = false;
    std::uint64_t value = 0;
    std::string_view operation = "create";
    /// How long another timeline may still have the name.
    steady_time wait_for_name_until = {};
  };
  [[nodiscard]] std::vector<std::unique_ptr<gpushm_timeline>> create_all(
      std::string_view name, const new_timelines& timelines);

  std::shared_ptr<client_impl> client_;  // destroyed last
  timeline_pages pages_;
};

}  // namespace gpushm::client_detail
