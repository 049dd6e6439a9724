// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
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

#include "base/files/guarded_fd.hpp"
#include "client/lease/mapping.hpp"
#include "client/lease/segment_lease.hpp"
#include "client/session/connection.hpp"
#include "client/session/reply.hpp"
#include "gpushm/client.hpp"

namespace gpushm::client_detail {

/// Returns the limits of `options`, else of the environment, else the documented defaults. Throws
/// invalid_argument if an environment variable is not a size or number.
[[nodiscard]] cache_bounds bounds_from(const cache_options& options);

/// A client's leases and their mappings: the table that opens, creates and shares add to, and the
/// import cache. The cache has two parts: from the arguments of an open to a generation, valid as
/// long as one word of the state table shows it, and from (generation, device, access) to the
/// mapping, which all names of the generation share (`segment_lease::find_or_map`). It caches
/// unused mappings of persistent segments that a name still refers to; it evicts the least recently
/// used first, and never those in use. Cached mappings are dropped immediately when their segment
/// is removed or the broker dies. The last mapping of each peer GPU and size class is evicted last:
/// it makes later opens from that GPU a hundred times cheaper.
///
/// The table owns mappings that are used or cached, and counts each use, so that a hit changes no
/// reference count. A lease exists as long as a mapping of it, and leaves the table when it ends.
/// No lock is held while a mapping is created or destroyed: a hit never waits for the driver.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class lease_table final : public lease_listener, public std::enable_shared_from_this<lease_table> {
 public:
  explicit lease_table(cache_bounds bounds) : bounds_(bounds) {}
  lease_table(const lease_table&) = delete;
  lease_table& operator=(const lease_table&) = delete;
  ~lease_table() override = default;

  // ---- leases ----

  /// Returns the lease that a reply of `broker` granted: an existing one with one more grant, or
  /// a new one, which then owns `granted`. Throws broker_gone, and leaves `granted` unchanged, if
  /// the leases of `broker` were handed over before.
  [[nodiscard]] std::shared_ptr<segment_lease> take(const std::shared_ptr<connection>& broker,
                                                    segment_lease::facts facts,
                                                    grant& granted,
                                                    std::string_view operation);
  /// The broker has ended `source` and given its leases to `connection`: moves the existing ones to
  /// `connection`. Reports them to the broker, with their numbers of grants; the broker ends the
  /// others. Throws as a request.
  void hand_over(connection& source,
                 const std::shared_ptr<connection>& connection,
                 steady_time deadline);
  /// Leases that were lost with a broker and its keeper, and that another one may have again.
  [[nodiscard]] std::vector<std::shared_ptr<segment_lease>> lost() const;
  /// Returns false if there was never a lease that could be handed back. Does not wait for other
  /// threads.
  [[nodiscard]] bool has_receipts() const noexcept {
    return has_receipts_.load(std::memory_order_relaxed);
  }
  /// From now on no lease can be taken from replies of `connection`.
  void end_takes(connection& connection);
  /// The broker of `target` has granted a lost lease again.
  void renew(const std::shared_ptr<segment_lease>& lease,
             const std::shared_ptr<connection>& target,
             const segment_lease::renewal& renewal);
  /// Ends the lease at its broker; the object stays, for `restart`.
  void set_aside(const std::shared_ptr<segment_lease>& lease) noexcept;
  /// The broker of `target` has granted a new segment for a lease that was set aside. Throws
  /// broker_gone, and changes nothing, as `take`; std::bad_alloc.
  void restart(const std::shared_ptr<segment_lease>& lease,
               const std::shared_ptr<connection>& target,
               const segment_lease::renewal& renewal);
  /// For the descriptors of a segment that this process could hand back; empty: there is no room.
  [[nodiscard]] held_descriptors::part room_to_keep(std::size_t chunks) noexcept {
    return kept_files_.try_hold(chunks);
  }
  /// Called when a lease ends. No effect if there is a new lease of that generation.
  void forget_lease(const segment_lease& gone) noexcept;

  // ---- prefetched segments ----

  /// The broker's part of an open, fetched in advance: a lease, and all chunks.
  struct prefetched {
    std::shared_ptr<segment_lease> lease;
    std::vector<std::uint64_t> bytes;  ///< of `files`
    std::vector<base::guarded_fd> files;
    held_descriptors::part held = {};
  };
  /// Upper bound of prefetched segments; none if the cache keeps nothing (`max_entries` 0).
  static constexpr std::size_t max_prefetched = 4'096;
  /// True if this client does not have the segment, and has room for its `chunks`.
  [[nodiscard]] bool should_prefetch(const connection& broker,
                                     gpushm::generation generation,
                                     std::size_t chunks) const;
  /// Keeps it for the next open of its name, replacing a previous one. Returns false, and drops it,
  /// if the name no longer refers to it or if there is no room.
  bool put(prefetched fetched);
  /// Removes and returns what is kept for that name, if it is still current, of that size (0: any)
  /// and generation (0: any).
  [[nodiscard]] std::optional<prefetched> take_prefetched(std::string_view name,
                                                          std::uint64_t expected_size_bytes,
                                                          gpushm::generation generation);
  [[nodiscard]] std::size_t prefetched_count() const;

  // ---- mappings ----

  /// Finds the result of `open(name, device, access)` and counts one more user; null if it is not
  /// in the table, no longer valid, or of another size than expected (0: any). The result owns
  /// nothing: it is valid until `release`. Counts a hit or a miss, also for the broker. No system
  /// call.
  [[nodiscard]] std::shared_ptr<mapping> find(std::string_view name,
                                              std::string_view device,
                                              gpushm::access access,
                                              std::uint64_t expected_size_bytes = 0);
  /// Counts one more user of `mapping`.
  void use(const std::shared_ptr<mapping>& mapping);
  /// A name for a segment that is not its own, and the word that shows what it refers to.
  struct alias {
    std::string_view name;
    segment_lease::name_word word;
  };
  /// As `use`; from now on `find` returns `mapping` for its name, or for that of `alias`, and this
  /// device and access. `device` is the argument of the open. A name that has moved is found no
  /// longer; `mapping` stays for its users and under its other names.
  void keep(const std::shared_ptr<mapping>& mapping,
            std::string_view device,
            const std::optional<alias>& alias = std::nullopt);
  /// The word of the alias `name` under which `find` returns this mapping; nullopt: another thread
  /// has opened what it refers to now.
  [[nodiscard]] std::optional<segment_lease::name_word> word_of(const mapping& mapping,
                                                                std::string_view name,
                                                                std::string_view device) const;
  /// From now on `find` returns `mapping`, which has a user, also for that alias.
  void add_name(mapping& mapping, std::string_view device, const alias& alias);
  /// Counts one user less, which must not use `mapping` afterwards. May end mappings: this one, or
  /// older unused ones.
  void release(std::shared_ptr<mapping> mapping) noexcept;

  [[nodiscard]] std::size_t users(const mapping& mapping) const;
  /// Ends unused mappings of that segment.
  void end_unused(const segment_lease& lease) noexcept;
  /// Ends unused mappings, and drops prefetched segments.
  void trim() noexcept;
  /// As `trim`, and caches nothing from now on: removal of the segments would not be reported.
  void close() noexcept;
  [[nodiscard]] gpushm::cache_stats stats() const;

  [[nodiscard]] bool end_lost(gpushm::generation generation) noexcept override;
  void end_all_lost() noexcept {
    while (end_lost(0)) {
    }
  }

 private:
  struct key_view {
    key_view(std::string_view name, std::string_view device, gpushm::access access) noexcept;
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

  // Called with the lock held. They collect ended mappings, which are destroyed after it is
  // released.
  void add_user(const std::shared_ptr<mapping>& mapping);
  void set_name(mapping& mapping,
                std::string_view device,
                const std::optional<alias>& alias,
                ended& out);
  void count_user(mapping& mapping) noexcept;
  void leave_unused(mapping& mapping) noexcept;
  void forget(mapping& mapping, ended& out) noexcept;
  void forget_name(const known_open& name, ended& out) noexcept;
  void evict(ended& out) noexcept;
  /// Whether a name still refers to it. A version that is only known by its number does not count:
  /// it would stay as long as it is cached.
  [[nodiscard]] static bool is_named(const mapping& mapping);
  [[nodiscard]] static bool is_worth_keeping(const mapping& mapping);
  [[nodiscard]] static bool is_last_of_group(const mapping& mapping) noexcept;

  mutable std::mutex mutex_;
  std::map<std::pair<const connection*, gpushm::generation>, std::weak_ptr<segment_lease>> leases_;
  cache_bounds bounds_;
  std::unordered_map<open_key, open_target, hash, equal> by_key_;
  std::list<std::shared_ptr<mapping>> unused_;  // least recently used first
  peer_groups groups_;                          // used and unused
  held_descriptors prefetched_files_{max_held_descriptors()};
  held_descriptors kept_files_{max_held_descriptors()};
  std::atomic<bool> has_receipts_{false};
  prefetched_by_name prefetched_;  // destroyed before the count of its descriptors
  gpushm::cache_stats stats_;
};

}  // namespace gpushm::client_detail
