// SPDX-License-Identifier: Apache-2.0
#include "broker/recorder.hpp"

#include <new>
#include <utility>

#include "base/log.hpp"

namespace gpushm::broker_detail {

std::optional<descriptor_shelf> recorder::another_shelf() const {
  return on_ ? std::optional(on_->shelf.another()) : std::nullopt;
}

records::descriptor_id recorder::keep(int descriptor) {
  return on_ ? on_->shelf.put(descriptor) : 0;
}

void recorder::forget(records::descriptor_id number) noexcept {
  if (!on_ || number == 0) {
    return;
  }
  try {
    on_->to_forget.push_back(number);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): a successor removes it
  }
}

void recorder::end() noexcept {
  if (!on_) {
    return;
  }
  try {
    on_->shelf.end(on_->log.sequence());
  } catch (const std::exception& why) {
    base::log(log_level::error, why.what());
  }
  on_.reset();
  is_behind_ = false;
}

void recorder::end_handling() noexcept {
  if (!on_) {
    return;
  }
  journal::death_notes& notes = on_->log.notes();
  if (notes.blamed == notes.handling) {  // one of its requests has not been the cause
    notes.blamed = 0;
    notes.deaths = 0;
  }
  notes.handling = 0;
}

void recorder::write() noexcept {
  if (!on_) {
    return;
  }
  on_->log.commit();
  // Only now: a record that a successor finds must not refer to them.
  auto& waiting = on_->to_forget;
  while (!waiting.empty() && on_->shelf.remove(waiting.back())) {
    waiting.pop_back();
  }
}

template <typename Make>
void recorder::put_bytes(const journal::record_key& key, Make&& make) noexcept {
  if (!on_) {
    return;
  }
  try {
    on_->log.put(key, make());
    if (is_catching_up_) {
      on_->seen.insert(key);
    }
  } catch (const error& why) {
    if (!std::exchange(is_behind_, true)) {
      base::log(log_level::error, why.what());
    }
  } catch (const std::bad_alloc&) {
    is_behind_ = true;
  }
}

void recorder::put(const journal::record_key& key, const records::broker_value& value) noexcept {
  put_bytes(key, [&] { return on_->encoder.encode(value); });
}

void recorder::put(const core::record_name& name, const core::saved_value& value) noexcept {
  if (std::holds_alternative<std::monostate>(value)) {
    erase(records::key_of(name));
  } else {
    put_bytes(records::key_of(name), [&] { return on_->encoder.encode(value); });
  }
}

void recorder::mark(const journal::record_key& key) noexcept {
  put_bytes(key, [] { return std::span<const std::byte>(); });
}

void recorder::erase(const journal::record_key& key) noexcept {
  if (on_) {
    on_->log.erase(key);
  }
}

void recorder::commit() noexcept {
  if (is_behind_) {
    return;
  }
  write();
  if (on_ && call().what == transport::reported_call::kind::none && on_->log.needs_compaction()) {
    compact();
  }
}

void recorder::commit_call() noexcept {
  if (!is_behind_) {
    write();
    call().clear();
  }
}

/// Both journals are complete until the old one is removed.
void recorder::compact() noexcept {
  try {
    journal::journal next = on_->log.compacted();
    on_->shelf.put_journal(next.descriptor(), next.sequence());
    const std::uint64_t old = on_->log.sequence();
    on_->log = std::move(next);
    on_->shelf.remove_journal(old);
  } catch (const std::exception& why) {  // tried again after the next commit
    base::log(log_level::warning, why.what());
  }
}

void recorder::begin_all() noexcept {
  is_behind_ = false;
  is_catching_up_ = true;
  if (on_) {
    on_->seen.clear();
  }
}

void recorder::end_all() noexcept {
  is_catching_up_ = false;
  if (!on_) {
    return;
  }
  if (!is_behind_) {
    try {
      std::vector<journal::record_key> gone;
      on_->log.for_each([&](const journal::record_key& key, std::span<const std::byte>) {
        if (on_->seen.count(key) == 0) {
          gone.push_back(key);
        }
      });
      for (const journal::record_key& each : gone) {
        on_->log.erase(each);
      }
    } catch (const std::bad_alloc&) {
      is_behind_ = true;
    }
  }
  on_->seen.clear();
  commit_call();
}

}  // namespace gpushm::broker_detail
