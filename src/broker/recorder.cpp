// SPDX-License-Identifier: Apache-2.0
#include "broker/recorder.hpp"

#include <new>
#include <utility>

#include "base/log.hpp"
#include "base/thread.hpp"

namespace gpushm::broker_detail {

namespace {

/// For a keeper that does not read: its copies would stay as long as this process serves others.
void end_later(descriptor_shelf shelf, std::uint64_t journal_sequence) noexcept {
  try {
    const auto kept = std::make_shared<descriptor_shelf>(std::move(shelf));
    base::start_thread("gpushm-ender", [kept, journal_sequence] {
      retry_with_keeper([&] { kept->end(journal_sequence); }, [] { return false; });
    }).detach();
  } catch (const std::exception& why) {  // a successor removes the rest
    base::log(log_level::error, why.what());
  }
}

}  // namespace

std::optional<descriptor_shelf> recorder::another_shelf() const {
  return on_ ? std::optional(on_->shelf.another()) : std::nullopt;
}

records::descriptor_id recorder::keep(int descriptor) {
  return on_ ? on_->shelf.put(descriptor) : 0;
}

void recorder::replace_listener(int descriptor, const transport::file_identity& file) {
  if (!on_) {
    return;
  }
  if (is_behind_) {
    throw error(errc::out_of_memory,
                "bind the socket again",
                {},
                "the domain's journal is full at the moment",
                "it is tried again");
  }
  const auto key = records::key_of(records::kind::broker);
  auto self = std::get<records::broker_record>(
      records::decode(records::kind::broker, on_->log.find(key).value()));
  const records::descriptor_id old = self.listener;
  self.listener = keep(descriptor);
  self.socket_device = file.device;
  self.socket_inode = file.inode;
  const records::descriptor_id added = self.listener;
  put(key, std::move(self));
  if (is_behind_) {
    forget(added);
    throw error(errc::out_of_memory,
                "bind the socket again",
                {},
                "the domain's journal is full",
                "it is tried again");
  }
  forget(old);
  commit();
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
  const std::uint64_t sequence = on_->log.sequence();
  try {
    on_->shelf.end(sequence);
  } catch (const std::exception& why) {
    base::log(log_level::error, why.what());
    end_later(std::move(on_->shelf), sequence);
  }
  on_.reset();
  is_behind_ = false;
}

void recorder::end_step(std::uint64_t what, std::uint64_t outer) noexcept {
  if (!on_) {
    return;
  }
  journal::death_notes& notes = on_->log.notes();
  if (notes.blamed == what) {  // one of this kind has not been the cause
    notes.blamed = 0;
    notes.deaths = 0;
  }
  notes.handling = outer;
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
  if (!on_ || is_behind_) {  // everything is recorded again
    return;
  }
  try {
    (on_->next ? *on_->next : on_->log).put(key, make());
  } catch (const error& why) {
    is_full_ = true;
    if (!std::exchange(is_behind_, true) && !on_->next) {
      base::log(log_level::error, why.what());
    }
  } catch (const std::bad_alloc&) {
    is_behind_ = true;
    is_full_ = true;
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
  if (!is_behind_) {
    write();
  }
}

void recorder::commit_call() noexcept {
  if (!is_behind_) {
    write();
    call().clear();
  }
}

/// Both journals are complete until the old one is removed, which a keeper without room for the
/// next one must keep. Throws if nothing has changed.
void recorder::replace_journal(journal::journal next) {
  on_->shelf.put_confirmed_journal(next.descriptor(), next.sequence());
  const std::uint64_t old = on_->log.sequence();
  on_->log = std::move(next);
  try {
    on_->shelf.remove_journal(old);
  } catch (const std::exception& why) {  // a successor removes it
    base::log(log_level::warning, why.what());
  }
}

/// A journal at its limit has no room for what differs.
void recorder::begin_all() noexcept {
  if (!on_) {
    return;
  }
  try {
    const auto self = records::key_of(records::kind::broker);
    if (is_full_) {
      on_->next = on_->log.emptied();
      on_->next->put(self, on_->log.find(self).value());
    } else {
      on_->log.begin_rewrite();
      on_->log.put(self, on_->log.find(self).value());
    }
    is_behind_ = false;
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): still behind
  }
}

void recorder::end_all() noexcept {
  if (!on_) {
    return;
  }
  if (!is_behind_ && !on_->next) {
    on_->log.end_rewrite();
    commit_call();  // its effect is recorded
  } else if (!is_behind_) {
    try {
      on_->next->commit();
      on_->next->call().clear();  // its effect is recorded
      replace_journal(std::move(*on_->next));
      is_full_ = false;
      has_warned_ = false;
    } catch (const std::exception& why) {
      is_behind_ = true;
      if (!std::exchange(has_warned_, true)) {
        base::log(log_level::error, why.what());
      }
    }
  }
  on_->next.reset();
}

}  // namespace gpushm::broker_detail
