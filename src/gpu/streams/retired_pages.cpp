// SPDX-License-Identifier: Apache-2.0
#include "gpu/streams/retired_pages.hpp"

#include <mutex>
#include <new>
#include <utility>

#include "gpu/streams/waiting_streams.hpp"

namespace gpushm::streams {

retired_pages& retired_pages::of_process() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed
  static auto* const instance = new retired_pages;
  return *instance;
}

namespace {
// Created when the library is loaded: a forked child must not find it half constructed.
[[maybe_unused]] const retired_pages& created_at_load = retired_pages::of_process();
}  // namespace

/// The parent's registrations do not exist in a child.
void retired_pages::forget_in_child() noexcept {
  if (base::is_forked_child_of(created_in_)) {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): their destructors must not run here
    static_cast<void>(new (std::nothrow) std::vector<retired>(std::move(all_)));
    all_.clear();
    created_in_ = base::fork_generation();
  }
}

void retired_pages::add(base::unique_mapping memory,
                        std::unique_ptr<registered_page> page) noexcept {
  if (!page->is_registered()) {
    page.reset();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    forget_in_child();
    try {
      all_.push_back({std::move(memory), std::move(page)});
    } catch (const std::bad_alloc&) {  // it is freed at once, and waits for the streams
    }
  }
  free_if_idle();
}

void retired_pages::free_if_idle() noexcept {
  std::vector<retired> idle;
  {
    const std::lock_guard lock(mutex_);
    forget_in_child();
    if (all_.empty()) {
      return;
    }
  }
  if (waiting_streams::of_process().count() != 0) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    idle.swap(all_);
  }
}

}  // namespace gpushm::streams
