// SPDX-License-Identifier: Apache-2.0
#include "client/segment_lease.hpp"

#include <algorithm>
#include <utility>

#include "client/lease_table.hpp"
#include "client/mapping.hpp"

namespace gpushm::detail {

segment_lease::segment_lease(std::weak_ptr<lease_table> table,
                             std::shared_ptr<connection> broker,
                             facts&& what)
    : table_(std::move(table)),
      info_(std::move(what.segment)),
      ticket_(std::move(what.ticket)),
      broker_(broker.get()),
      connections_({std::move(broker)}),
      metadata_(std::move(what.metadata)),
      published_(info_.published) {}

segment_lease::~segment_lease() {
  if (broker().forks() != fork_count()) {
    std::for_each(connections_.begin(), connections_.end(), [](auto& each) { leak(each); });
    return;
  }
  stop_sharing();
  if (const auto table = table_.lock()) {
    table->forget_lease(*this);
  }
  broker().release(info_.generation, grants_, !mapped_.load(std::memory_order_relaxed));
}

std::span<const std::byte> segment_lease::metadata() const {
  const std::lock_guard lock(mutex_);
  return metadata_;
}

void segment_lease::set_published(std::vector<std::byte> metadata) {
  const std::lock_guard lock(mutex_);
  if (!published()) {
    metadata_ = std::move(metadata);
    published_.store(true, std::memory_order_release);
  }
}

void segment_lease::publish(std::span<const std::byte> metadata,
                            std::string_view operation,
                            steady_time deadline) {
  static_cast<void>(
      broker().request(wire::publish{info_.generation, {metadata.begin(), metadata.end()}},
                       {operation, info_.name},
                       deadline));
  set_published({metadata.begin(), metadata.end()});
}

void segment_lease::put(const std::shared_ptr<mapping>& created) {
  const std::lock_guard lock(map_mutex_);
  mappings_[{created->device(), created->access()}] = created;
  mapped_.store(true, std::memory_order_relaxed);
}

void segment_lease::add_grant() {
  const std::lock_guard lock(mutex_);
  ++grants_;
}

std::uint32_t segment_lease::grants() const {
  const std::lock_guard lock(mutex_);
  return grants_;
}

void segment_lease::move_to(std::shared_ptr<connection> successor) {
  const std::lock_guard lock(mutex_);
  connections_.push_back(std::move(successor));
  broker_.store(connections_.back().get(), std::memory_order_release);
  if (shared_) {
    register_answer();
  }
}

void segment_lease::share(std::shared_ptr<const memory::source> memory) {
  const std::lock_guard lock(mutex_);
  shared_ = std::move(memory);
  register_answer();
}

void segment_lease::register_answer() {
  broker().worker().answer_for(info_.generation,
                               [memory = shared_] { return memory->unchanged(); });
}

void segment_lease::stop_sharing() noexcept {
  std::shared_ptr<const memory::source> ended;
  const std::lock_guard lock(mutex_);
  ended.swap(shared_);
  if (ended) {
    broker().worker().stop_answering(info_.generation);
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
    static_cast<void>(
        broker().request(wire::remove{info_.name, info_.generation}, about, deadline));
  } catch (const error& why) {
    // Another client removed it, or it ended with its broker: no new importer gets it, as
    // requested.
    if (why.code() != errc::no_such_segment && why.code() != errc::peer_died &&
        why.code() != errc::broker_gone) {
      throw;
    }
  }
  stop_sharing();
}

std::shared_ptr<const memory::source> segment_lease::shared_memory() const {
  const std::lock_guard lock(mutex_);
  return shared_;
}

bool is_usable(const mapping& of) noexcept {
  return of.region().usable();
}

}  // namespace gpushm::detail
