// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/lease/segment_lease.hpp"
#include "client/session/reply.hpp"
#include "client/session/request_lane.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "gpushm/client.hpp"

namespace gpushm::client_detail {

/// Mappings of memory bound to its exporter that are created while the broker asks the exporter
/// whether the memory is unchanged. They are not used before the broker has replied with their
/// segments; others are unmapped.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class offers {
 public:
  explicit offers(const open_options& options) : options_(options) {}
  offers(const offers&) = delete;
  offers& operator=(const offers&) = delete;
  ~offers() { settle({}); }

  /// Maps the memory that a `Waiting` offers for `name`. `take` throws the error of a failure, as
  /// the mapping may not be needed. Blocks for the driver.
  void map(reply offer, std::string_view name) noexcept;
  /// The broker has replied with these generations, and refused all other offers.
  void settle(const std::vector<gpushm::generation>& granted) noexcept;
  /// Returns the mapping for `lease` and `user`; null if there is none. Throws the error that
  /// prevented it.
  [[nodiscard]] std::shared_ptr<memory::region> take(const segment_lease& lease,
                                                     const driver::gpu& user);

  /// While a thread has a mapping of memory that turns out to be freed, the driver returns that
  /// mapping also for the memory that reuses its handle. Blocks until all offers of this process
  /// that are pending now are settled. Returns false if there were none, or if they were not
  /// settled by `deadline`.
  [[nodiscard]] static bool wait_for_others(steady_time deadline);

 private:
  struct entry {
    gpushm::generation generation = 0;
    std::vector<std::byte> ticket;
    std::string user;
    std::shared_ptr<memory::region> region;
    std::exception_ptr failure;  ///< null if there is a region
  };

  void try_to_map(entry& result, reply offer, std::string_view name) const;

  const open_options& options_;
  std::list<entry> all_;
  std::uint64_t pending_number_ = 0;  ///< its number among pending offers; 0: not pending
};

}  // namespace gpushm::client_detail
