// SPDX-License-Identifier: Apache-2.0
#include "client/attachment.hpp"

#include <utility>

#include "client/mapping.hpp"

namespace gpushm::detail {

attachment::attachment(std::shared_ptr<connection> broker,
                       wire::segment info,
                       std::vector<std::byte> metadata,
                       std::vector<std::byte> descriptor)
    : broker_(std::move(broker)),
      info_(std::move(info)),
      descriptor_(std::move(descriptor)),
      metadata_(std::move(metadata)),
      published_(info_.published) {}

attachment::~attachment() {
  if (broker_->forks() != fork_count()) {
    keep_for_ever(broker_);
    return;
  }
  stop_sharing();
  broker().release(info_.generation, grants_, !mapped_.load(std::memory_order_relaxed));
}

std::span<const std::byte> attachment::metadata() const {
  const std::lock_guard lock(mutex_);
  return metadata_;
}

void attachment::set_published(std::vector<std::byte> metadata) {
  const std::lock_guard lock(mutex_);
  if (!published()) {
    metadata_ = std::move(metadata);
    published_.store(true, std::memory_order_release);
  }
}

void attachment::add_grant() {
  const std::lock_guard lock(mutex_);
  ++grants_;
}

std::uint32_t attachment::grants() const {
  const std::lock_guard lock(mutex_);
  return grants_;
}

void attachment::answer_again() {
  if (const auto memory = shared_memory()) {
    broker().worker().answer_for(info_.generation, [memory] { return memory->unchanged(); });
  }
}

void attachment::share(std::shared_ptr<const memory::source> memory) {
  broker().worker().answer_for(info_.generation, [memory] { return memory->unchanged(); });
  const std::lock_guard lock(mutex_);
  shared_ = std::move(memory);
}

void attachment::stop_sharing() noexcept {
  std::shared_ptr<const memory::source> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(shared_);
  }
  if (ended) {
    broker().worker().stop_answering(info_.generation);
  }
}

std::shared_ptr<const memory::source> attachment::shared_memory() const {
  const std::lock_guard lock(mutex_);
  return shared_;
}

bool is_usable(const mapping& of) noexcept {
  return of.region().usable();
}

}  // namespace gpushm::detail
