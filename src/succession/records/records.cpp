// SPDX-License-Identifier: Apache-2.0
#include "succession/records/records.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "gpushm/error.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wnull-dereference"  // in flatbuffers' inlined functions
#include "succession/records/records_generated.h"
#pragma GCC diagnostic pop

namespace gpushm::records {

namespace {

namespace fbs = flatbuffers;

constexpr std::string_view operation = "journal";
constexpr std::size_t initial_bytes = 512;

std::int64_t stored(core::time_point when) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
}

core::time_point time_of(std::int64_t stored_as) {
  return core::time_point(
      std::chrono::duration_cast<core::time_point::duration>(std::chrono::nanoseconds(stored_as)));
}

// ---- encoding: one overload per value, which returns its table ----

class writer {
 public:
  explicit writer(fbs::FlatBufferBuilder& builder) : to_(builder) {}

  fbs::Offset<fb::Numbers> add(const core::saved_numbers& v) {
    return fb::CreateNumbers(to_,
                             v.next_generation,
                             v.next_waiting,
                             v.next_confirmation,
                             v.next_dead_name,
                             v.next_session,
                             v.next_change);
  }
  fbs::Offset<fb::Session> add(const core::saved_session& v) {
    const auto who = peer(v.who);
    const auto kept = v.kept ? list(*v.kept) : fbs::Offset<fbs::Vector<std::uint64_t>>();
    return fb::CreateSession(to_,
                             who,
                             v.lost.has_value(),
                             v.lost ? stored(v.lost->since) : 0,
                             v.lost ? static_cast<std::uint8_t>(v.lost->waits_for) : 0,
                             v.kept.has_value(),
                             kept,
                             v.resumes);
  }
  fbs::Offset<fb::Segment> add(const core::saved_segment& v) {
    const auto name = text(v.name);
    const auto uuid = text(v.device.uuid);
    const auto address = text(v.device.pci_address);
    const auto ticket = bytes(v.ticket);
    const auto creator = peer(v.creator);
    return fb::CreateSegment(to_,
                             name,
                             v.size_bytes,
                             v.allocated_bytes,
                             static_cast<std::uint8_t>(v.device.kind),
                             uuid,
                             address,
                             v.device.minor,
                             v.chunk_count,
                             static_cast<std::uint8_t>(v.backend),
                             static_cast<std::uint8_t>(v.lifetime),
                             v.offset_bytes,
                             ticket,
                             v.slot,
                             v.attached_chunks,
                             v.published,
                             v.removed,
                             v.used,
                             creator,
                             v.creator_session,
                             v.exporter_gone,
                             static_cast<bool>(v.loss),
                             v.replaces,
                             v.complete,
                             static_cast<std::uint8_t>(v.loss.cause),
                             v.loss.xid);
  }
  fbs::Offset<fb::Bytes> add(const core::saved_metadata& v) {
    return fb::CreateBytes(to_, bytes(v.bytes));
  }
  fbs::Offset<fb::Lease> add(const core::saved_lease& v) {
    return fb::CreateLease(to_, v.count, v.used, v.kept);
  }
  fbs::Offset<fb::Text> add(const core::saved_subscription& v) {
    return fb::CreateText(to_, text(v.prefix));
  }
  fbs::Offset<fb::Open> add(const core::saved_open& v) { return open(v.session, v.request); }
  fbs::Offset<fb::Confirmation> add(const core::saved_confirmation& v) {
    const auto what = open(v.session, v.request);
    return fb::CreateConfirmation(to_, what, v.generation, stored(v.deadline), v.exporter, v.sent);
  }
  fbs::Offset<fb::End> add(const core::saved_end& v) {
    const auto who = peer(v.who);
    return fb::CreateEnd(to_, v.who.pid, v.how, 0, who);
  }
  fbs::Offset<fb::Unkept> add(const core::saved_unkept& v) {
    std::vector<std::uint64_t> generations;
    std::vector<std::uint32_t> counts;
    generations.reserve(v.left.size());
    counts.reserve(v.left.size());
    for (const auto& [generation, count] : v.left) {
      generations.push_back(generation);
      counts.push_back(count);
    }
    const auto first = list(generations);
    return fb::CreateUnkept(to_, first, list(counts));
  }
  fbs::Offset<fb::Text> add(const core::saved_dead_name& v) {
    return fb::CreateText(to_,
                          text(v.name),
                          static_cast<bool>(v.loss),
                          static_cast<std::uint8_t>(v.loss.cause),
                          v.loss.xid);
  }

  fbs::Offset<fb::Version> add(const core::saved_version& v) {
    const auto base = text(v.base);
    const auto parts = texts(v.parts);
    const auto creator = peer(v.creator);
    return fb::CreateVersion(to_,
                             base,
                             v.number,
                             static_cast<std::uint8_t>(v.state),
                             v.withdrawn,
                             parts,
                             creator,
                             v.session);
  }
  fbs::Offset<fb::Alias> add(const core::saved_alias& v) {
    const auto base = text(v.base);
    const auto alias = text(v.alias);
    const auto owner = peer(v.owner);
    return fb::CreateAlias(
        to_, base, alias, v.generation, v.number, v.last, v.keep.versions, v.keep.bytes, owner);
  }

  fbs::Offset<fb::Broker> add(const broker_record& v) {
    const auto domain = text(v.domain);
    const auto epoch = to_.CreateVector(v.epoch.data(), v.epoch.size());
    const auto socket = text(v.socket_path);
    return fb::CreateBroker(to_,
                            domain,
                            epoch,
                            v.slots,
                            socket,
                            v.table,
                            v.listener,
                            v.lock,
                            v.socket_device,
                            v.socket_inode,
                            v.min_reader);
  }
  fbs::Offset<fb::Connection> add(const connection_record& v) {
    const auto token = to_.CreateVector(v.token.data(), v.token.size());
    return fb::CreateConnection(to_,
                                v.greeted,
                                v.sent_bye,
                                v.dropped,
                                v.closed,
                                token,
                                static_cast<std::uint8_t>(v.fence),
                                v.requests,
                                v.events,
                                v.process,
                                v.life,
                                v.known_kinds,
                                v.takes_tables,
                                v.inflight_requests,
                                v.inflight_events,
                                v.knows_versions);
  }
  fbs::Offset<fb::Files> add(const files_record& v) {
    const auto chunks = list(v.chunks);
    return fb::CreateFiles(to_, chunks, list(v.chunk_bytes), v.writable);
  }
  fbs::Offset<fb::OpenRest> add(const open_rest_record& v) {
    const auto names = texts(v.names);
    return fb::CreateOpenRest(to_,
                              v.id,
                              names,
                              v.expected_size_bytes,
                              v.next,
                              v.deadline.has_value(),
                              v.deadline ? stored(*v.deadline) : 0,
                              stored(v.asked));
  }
  fbs::Offset<fb::Lane> add(const lane_record& v) { return fb::CreateLane(to_, v.queued, v.sent); }
  fbs::Offset<fb::Packet> add(const packet_record& v) {
    const auto packet = bytes(v.bytes);
    return fb::CreatePacket(to_,
                            v.session,
                            v.on_event_lane,
                            v.is_reply,
                            v.place,
                            packet,
                            v.metadata_of,
                            list(v.descriptors),
                            v.files_of);
  }

 private:
  /// FlatBuffers does not detect that a buffer is too large.
  void charge(std::size_t bytes) {
    if (bytes > left_) {
      throw error(errc::message_too_large,
                  operation,
                  {},
                  "a record has more than " + std::to_string(max_record_bytes) + " bytes",
                  "report this as a bug");
    }
    left_ -= bytes;
  }
  fbs::Offset<fbs::String> text(const std::string& value) {
    charge(value.size());
    return to_.CreateString(value);
  }
  fbs::Offset<fbs::Vector<std::uint8_t>> bytes(std::span<const std::byte> value) {
    charge(value.size());
    return to_.CreateVector(reinterpret_cast<const std::uint8_t*>(value.data()), value.size());
  }
  template <typename Number>
  fbs::Offset<fbs::Vector<Number>> list(const std::vector<Number>& value) {
    charge(value.size() * sizeof(Number));
    return to_.CreateVector(value);
  }
  fbs::Offset<fbs::Vector<fbs::Offset<fbs::String>>> texts(const std::vector<std::string>& values) {
    for (const std::string& each : values) {
      charge(each.size() + sizeof(fbs::uoffset_t));
    }
    return to_.CreateVectorOfStrings(values);
  }
  fbs::Offset<fb::Peer> peer(const core::peer& v) {
    return fb::CreatePeer(to_,
                          v.pid,
                          v.uid,
                          v.uid_known,
                          text(v.principal.key),
                          v.principal.vouched_for,
                          v.is_foreign);
  }
  fbs::Offset<fb::Open> open(core::session_id session, const core::open_request& v) {
    return fb::CreateOpen(to_,
                          session,
                          v.request,
                          v.index,
                          text(v.name),
                          v.expected_size_bytes,
                          v.deadline.has_value(),
                          v.deadline ? stored(*v.deadline) : 0,
                          stored(v.asked),
                          v.generation,
                          v.waits);
  }

  fbs::FlatBufferBuilder& to_;
  std::size_t left_ = max_record_bytes;
};

// ---- decoding ----

[[noreturn]] void throw_damaged(std::string_view cause) {
  throw error(errc::invalid_argument,
              operation,
              {},
              "a record is damaged: " + std::string(cause),
              "start the broker without it; its clients connect again");
}

std::vector<std::byte> bytes(const fbs::Vector<std::uint8_t>* vector) {
  std::vector<std::byte> result(vector == nullptr ? 0 : vector->size());
  if (!result.empty()) {
    std::memcpy(result.data(), vector->data(), result.size());
  }
  return result;
}

template <typename Number>
std::vector<Number> list(const fbs::Vector<Number>* vector) {
  std::vector<Number> result(vector == nullptr ? 0 : vector->size());
  // The verifier checks the alignment of the list's length, not of its elements.
  static_assert(std::endian::native == std::endian::little);
  if (!result.empty()) {
    std::memcpy(result.data(), vector->Data(), result.size() * sizeof(Number));
  }
  return result;
}

template <typename Enum>
Enum enumerator(std::uint8_t stored_as, Enum last) {
  if (stored_as > static_cast<std::uint8_t>(last)) {
    throw_damaged("an unknown enumerator");
  }
  return static_cast<Enum>(stored_as);
}

/// Missing: zeros.
template <std::size_t Size>
std::array<std::uint8_t, Size> array(const fbs::Vector<std::uint8_t>* vector) {
  std::array<std::uint8_t, Size> result{};
  if (vector != nullptr) {
    if (vector->size() != Size) {
      throw_damaged("a wrong length");
    }
    std::copy(vector->begin(), vector->end(), result.begin());
  }
  return result;
}

std::optional<core::time_point> optional_time(bool has, std::int64_t stored_as) {
  return has ? std::optional(time_of(stored_as)) : std::nullopt;
}

core::peer peer(const fb::Peer* table) {
  if (table == nullptr) {
    return {};
  }
  return {table->pid(),
          table->uid(),
          table->uid_known(),
          {fbs::GetString(table->principal()), table->vouched_for()},
          table->is_foreign()};
}

core::saved_open open(const fb::Open& v) {
  return {v.session(),
          {v.request(),
           v.index(),
           fbs::GetString(v.name()),
           v.expected_size_bytes(),
           optional_time(v.has_deadline(), v.deadline()),
           time_of(v.asked()),
           v.generation(),
           v.waits()}};
}

template <typename Table>
const Table& root(std::span<const std::byte> bytes) {
  if (bytes.size() > max_record_bytes) {  // the verifier would abort
    throw_damaged("it is too long");
  }
  const auto* const data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  fbs::Verifier verifier(data, bytes.size());
  if (!verifier.VerifyBuffer<Table>(nullptr)) {
    throw_damaged("it is not a record of its kind");
  }
  return *fbs::GetRoot<Table>(data);
}

core::saved_session session(const fb::Session& v) {
  core::saved_session result;
  result.who = peer(v.who());
  if (v.is_lost()) {
    result.lost = {time_of(v.lost_since()), enumerator(v.lost_waits_for(), fence_wait::delay)};
  }
  if (v.has_kept()) {
    result.kept = list(v.kept());
  }
  result.resumes = v.resumes();
  return result;
}

/// An earlier version stored only that the GPU was lost.
template <typename Table>
base::device_loss loss(const Table& v) {
  return v.device_lost() ? base::loss_of(v.loss(), v.xid()) : base::device_loss{};
}

core::saved_segment segment(const fb::Segment& v) {
  core::saved_segment result;
  result.name = fbs::GetString(v.name());
  result.size_bytes = v.size_bytes();
  result.allocated_bytes = v.allocated_bytes();
  result.device = {enumerator(v.device_kind(), device_kind::mig),
                   fbs::GetString(v.device_uuid()),
                   fbs::GetString(v.device_pci_address()),
                   v.device_minor()};
  result.chunk_count = v.chunk_count();
  result.backend = enumerator(v.backend(), backend::descriptor);
  result.lifetime = enumerator(v.lifetime(), lifetime::persistent);
  result.offset_bytes = v.offset_bytes();
  result.ticket = bytes(v.ticket());
  result.slot = v.slot();
  result.attached_chunks = v.attached_chunks();
  result.published = v.published();
  result.removed = v.removed();
  result.used = v.used();
  result.creator = peer(v.creator());
  result.creator_session = v.creator_session();
  result.exporter_gone = v.exporter_gone();
  result.loss = loss(v);
  result.replaces = v.replaces();
  result.complete = v.complete();
  return result;
}

/// `size_bytes`: of the record.
std::vector<std::string> texts(const fbs::Vector<fbs::Offset<fbs::String>>* vector,
                               std::size_t size_bytes) {
  std::vector<std::string> result;
  if (vector == nullptr) {
    return result;
  }
  result.reserve(vector->size());
  for (const fbs::String* each : *vector) {
    // Names of a damaged record may be the same text: copies could fill the memory.
    if (each->size() > size_bytes) {
      throw_damaged("names that share their text");
    }
    size_bytes -= each->size();
    result.push_back(fbs::GetString(each));
  }
  return result;
}

core::saved_version version(const fb::Version& v, std::size_t size_bytes) {
  return {fbs::GetString(v.base()),
          v.number(),
          enumerator(v.state(), version_state::ending),
          v.withdrawn(),
          texts(v.parts(), size_bytes),
          peer(v.creator()),
          v.session()};
}

core::saved_alias alias(const fb::Alias& v) {
  return {fbs::GetString(v.base()),
          fbs::GetString(v.alias()),
          v.generation(),
          v.number(),
          v.last(),
          {v.keep_versions(), v.keep_bytes()},
          peer(v.owner())};
}

core::saved_confirmation confirmation(const fb::Confirmation& v) {
  if (v.open() == nullptr) {
    throw_damaged("a confirmation without its open");
  }
  auto [session, request] = open(*v.open());
  return {
      session, std::move(request), v.generation(), time_of(v.deadline()), v.exporter(), v.sent()};
}

core::saved_end end(const fb::End& v) {
  constexpr std::uint8_t last_how = 2;  // core::saved_end
  if (v.how() > last_how) {
    throw_damaged("an unknown enumerator");
  }
  core::saved_end result{peer(v.who()), v.how()};
  result.who.pid = v.pid();
  return result;
}

core::saved_unkept unkept(const fb::Unkept& v) {
  const auto generations = list(v.generations());
  const auto counts = list(v.counts());
  if (generations.size() != counts.size()) {
    throw_damaged("lists of different lengths");
  }
  core::saved_unkept result;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    result.left.emplace_back(generations[i], counts[i]);
  }
  return result;
}

connection_record connection(const fb::Connection& v) {
  return {v.greeted(),
          v.sent_bye(),
          v.dropped(),
          v.closed(),
          array<sizeof(wire::session_token)>(v.token()),
          enumerator(v.fence(), fence::unproven),
          v.requests(),
          v.events(),
          v.process(),
          v.life(),
          v.known_kinds(),
          v.takes_tables(),
          v.inflight_requests(),
          v.inflight_events(),
          v.knows_versions()};
}

files_record files(const fb::Files& v) {
  files_record result{list(v.chunks()), list(v.chunk_bytes()), v.writable()};
  if (result.chunks.size() != result.chunk_bytes.size()) {
    throw_damaged("lists of different lengths");
  }
  return result;
}

/// `size_bytes`: of the record.
open_rest_record open_rest(const fb::OpenRest& v, std::size_t size_bytes) {
  open_rest_record result;
  result.id = v.id();
  result.names = texts(v.names(), size_bytes);
  result.expected_size_bytes = v.expected_size_bytes();
  result.next = v.next();
  result.deadline = optional_time(v.has_deadline(), v.deadline());
  result.asked = time_of(v.asked());
  if (result.next > result.names.size()) {
    throw_damaged("an index behind the end");
  }
  return result;
}

packet_record packet(const fb::Packet& v) {
  return {v.session(),
          v.on_event_lane(),
          v.is_reply(),
          v.place(),
          bytes(v.bytes()),
          v.metadata_of(),
          list(v.descriptors()),
          v.files_of()};
}

}  // namespace

journal::record_key key_of(const core::record_name& name) noexcept {
  return {static_cast<std::uint32_t>(name.kind), name.first, name.second};
}

std::optional<core::record_name> name_of(const journal::record_key& key) noexcept {
  const auto what = static_cast<core::record_kind>(key.kind);
  if (what < core::record_kind::numbers || what > core::record_kind::alias) {
    return std::nullopt;
  }
  return core::record_name{what, key.first, key.second};
}

struct encoder::impl {
  fbs::FlatBufferBuilder builder{initial_bytes};
  bool is_usable = true;

  template <typename Value>
  std::span<const std::byte> encode(const Value& value) {
    if (!std::exchange(is_usable, false)) {
      // After an exception the builder's size may not be that of its buffer.
      builder = fbs::FlatBufferBuilder(initial_bytes);
    }
    builder.Clear();
    builder.Finish(writer(builder).add(value));
    is_usable = true;
    return std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  }
};

encoder::encoder() : impl_(std::make_unique<impl>()) {}
encoder::~encoder() = default;

std::span<const std::byte> encoder::encode(const core::saved_value& value) {
  return std::visit(
      [&](const auto& each) -> std::span<const std::byte> {
        if constexpr (std::is_same_v<std::decay_t<decltype(each)>, std::monostate>) {
          return {};
        } else {
          return impl_->encode(each);
        }
      },
      value);
}

std::span<const std::byte> encoder::encode(const broker_value& value) {
  return std::visit([&](const auto& each) { return impl_->encode(each); }, value);
}

core::saved_value decode(core::record_kind kind, std::span<const std::byte> source) {
  switch (kind) {
    case core::record_kind::numbers: {
      const auto& v = root<fb::Numbers>(source);
      return core::saved_numbers{v.next_generation(),
                                 v.next_waiting(),
                                 v.next_confirmation(),
                                 v.next_dead_name(),
                                 v.next_session(),
                                 v.next_change()};
    }
    case core::record_kind::session:
      return session(root<fb::Session>(source));
    case core::record_kind::segment:
      return segment(root<fb::Segment>(source));
    case core::record_kind::metadata:
      return core::saved_metadata{bytes(root<fb::Bytes>(source).bytes())};
    case core::record_kind::lease: {
      const auto& v = root<fb::Lease>(source);
      return core::saved_lease{v.count(), v.used(), v.kept()};
    }
    case core::record_kind::subscription:
      return core::saved_subscription{fbs::GetString(root<fb::Text>(source).text())};
    case core::record_kind::waiting:
      return open(root<fb::Open>(source));
    case core::record_kind::confirmation:
      return confirmation(root<fb::Confirmation>(source));
    case core::record_kind::end:
      return end(root<fb::End>(source));
    case core::record_kind::unkept:
      return unkept(root<fb::Unkept>(source));
    case core::record_kind::dead_name:
      return core::saved_dead_name{fbs::GetString(root<fb::Text>(source).text()),
                                   loss(root<fb::Text>(source))};
    case core::record_kind::version:
      return version(root<fb::Version>(source), source.size());
    case core::record_kind::alias:
      return alias(root<fb::Alias>(source));
  }
  throw_damaged("an unknown kind");
}

broker_value decode(kind kind, std::span<const std::byte> source) {
  switch (kind) {
    case kind::broker: {
      const auto& v = root<fb::Broker>(source);
      return broker_record{fbs::GetString(v.domain()),
                           array<sizeof(gpushm::epoch)>(v.epoch()),
                           v.slots(),
                           fbs::GetString(v.socket_path()),
                           v.table(),
                           v.listener(),
                           v.lock(),
                           v.socket_device(),
                           v.socket_inode(),
                           v.min_reader()};
    }
    case kind::connection:
      return connection(root<fb::Connection>(source));
    case kind::files:
      return files(root<fb::Files>(source));
    case kind::open_rest:
      return open_rest(root<fb::OpenRest>(source), source.size());
    case kind::lane: {
      const auto& v = root<fb::Lane>(source);
      return lane_record{v.queued(), v.sent()};
    }
    case kind::packet:
      return packet(root<fb::Packet>(source));
    case kind::handled:
    case kind::open_next:
    case kind::freeing:
    case kind::events_left:
      break;
  }
  throw_damaged("an unknown kind");
}

}  // namespace gpushm::records
