// SPDX-License-Identifier: Apache-2.0
#include "broker/hub/domain_recorder.hpp"

#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <utility>

namespace gpushm::broker_detail {

namespace {

/// Calls `visit` with the key of each part of a segment's files, until it returns false.
template <typename Visit>
void for_each_part(gpushm::generation generation, Visit&& visit) {
  for (std::uint64_t part = 0; visit(records::key_of(records::kind::files, generation, part));
       ++part) {
  }
}

}  // namespace

domain_recorder::domain_recorder(succession::recorder* records,
                                 succession::segment_ledger* ledger,
                                 core::domain& domain,
                                 outbox& out,
                                 counters& count)
    : recorder_(records != nullptr ? *records : off_),
      ledger_(ledger),
      domain_(domain),
      out_(out),
      counters_(count) {}

void domain_recorder::end_continuing(const core::saved_state& predecessor) noexcept {
  if (ledger_ == nullptr) {
    return;
  }
  for (const auto& [name, value] : predecessor.records) {
    if (name.kind == core::record_kind::segment) {
      note(name.first, true);
    }
  }
  ledger_->end_continuing();
}

void domain_recorder::record(core::effects& changes) noexcept {
  if (!recorder_.is_on()) {
    return;
  }
  if (changes.too_many_records) {
    recorder_.fall_behind();
    return;
  }
  std::sort(changes.records.begin(), changes.records.end());
  const auto end = std::unique(changes.records.begin(), changes.records.end());
  for (auto at = changes.records.begin(); at != end; ++at) {
    try {
      const core::saved_value value = domain_.saved(*at);
      recorder_.put(*at, value);
      if (at->kind == core::record_kind::segment) {
        const bool exists = value.index() != 0;
        if (!exists) {
          record_end(at->first);
        }
        note(at->first, exists);
      }
    } catch (const std::bad_alloc&) {
      recorder_.fall_behind();
    }
  }
}

void domain_recorder::record_end(gpushm::generation generation) {
  const journal::record_key files = records::key_of(records::kind::files, generation);
  if (!recorder_.has(files)) {  // nor does a successor find any
    erase_files(generation);
    return;
  }
  freeing_.insert(generation);
  record_freeing(generation);
}

bool domain_recorder::record_freeing(gpushm::generation generation) noexcept {
  const journal::record_key freeing = records::key_of(records::kind::freeing, generation);
  // It has ended since the last commit if only its own record exists.
  return recorder_.copy(freeing, freeing) ||
         recorder_.copy(records::key_of({core::record_kind::segment, generation}), freeing);
}

void domain_recorder::erase_files(gpushm::generation generation) noexcept {
  for_each_part(generation, [&](const journal::record_key& key) { return recorder_.erase(key); });
}

void domain_recorder::is_closed(gpushm::generation generation) noexcept {
  freeing_.erase(generation);
  recorder_.erase(records::key_of(records::kind::freeing, generation));
  erase_files(generation);
}

void domain_recorder::record(const segment_files& files, std::size_t changed) noexcept {
  if (!recorder_.is_on()) {
    return;
  }
  try {
    constexpr std::size_t part_size = records::files_record::part_size;
    const std::size_t count = files.chunk_bytes.size();
    std::size_t part = changed / part_size;
    do {  // a page that is not handed back yet has no chunk, and is writable
      records::files_record record;
      const std::size_t end = std::min(count, (part + 1) * part_size);
      for (std::size_t i = part * part_size; i < end; ++i) {
        record.chunks.push_back(files.chunks[i].id);
        record.chunk_bytes.push_back(files.chunk_bytes[i]);
      }
      if (const succession::kept_fd* const writable = files.writable();
          writable != nullptr && part == 0) {
        record.writable = writable->id;
      }
      recorder_.put(records::key_of(records::kind::files, files.generation, part),
                    std::move(record));
    } while (++part * part_size < count);
  } catch (const std::bad_alloc&) {
    recorder_.fall_behind();
  }
}

void domain_recorder::note(gpushm::generation generation, bool exists) noexcept {
  if (ledger_ == nullptr) {
    return;
  }
  if (exists) {
    const core::segment& step = domain_.segment_of(generation);
    if (step.is_versioned) {  // it cannot be handed back: its version is lost with the broker
      return;
    }
    const succession::kept_fd* const page =
        step.backend == backend::signals && step.payload ? files_of(step).writable() : nullptr;
    ledger_->note(
        step,
        page != nullptr ? succession::page_identity_of(page->get()) : succession::page_identity{});
  } else {
    ledger_->erase(generation);
  }
  counters_.set({ledger_->returned(), ledger_->lost()});
}

void domain_recorder::set_events_left(bool any) noexcept {
  if (std::exchange(are_events_left_, any) == any) {
    return;
  }
  if (any) {
    recorder_.mark(records::key_of(records::kind::events_left));
  } else {
    recorder_.erase(records::key_of(records::kind::events_left));
  }
}

bool domain_recorder::commit() noexcept {
  recorder_.commit();
  return !recorder_.is_behind();
}

void domain_recorder::catch_up() noexcept {
  recorder_.catch_up([this] {
    try {
      std::unordered_set<gpushm::generation> existing;
      domain_.visit_saved([&](const core::record_name& name, const core::saved_value& value) {
        recorder_.put(name, value);
        if (name.kind == core::record_kind::segment) {
          existing.insert(name.first);
          note(name.first, true);
          const core::segment& of = domain_.segment_of(name.first);
          if (of.payload && !files_of(of).chunks.empty()) {
            record(files_of(of));
          }
        }
      });
      for (const gpushm::generation each : freeing_) {
        if (record_freeing(each)) {
          for_each_part(each,
                        [&](const journal::record_key& key) { return recorder_.copy(key, key); });
        }
      }
      if (ledger_ != nullptr) {
        ledger_->erase_others(existing);
      }
    } catch (const std::bad_alloc&) {
      recorder_.fall_behind();
    }
    if (are_events_left_) {
      recorder_.mark(records::key_of(records::kind::events_left));
    }
    domain_.for_each_payload(
        [this](core::payload& each) { out_.record_all(static_cast<session&>(each)); });
  });
}

void domain_recorder::is_not_handled(core::session_id member, lane_kind kind) noexcept {
  recorder_.erase(
      records::key_of(records::kind::handled, member, kind == lane_kind::events ? 1 : 0));
}

succession::kept_fd domain_recorder::keep(base::guarded_fd file) {
  const records::descriptor_id id = recorder_.keep(file.get());
  return {std::move(file), id};
}

std::optional<wire::receipt> domain_recorder::receipt_for(core::session_id member,
                                                          const core::segment& step) const {
  if (ledger_ == nullptr || !step.creator.uid_known || step.is_versioned) {
    return std::nullopt;
  }
  const core::peer& who = domain_.peer_of(member);
  if (!who.uid_known) {
    return std::nullopt;
  }
  // Another member that has handed it back is not its creator.
  const bool is_by_another = step.payload && !files_of(step).is_by_creator.value_or(true);
  const bool is_creator =
      step.creator_session == member && step.creator.uid == who.uid && !is_by_another;
  return ledger_->receipt_for(step.name, step.generation, who.uid, is_creator);
}

void domain_recorder::check_name(std::string_view name,
                                 const core::peer& peer,
                                 bool may_pass) const {
  if (ledger_ != nullptr && !may_pass) {
    ledger_->check_name(name, peer);
  }
}

core::lost_segment domain_recorder::check_return(const wire::reserve& offered,
                                                 const core::peer& peer) const {
  if (ledger_ == nullptr) {
    throw error(errc::gone_or_replaced,
                {},
                {},
                "this broker does not take back what an earlier one has lost",
                "create it again");
  }
  return ledger_->check_return(offered, peer.uid_known ? std::optional(peer.uid) : std::nullopt);
}

void domain_recorder::note_return(gpushm::generation generation, const core::peer& peer) {
  if (ledger_ != nullptr) {
    ledger_->note_return(generation, peer.uid);
  }
}

bool domain_recorder::gives_way(const core::lost_segment& step,
                                const core::peer& peer) const noexcept {
  const core::segment* const held = domain_.find_segment(step.generation);
  return held != nullptr && !held->published && held->payload &&
         !files_of(*held).is_by_creator.value_or(true) &&
         (step.is_creator ||
          (ledger_ != nullptr && ledger_->is_overdue(step.generation, peer.uid)));
}

void domain_recorder::check_returner(gpushm::generation generation,
                                     core::session_id session) const {
  const core::segment* const held = domain_.find_segment(generation);
  if (ledger_ != nullptr && held != nullptr && held->creator_session != session &&
      ledger_->is_missing(generation)) {
    throw error(errc::already_exists,
                {},
                {},
                "another process hands this segment back",
                "open it when that process has done so");
  }
}

void domain_recorder::check_publication(const wire::publish& message,
                                        core::session_id session) const {
  check_returner(message.generation, session);
  if (ledger_ != nullptr) {
    ledger_->check_publication(message.generation, message.metadata);
  }
}

succession::page_identity domain_recorder::page_of(gpushm::generation generation) const noexcept {
  return ledger_ != nullptr ? ledger_->page_of(generation) : succession::page_identity{};
}

void domain_recorder::end_returns() noexcept {
  ledger_->give_up();
  counters_.set({ledger_->returned(), ledger_->lost()});
}

}  // namespace gpushm::broker_detail
