// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/guarded_fd.hpp"
#include "client/answer.hpp"
#include "client/connection.hpp"
#include "client/mapping.hpp"
#include "client/segment_lease.hpp"
#include "gpushm/client.hpp"

namespace gpushm::detail {

/// The limits of `options`, else of the environment, else the documented defaults. Throws
/// invalid_argument for an environment variable that is no size or number.
[[nodiscard]] cache_bounds bounds_from(const cache_options& options);

/// The leases of a client, and what is mapped of them: the one table that opens, creates and shares
/// put into, and the import cache. It finds mappings by what they were opened with, and keeps some
/// though nobody uses them: of persistent segments, least recently used ones go first, those in use
/// never. Kept mappings go at once when their segment is removed or the broker dies. The last one
/// of each peer GPU and size class goes last of all: it makes later opens from that GPU a hundred
/// times cheaper.
///
/// Mappings that are used or kept are the table's; each use is counted. So a hit counts no
/// references. Leases live as long as a mapping of them, and leave the table when they end. No lock
/// is held while a mapping is made or ended: a hit never waits for the driver.
/// Distinct objects: safe. Shared objects: safe.
class lease_table final : public lease_listener, public std::enable_shared_from_this<lease_table> {
 public:
  explicit lease_table(cache_bounds bounds) : bounds_(bounds) {}
  lease_table(const lease_table&) = delete;
  lease_table& operator=(const lease_table&) = delete;
  ~lease_table() override = default;

  // ---- leases ----

  /// The lease that an answer of `broker` granted: one that is there counts one more grant, else a
  /// new one. `granted` is the lease's then. Throws broker_gone when the leases of `broker` were
  /// handed over before this one was known; then `granted` is as before.
  [[nodiscard]] std::shared_ptr<segment_lease> take(const std::shared_ptr<connection>& broker,
                                                    segment_lease::facts what,
                                                    grant& granted,
                                                    std::string_view operation);
  /// The broker has ended `from`, and `to` has its leases: those that live are `to`'s from now on.
  /// Tells the broker which those are, and with how many grants; the others end there. Throws as a
  /// request.
  void hand_over(connection& from, const std::shared_ptr<connection>& to, steady_time deadline);
  /// It ends. No effect where there is a new one of that generation.
  void forget_lease(const segment_lease& gone) noexcept;

  // ---- prefetched ----

  /// What an open needs of the broker, before it is asked for: a lease, and all its chunks.
  struct prefetched {
    std::shared_ptr<segment_lease> lease;
    std::vector<std::uint64_t> bytes;  ///< of `files`
    std::vector<base::guarded_fd> files;
    held_descriptors::part held = {};
  };
  /// Segments that are prefetched at most; none where the cache keeps nothing (`max_entries` 0).
  static constexpr std::size_t most_prefetched = 4'096;
  /// Nobody here has the segment, and there is room for so many chunks of it.
  [[nodiscard]] bool wants(const connection& broker,
                           gpushm::generation generation,
                           std::size_t chunks) const;
  /// Keeps it for the next open of its name, in the place of what was there for that. False: it is
  /// not what the name stands for any more, or there is no room; then it ends.
  bool put(prefetched what);
  /// What is kept for that name, and is still what it stands for, of that size (0: any) and
  /// generation (0: any). It is the caller's.
  [[nodiscard]] std::optional<prefetched> take_prefetched(std::string_view name,
                                                          std::uint64_t expected_size_bytes,
                                                          gpushm::generation generation);
  [[nodiscard]] std::size_t prefetched_count() const;

  // ---- mappings ----

  /// What `open(name, device, access)` would give, as one more user of it; null when that is not
  /// known, not valid any more, or of another size than expected (0: any). The result owns nothing:
  /// it lives until `release`. Counts a hit or a miss, also for the broker. No system call.
  [[nodiscard]] std::shared_ptr<mapping> find(std::string_view name,
                                              std::string_view device,
                                              gpushm::access access,
                                              std::uint64_t expected_size_bytes = 0);
  /// One more user of `of`.
  void use(const std::shared_ptr<mapping>& of);
  /// The same, and from now on `find` gives `of` for these words. `device` is what the caller of
  /// open wrote.
  void keep(const std::shared_ptr<mapping>& of, std::string_view device);
  /// One user less. `of` is used by nobody else afterwards. May end mappings: this one, or older
  /// ones that nobody uses.
  void release(std::shared_ptr<mapping> of) noexcept;

  /// Ends every mapping that nobody uses, and what is prefetched.
  void trim() noexcept;
  /// The same, and keeps none any more: nobody would hear that their segments are removed.
  void close() noexcept;
  [[nodiscard]] gpushm::cache_stats stats() const;

  [[nodiscard]] bool end_lost(gpushm::generation generation) noexcept override;
  /// All of them.
  void end_all_lost() noexcept {
    while (end_lost(0)) {
    }
  }

 private:
  struct words_view {
    words_view(std::string_view name, std::string_view device, gpushm::access access) noexcept;
    std::size_t hash;
    std::string_view name;
    std::string_view device;
    gpushm::access access;
  };
  struct hash {
    using is_transparent = void;
    template <typename Key>
    std::size_t operator()(const Key& key) const noexcept {
      return key.hash;
    }
  };
  struct equal {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const noexcept {
      return a.hash == b.hash && a.access == b.access &&
             std::string_view(a.name) == std::string_view(b.name) &&
             std::string_view(a.device) == std::string_view(b.device);
    }
  };
  struct text_hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>()(text);
    }
  };
  using prefetched_by_name =
      std::unordered_map<std::string, prefetched, text_hash, std::equal_to<>>;
  using ended = std::list<std::shared_ptr<mapping>>;

  // With the lock held. What is to be ended is collected, and ended without it.
  void add_user(const std::shared_ptr<mapping>& of);
  void count_user(mapping& of) noexcept;
  void leave_unused(mapping& of) noexcept;
  void forget(mapping& of, ended& out) noexcept;
  void evict(ended& out) noexcept;
  [[nodiscard]] static bool is_worth_keeping(const mapping& of);
  [[nodiscard]] static bool is_last_of_group(const mapping& of) noexcept;

  mutable std::mutex mutex_;
  std::map<std::pair<const connection*, gpushm::generation>, std::weak_ptr<segment_lease>> leases_;
  cache_bounds bounds_;
  std::unordered_map<open_words, mapping*, hash, equal> by_words_;
  std::list<std::shared_ptr<mapping>> unused_;  // the least recently used first
  peer_groups groups_;                          // used or not
  held_descriptors prefetched_files_{most_held_descriptors()};
  prefetched_by_name prefetched_;  // ends before what counts its descriptors
  gpushm::cache_stats stats_;
};

}  // namespace gpushm::detail
