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

#include "client/answer.hpp"
#include "client/request_lane.hpp"
#include "client/segment_lease.hpp"
#include "driver/devices.hpp"
#include "gpushm/client.hpp"
#include "memory/backend.hpp"

namespace gpushm::detail {

/// What is mapped of memory that stays its exporter's while the exporter is asked whether that is
/// still the same. Nobody gets it before the broker has answered with it; whatever it does not
/// answer with is unmapped.
///
/// Distinct objects: safe. Shared objects: unsafe.
class offers {
 public:
  explicit offers(const open_options& options) : options_(options) {}
  offers(const offers&) = delete;
  offers& operator=(const offers&) = delete;
  ~offers() { settle({}); }

  /// Maps what a `Waiting` offers for `name`. Where that fails, `take` says why: perhaps nobody
  /// needs it. Blocks while the driver maps.
  void map(answer offer, std::string_view name) noexcept;
  /// The broker has answered with these generations, and with no other that was offered.
  void settle(const std::vector<gpushm::generation>& granted) noexcept;
  /// The mapping of what `lease` has, for `user`; null: there is none. Throws what kept it from
  /// being mapped.
  [[nodiscard]] std::shared_ptr<memory::region> take(const segment_lease& lease,
                                                     const driver::gpu& user);

  /// While a thread maps what turns out to be freed memory, the driver gives that mapping also for
  /// the memory that has its handle now. Blocks until all that is under way at this moment in this
  /// process is settled. False: nothing is, or it was not by `deadline`.
  [[nodiscard]] static bool wait_for_others(steady_time deadline);

 private:
  struct entry {
    gpushm::generation generation = 0;
    std::vector<std::byte> ticket;
    std::string user;
    std::shared_ptr<memory::region> region;
    std::exception_ptr failure;  ///< null where there is a region
  };

  void try_to_map(entry& made, answer offer, std::string_view name) const;

  const open_options& options_;
  std::list<entry> all_;
  std::uint64_t under_way_ = 0;  ///< its number among those; 0: it is not
};

}  // namespace gpushm::detail
