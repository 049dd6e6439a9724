// SPDX-License-Identifier: Apache-2.0
#include "client/lease/segment_lease.hpp"

#include <fcntl.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/files/syscall.hpp"
#include "client/lease/lease_table.hpp"
#include "client/lease/mapping.hpp"

namespace gpushm::client_detail {

segment_lease::segment_lease(std::weak_ptr<lease_table> table,
                             std::shared_ptr<connection> broker,
                             facts&& facts)
    : table_(std::move(table)),
      info_(std::move(facts.segment)),
      ticket_(std::move(facts.ticket)),
      is_creator_(facts.is_creator),
      places_({{std::move(broker), info_.slot, 0, info_.generation}}),
      now_(&places_.back()),
      receipt_(facts.receipt),
      metadata_({std::move(facts.metadata)}),
      published_(info_.published) {}

segment_lease::~segment_lease() {
  if (broker_in_table().forks() != fork_count()) {
    std::for_each(places_.begin(), places_.end(), [](place& each) { leak(each.broker); });
    return;
  }
  stop_sharing();
  if (const auto table = table_.lock()) {
    table->forget_lease(*this);
  }
  if (grants_ != 0) {
    broker_in_table().release(now().generation, grants_, !mapped_.load(std::memory_order_relaxed));
  }
}

std::span<const std::byte> segment_lease::metadata() const {
  const std::lock_guard lock(mutex_);
  return published() ? std::span<const std::byte>(metadata_.back()) : std::span<const std::byte>();
}

void segment_lease::set_published(std::vector<std::byte> metadata) {
  const std::lock_guard lock(mutex_);
  if (!published()) {
    if (metadata_.back() != metadata) {
      metadata_.push_back(std::move(metadata));
    }
    published_.store(true, std::memory_order_release);
  }
}

void segment_lease::publish(std::span<const std::byte> metadata,
                            std::string_view operation,
                            steady_time deadline) {
  static_cast<void>(
      broker()->request(wire::publish{generation(), {metadata.begin(), metadata.end()}},
                        {operation, info_.name},
                        deadline));
  set_published({metadata.begin(), metadata.end()});
}

void segment_lease::put(const std::shared_ptr<mapping>& created) {
  const std::lock_guard lock(map_mutex_);
  mappings_[{created->device(), created->access()}] = created;
  mapped_.store(true, std::memory_order_relaxed);
}

bool segment_lease::has_other_mappings(const mapping& mapping) {
  const std::lock_guard lock(map_mutex_);
  return std::any_of(mappings_.begin(), mappings_.end(), [&](const auto& each) {
    const auto other = each.second.lock();
    return other && other.get() != &mapping;
  });
}

void segment_lease::add_grant() {
  const std::lock_guard lock(mutex_);
  ++grants_;
}

std::uint32_t segment_lease::grants() const {
  const std::lock_guard lock(mutex_);
  return grants_;
}

std::list<segment_lease::place> segment_lease::go_to(std::shared_ptr<connection> successor,
                                                     std::uint32_t slot,
                                                     gpushm::generation generation) {
  places_.push_back({std::move(successor), slot, now().moves + 1, generation});
  now_.store(&places_.back());
  if (shared_) {
    register_reply(*now().broker);
  }
  std::list<place> former;
  if (readers_.load() == 0) {  // else the next move drops them
    former.splice(former.end(), places_, places_.begin(), std::prev(places_.end()));
  }
  return former;
}

std::size_t segment_lease::connections() const {
  const std::lock_guard lock(mutex_);
  return places_.size();
}

void segment_lease::reply_on(connection& successor) const {
  const std::lock_guard lock(mutex_);
  if (shared_) {
    register_reply(successor);
  }
}

std::list<segment_lease::place> segment_lease::move_to(std::shared_ptr<connection> successor) {
  const std::lock_guard lock(mutex_);
  return go_to(std::move(successor), now().slot, now().generation);
}

// ---- after the death of a broker and its keeper ----

std::list<segment_lease::place> segment_lease::renew(std::shared_ptr<connection> successor,
                                                     const renewal& renewal) {
  const std::lock_guard lock(mutex_);
  grants_ = 1;
  receipt_ = renewal.receipt;
  return go_to(std::move(successor),
               renewal.slot,
               renewal.generation == 0 ? now().generation : renewal.generation);
}

void segment_lease::set_aside() noexcept {
  kept_chunks dropped;  // closed after the lock is released
  const auto [broker, slot] = where();
  std::uint32_t grants = 0;
  {
    const std::lock_guard lock(mutex_);
    dropped = std::exchange(kept_, {});
    keeps_all_ = false;
    grants = std::exchange(grants_, 0U);
  }
  if (grants != 0) {
    broker->release(generation(), grants, false);
  }
}

bool segment_lease::is_lost() const {
  const std::lock_guard lock(mutex_);  // it does not move
  if (given_up_.load(std::memory_order_relaxed) || now().broker->alive()) {
    return false;
  }
  const segment_state last = now().broker->last_state(now().slot, now().generation);
  return receipt_ && (last == segment_state::live || last == segment_state::exporter_gone);
}

std::optional<segment_lease::kept_chunks> segment_lease::begin_keeping() {
  const auto table = table_.lock();
  const std::lock_guard lock(mutex_);
  if (!table || !receipt_ || keeps_all_ ||
      !(is_creator_ || info_.lifetime == lifetime::persistent ||
        info_.backend == backend::signals)) {
    return std::nullopt;
  }
  kept_chunks result;
  result.held = table->room_to_keep(info_.chunk_count);
  if (!result.held) {
    return std::nullopt;
  }
  result.bytes.reserve(info_.chunk_count);
  result.files.reserve(info_.chunk_count);
  return result;
}

void segment_lease::finish_keeping(kept_chunks chunks) noexcept {
  const std::lock_guard lock(mutex_);
  if (!keeps_all_ && chunks.files.size() == info_.chunk_count) {
    kept_ = std::move(chunks);
    keeps_all_ = true;
  }
}

std::optional<memory::chunk_source::chunk> segment_lease::copy_kept(std::uint32_t index) const {
  const std::lock_guard lock(mutex_);
  if (!keeps_all_ || index >= kept_.files.size()) {
    return std::nullopt;
  }
  return kept_.copy(index, info_.name);
}

memory::chunk_source::chunk segment_lease::kept_chunks::copy(std::size_t index,
                                                             std::string_view name) const {
  return {base::guarded_fd::open([&] {
            return base::checked("resume", name, "fcntl(F_DUPFD_CLOEXEC)", [&] {
              return ::fcntl(files[index].get(), F_DUPFD_CLOEXEC, 0);
            });
          }),
          bytes[index]};
}

held_descriptors::part segment_lease::room_for_chunks() const {
  const auto table = table_.lock();
  return table ? table->room_to_keep(info_.chunk_count) : held_descriptors::part();
}

std::optional<std::pair<wire::reserve, const segment_lease::kept_chunks*>>
segment_lease::to_hand_back() const {
  const std::lock_guard lock(mutex_);
  if (!keeps_all_ || !receipt_) {
    return std::nullopt;
  }
  return std::pair(wire::reserve{{static_cast<const base::segment_facts&>(info_), ticket_},
                                 now().generation,
                                 info_.creator_uid,
                                 receipt_},
                   &kept_);
}

void segment_lease::share(std::shared_ptr<const memory::source> memory) {
  const std::lock_guard lock(mutex_);
  shared_ = std::move(memory);
  register_reply(*now().broker);
}

void segment_lease::register_reply(connection& connection) const {
  connection.worker().reply_for(now().generation,
                                [memory = shared_] { return memory->unchanged(); });
}

void segment_lease::stop_sharing() noexcept {
  std::shared_ptr<const memory::source> ended;
  const std::lock_guard lock(mutex_);
  ended.swap(shared_);
  if (ended) {
    now().broker->worker().stop_replying(now().generation);
  }
}

void segment_lease::unshare(steady_time deadline) {
  const subject about{"unshare", info_.name};
  if (!shared_memory()) {
    throw error(errc::invalid_argument,
                about.operation,
                about.object,
                "this process does not share this memory, or no longer",
                "call unshare once for each result of `client::share`");
  }
  try {
    static_cast<void>(broker()->request(wire::remove{info_.name, generation()}, about, deadline));
  } catch (const error& why) {
    // Another client removed it, or it ended with its broker: no new importer gets it, as
    // requested.
    if (why.code() != errc::no_such_segment && why.code() != errc::gone_or_replaced &&
        why.code() != errc::peer_died && why.code() != errc::broker_gone) {
      throw;
    }
  }
  stop_sharing();
}

std::shared_ptr<const memory::source> segment_lease::shared_memory() const {
  const std::lock_guard lock(mutex_);
  return shared_;
}

bool is_usable(const mapping& mapping) noexcept {
  return mapping.region().usable();
}

}  // namespace gpushm::client_detail
