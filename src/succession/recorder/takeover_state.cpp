// SPDX-License-Identifier: Apache-2.0
#include "succession/recorder/takeover_state.hpp"

#include <algorithm>
#include <new>
#include <span>
#include <string>

#include "gpushm/error.hpp"
#include "succession/recorder/limited_log.hpp"
#include "succession/recorder/own_table.hpp"
#include "succession/recorder/step.hpp"

namespace gpushm::succession {

stored_files::~stored_files() {
  std::vector<base::unique_fd> left;
  try {
    left.reserve(files_.size());
  } catch (const std::bad_alloc&) {
    return;  // closed here
  }
  for (auto& [number, file] : files_) {
    left.push_back(std::move(file));
  }
  close_apart(std::move(left));
}

void stored_files::add(records::descriptor_id number, base::unique_fd file) {
  files_.emplace(number, std::move(file));
}

base::unique_fd stored_files::take(records::descriptor_id number) {
  const auto file = files_.find(number);
  if (file == files_.end()) {
    return {};
  }
  base::unique_fd result = std::move(file->second);
  files_.erase(file);
  return result;
}

std::vector<records::descriptor_id> stored_files::numbers() const {
  std::vector<records::descriptor_id> result;
  result.reserve(files_.size());
  for (const auto& [number, file] : files_) {
    result.push_back(number);
  }
  return result;
}

takeover_state::takeover_state(journal::journal journal, stored_files left)
    : log(std::move(journal)), descriptors(std::move(left)), stored(descriptors.numbers()) {
  check_reader();
  read_notes();
  read();
  finish_call();
  --log.notes().failed_starts;  // if another domain ends this process, this one is not the cause
}

/// Changes nothing, however often an earlier version starts: the domain waits for a later one.
void takeover_state::check_reader() const {
  const auto self = log.find(records::key_of(records::kind::broker));
  if (!self) {
    return;
  }
  const auto value = records::decode(records::kind::broker, *self);
  const auto& record = std::get<records::broker_record>(value);
  if (record.min_reader > records::reader) {
    throw error(errc::unsupported_version,
                "continue domain",
                record.domain,
                "a later version of gpushm-brokerd has recorded what this one does not know",
                "start that version again: everything is kept for it");
  }
}

void takeover_state::read_notes() {
  journal::death_notes& notes = log.notes();
  if (notes.failed_starts >= max_failed_starts) {
    throw error(errc::invalid_argument,
                "read the journal",
                {},
                std::to_string(notes.failed_starts) + " brokers have ended while they continued it",
                "report this as a bug; a new one starts without it");
  }
  ++notes.failed_starts;
  if (notes.handling != 0) {
    notes.deaths = notes.blamed == notes.handling ? notes.deaths + 1 : 1;
    notes.blamed = notes.handling;
    notes.handling = 0;
  }
  if (notes.deaths >= max_deaths && session_in(notes.blamed) != 0) {
    suspect = session_in(notes.blamed);
  }
  if (notes.deaths >= max_failed_starts) {  // in what no session alone has caused
    throw error(errc::invalid_argument,
                "read the journal",
                {},
                std::to_string(notes.deaths) + " brokers have ended in the same step",
                "report this as a bug; a new one starts without it");
  }
}

kept_fd takeover_state::take(records::descriptor_id number) {
  base::unique_fd found = descriptors.take(number);
  return found ? kept_fd(std::move(found), number) : kept_fd();
}

records::descriptor_id takeover_state::last_freed() const noexcept {
  records::descriptor_id last = 0;
  for (const auto& [generation, ended] : freeing) {
    if (const auto at = files.find(generation); at != files.end()) {
      last = std::max(last, at->second.writable);
      for (const records::descriptor_id each : at->second.chunks) {
        last = std::max(last, each);
      }
    }
  }
  return last;
}

core::session_id takeover_state::next_session() const noexcept {
  core::session_id last = 0;
  for (const auto& [name, value] : state.records) {
    if (const auto* const numbers = std::get_if<core::saved_numbers>(&value)) {
      last = std::max(last, numbers->next_session - 1);
    }
    // What an earlier version has recorded has no such number.
    if (name.kind == core::record_kind::session || name.kind == core::record_kind::end) {
      last = std::max(last, name.first);
    }
  }
  return last + 1;
}

std::uint64_t takeover_state::next_packet() const noexcept {
  return packets.empty() ? 1 : packets.rbegin()->first + 1;
}

void takeover_state::read() {
  bool complete = false;
  std::map<core::session_id, std::uint64_t> next_names;
  std::map<std::pair<gpushm::generation, std::uint64_t>, records::files_record> parts;
  log.for_each([&](const journal::record_key& key, std::span<const std::byte> bytes) {
    if (const auto name = records::name_of(key)) {
      state.records.emplace(*name, records::decode(name->kind, bytes));
      return;
    }
    const auto kind = static_cast<records::kind>(key.kind);
    if (kind == records::kind::handled) {
      handled.emplace(key.first, key.second);
      return;
    }
    if (kind == records::kind::open_next) {
      next_names[key.first] = key.second;
      return;
    }
    if (kind == records::kind::freeing) {
      auto value = records::decode(core::record_kind::segment, bytes);
      freeing.emplace(key.first, std::move(std::get<core::saved_segment>(value)));
      return;
    }
    if (kind == records::kind::events_left) {
      are_events_left = true;
      return;
    }
    if (kind < records::kind::broker || kind > records::kind::open_next) {
      return;  // of a later version
    }
    records::broker_value value = records::decode(kind, bytes);
    if (auto* const record = std::get_if<records::broker_record>(&value)) {
      broker = std::move(*record);
      complete = true;
    } else if (auto* const connection = std::get_if<records::connection_record>(&value)) {
      connections.emplace(key.first, *connection);
    } else if (auto* const rest = std::get_if<records::open_rest_record>(&value)) {
      rests.emplace(key.first, std::move(*rest));
    } else if (auto* const lane = std::get_if<records::lane_record>(&value)) {
      lanes.emplace(key.first, *lane);
    } else if (auto* const chunks = std::get_if<records::files_record>(&value)) {
      parts.emplace(std::pair(key.first, key.second), std::move(*chunks));
    } else if (auto* const packet = std::get_if<records::packet_record>(&value)) {
      packets.emplace(key.first, std::move(*packet));
    }
  });
  for (auto& [key, part] : parts) {  // in order
    records::files_record& to = files[key.first];
    const std::uint64_t from = key.second * records::files_record::part_size;
    if (from > to.chunks.size()) {
      throw error(errc::invalid_argument,
                  "read the journal",
                  {},
                  "a part of a segment's chunks is missing",
                  "report this as a bug");
    }
    // The first part of an earlier version has all of them.
    to.chunks.resize(from);
    to.chunk_bytes.resize(from);
    to.chunks.insert(to.chunks.end(), part.chunks.begin(), part.chunks.end());
    to.chunk_bytes.insert(to.chunk_bytes.end(), part.chunk_bytes.begin(), part.chunk_bytes.end());
    to.writable = std::max(to.writable, part.writable);
  }
  for (const auto& [session, next] : next_names) {
    if (const auto of = rests.find(session); of != rests.end() && next <= of->second.names.size()) {
      of->second.next = static_cast<std::uint32_t>(next);
    }
  }
  if (!complete) {
    throw error(errc::invalid_argument,
                "read the journal",
                {},
                "its broker was killed before it had started",
                "start a new one");
  }
}

/// The predecessor may also have recorded the effect already.
void takeover_state::finish_call() {
  transport::reported_call& call = log.call();
  if (call.what == transport::reported_call::kind::none) {
    return;
  }
  if (call.has_taken_effect()) {
    const std::uint64_t subject = call.subject;
    const auto count_sent = [&](core::session_id session) {
      records::encoder encoder;
      ++lanes[session].sent;
      log.put(records::key_of(records::kind::lane, session), encoder.encode(lanes[session]));
    };
    if (call.what == transport::reported_call::kind::remove) {
      handled.erase({subject >> 1U, subject & 1U});
      log.erase(records::key_of(records::kind::handled, subject >> 1U, subject & 1U));
    } else if ((subject & records::event_mark) != 0) {
      const core::session_id session = records::session_of_event(subject);
      if (lanes.count(session) != 0 && records::event_of(session, lanes[session].sent) == subject) {
        count_sent(session);
      }
    } else if (const auto sent = packets.find(subject); sent != packets.end()) {
      if (sent->second.on_event_lane) {
        count_sent(sent->second.session);
      }
      packets.erase(sent);
      log.erase(records::key_of(records::kind::packet, subject));
    }
    log.commit();
  }
  call.clear();
}

std::map<std::string, std::optional<takeover_state>> read_takeover_states(
    std::vector<keeper::named_descriptor> inherited) {
  struct left {
    std::optional<journal::journal> log;
    stored_files descriptors;
  };
  std::map<std::string, left> entries;
  std::vector<base::unique_fd> foreign;
  for (keeper::named_descriptor& each : inherited) {
    const auto label = descriptor_shelf::parse(each.name);
    if (!label) {
      foreign.push_back(std::move(each.descriptor));
      continue;
    }
    left& remainder = entries[label->domain];
    if (!label->is_journal) {
      remainder.descriptors.add(label->number, std::move(each.descriptor));
      continue;
    }
    try {
      auto found = journal::journal::open(std::move(each.descriptor));
      if (!remainder.log || remainder.log->sequence() < found.sequence()) {
        remainder.log = std::move(found);
      }
    } catch (const error& why) {
      if (why.code() != errc::invalid_argument) {
        throw;
      }
      log_about_broker(log_level::info, why.what());  // not complete when its writer was killed
    }
  }
  close_apart(std::move(foreign));
  std::map<std::string, std::optional<takeover_state>> result;
  for (auto& [domain, read] : entries) {
    auto& into = result[domain];
    try {
      if (read.log) {
        into.emplace(std::move(*read.log), std::move(read.descriptors));
      }
    } catch (const error& why) {
      if (why.code() != errc::invalid_argument) {
        throw;
      }
      log_about_broker(log_level::error, why.what());
    }
  }
  return result;
}

}  // namespace gpushm::succession
