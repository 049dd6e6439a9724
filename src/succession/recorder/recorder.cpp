// SPDX-License-Identifier: Apache-2.0
#include "succession/recorder/recorder.hpp"

#include <poll.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/process/thread.hpp"
#include "succession/recorder/limited_log.hpp"

namespace gpushm::succession {

namespace {

/// After an attempt that the keeper was too busy for, none is made for this long.
constexpr std::chrono::microseconds pause_for_keeper{500};
/// An attempt as long after the last one is the first one of another time that the keeper is busy.
constexpr std::chrono::milliseconds longest_pause{500};

/// For a keeper that does not read: its copies would stay as long as this process serves others.
void end_later(descriptor_shelf shelf, std::uint64_t journal_sequence) noexcept {
  try {
    const auto kept = std::make_shared<descriptor_shelf>(std::move(shelf));
    base::start_thread("gpushm-ender", [kept, journal_sequence] {
      retry_with_keeper([&] { kept->end(journal_sequence); }, [] { return false; });
    }).detach();
  } catch (const std::exception& why) {  // a successor removes the rest
    log_about_broker(log_level::error, why.what());
  }
}

}  // namespace

error keeper_is_behind() {
  return {
      errc::timed_out,
      {},
      {},
      "the broker's keeper has not read for seconds, so that the broker cannot store this for a "
      "successor",
      "try again; look at the log of gpushm-keeper or systemd"};
}

std::optional<descriptor_shelf> recorder::another_shelf() const {
  return on_ ? std::optional(on_->shelf.another()) : std::nullopt;
}

records::descriptor_id recorder::keep(int descriptor) {
  if (!on_) {
    return 0;
  }
  if (!waits_for_keeper()) {
    const auto number = is_keeper_behind() ? std::nullopt : on_->shelf.try_put(descriptor);
    if (number) {
      busy_since_.reset();
      return *number;
    }
    const auto now = clock::now();
    if (!busy_since_ || now - last_busy_ > longest_pause) {
      busy_since_ = now;
    }
    last_busy_ = now;
    if (now - *busy_since_ >= keeper_patience) {
      throw keeper_is_behind();
    }
  }
  throw keeper_busy(errc::timed_out, {}, {}, "the keeper is busy", "it is tried again");
}

bool recorder::waits_for_keeper() const noexcept {
  return busy_since_ && last_busy_ - *busy_since_ < keeper_patience &&
         clock::now() - last_busy_ < pause_for_keeper;
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
    log_about_broker(log_level::error, why.what());
    end_later(std::move(on_->shelf), sequence);
  }
  on_.reset();
  is_behind_ = false;
}

void recorder::end_step(std::uint64_t step, std::uint64_t outer) noexcept {
  if (!on_) {
    return;
  }
  journal::death_notes& notes = on_->log.notes();
  if (notes.blamed == step) {  // one of this kind has not been the cause
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
  auto& journals = on_->old_journals;
  while (!journals.empty() && on_->shelf.remove_journal(journals.back())) {
    journals.pop_back();
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
      log_about_members(log_level::error, why.what());
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
    raise_reader(records::min_reader_of(name.kind));
    put_bytes(records::key_of(name), [&] { return on_->encoder.encode(value); });
  }
}

/// In the same commit as the first record that needs it.
void recorder::raise_reader(std::uint32_t needed) noexcept {
  if (needed <= min_reader_ || !on_ || is_behind_) {
    return;
  }
  const auto key = records::key_of(records::kind::broker);
  put_bytes(key, [&] {
    auto self = std::get<records::broker_record>(
        records::decode(records::kind::broker, on_->log.find(key).value()));
    self.min_reader = std::max(self.min_reader, needed);
    return on_->encoder.encode(std::move(self));
  });
  min_reader_ = needed;
}

void recorder::mark(const journal::record_key& key) noexcept {
  put_bytes(key, [] { return std::span<const std::byte>(); });
}

bool recorder::copy(const journal::record_key& source, const journal::record_key& target) noexcept {
  const auto found = on_ ? on_->log.find(source) : std::nullopt;
  if (found) {
    put_bytes(target, [&] { return *found; });
  }
  return found.has_value();
}

bool recorder::erase(const journal::record_key& key) noexcept {
  return on_ && on_->log.erase(key);
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

/// A journal at its limit has no room for what differs. Returns false if there is nothing to record
/// now.
bool recorder::begin_all() noexcept {
  if (!on_) {
    return false;
  }
  if (on_->next && !on_->is_next_stored) {
    store_next();
    if (!on_->is_next_stored) {
      return false;
    }
  }
  try {
    const auto self = records::key_of(records::kind::broker);
    if (is_full_ && !on_->next) {
      on_->next = on_->log.emptied();
    }
    journal::journal& to = on_->next ? *on_->next : on_->log;
    to.begin_rewrite();
    to.put(self, on_->log.find(self).value());
    min_reader_ = 1;  // what is recorded from now on raises it again
    is_behind_ = false;
    return true;
  } catch (const std::exception&) {  // still behind
    drop_next();
    return false;
  }
}

/// The keeper may have it: its records are newer than those of `log` until that changes, which is
/// once another one is used that has its sequence, and replaces it in the keeper.
void recorder::drop_next() noexcept {
  on_->next.reset();
  on_->reply.reset();
  retry_pause_ = first_retry_pause;
  on_->is_next_stored = false;
}

void recorder::end_all() noexcept {
  if (is_behind_) {
    drop_next();
    return;
  }
  if (!on_->next) {
    on_->log.end_rewrite();
    commit_call();  // its effect is recorded
    retry_pause_ = first_retry_pause;
    return;
  }
  // The second time, with what has changed while the keeper stored it.
  on_->next->end_rewrite();
  on_->next->commit();
  on_->next->call().clear();  // its effect is recorded
  if (!on_->is_next_stored) {
    store_next();
  }
  try {
    if (on_->is_next_stored) {
      use_next();
    } else {
      is_behind_ = true;
    }
  } catch (const std::bad_alloc&) {
    is_behind_ = true;
  }
}

/// Does the next step of that. Both journals are complete until the old one is removed, which a
/// keeper without room for the next one must keep.
void recorder::store_next() noexcept {
  try {
    const bool is_new = !on_->reply;
    if (is_new) {
      on_->reply = on_->shelf.begin_put_journal(on_->next->descriptor(), on_->next->sequence());
    }
    if (!on_->reply) {
      put_off(nullptr);
      return;
    }
    if (*on_->reply) {
      if (is_new) {
        retry_pause_ = first_reply_pause;
      }
      pollfd entry{on_->reply->get(), POLLIN, 0};
      if (::poll(&entry, 1, 0) <= 0) {
        put_off(nullptr);
        return;
      }
      const auto problem = descriptor_shelf::reply_in(on_->reply->get());
      if (problem) {
        on_->reply.reset();
        on_->shelf.note_refusal();
        put_off(&*problem);
        return;
      }
    }
    on_->reply.reset();
    on_->is_next_stored = true;
  } catch (const error& why) {
    on_->reply.reset();
    put_off(&why);
  } catch (const std::bad_alloc&) {
    put_off(nullptr);
  }
}

void recorder::use_next() {
  on_->old_journals.push_back(on_->log.sequence());
  on_->next->notes() = on_->log.notes();
  on_->log = std::move(*on_->next);
  on_->next.reset();
  on_->is_next_stored = false;
  is_full_ = false;
  has_warned_ = false;
  retry_pause_ = refusal_pause_ = first_retry_pause;
}

/// `why` null: the keeper has not read it yet, or memory is short.
void recorder::put_off(const error* why) noexcept {
  std::chrono::milliseconds& pause = why != nullptr ? refusal_pause_ : retry_pause_;
  pause = std::min(pause * 2, longest_retry_pause);
  retry_pause_ = pause;
  if (why != nullptr && !std::exchange(has_warned_, true)) {
    log_about_members(log_level::error, why->what());
  }
}

}  // namespace gpushm::succession
