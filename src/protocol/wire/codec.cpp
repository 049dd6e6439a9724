// SPDX-License-Identifier: Apache-2.0
#include "protocol/wire/codec.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wnull-dereference"  // in flatbuffers' inlined functions
#include "protocol/wire/protocol_generated.h"
#pragma GCC diagnostic pop

namespace gpushm::wire {

namespace {

namespace fbs = flatbuffers;

/// Thrown inside `decode` only: the packet is not valid.
struct malformed {};

// ---- encoding ----

class encoder {
 public:
  encoder() : builder_(512) {}

  std::vector<std::byte> finish(const message& value) {
    const auto [type, offset] = std::visit([&](const auto& body) { return add(body); }, value.body);
    builder_.Finish(fb::CreateMessage(builder_, value.id, type, offset), fb::MessageIdentifier());
    const std::span bytes(builder_.GetBufferPointer(), builder_.GetSize());
    if (bytes.size() > max_packet_bytes) {
      throw error(errc::message_too_large,
                  "send",
                  {},
                  "the message has " + std::to_string(bytes.size()) + " bytes, the limit is " +
                      std::to_string(max_packet_bytes),
                  "send less metadata or fewer names per request");
    }
    std::vector<std::byte> packet(bytes.size());
    std::memcpy(packet.data(), bytes.data(), bytes.size());
    return packet;
  }

 private:
  using added = std::pair<fb::Body, fbs::Offset<void>>;

  // Lists that `decoder` would reject are rejected here: the peer would treat them as a violation
  // and disconnect.
  static void check_count(const char* list,
                          std::size_t count,
                          std::size_t most,
                          std::size_t fewest = 0) {
    if (count < fewest || count > most) {
      throw error(errc::message_too_large,
                  "send",
                  {},
                  std::string("the list ") + list + " has " + std::to_string(count) + " entries; " +
                      std::to_string(fewest) + " to " + std::to_string(most) + " are allowed",
                  "report this as a bug");
    }
  }
  template <typename Enum>
  static std::uint8_t enumerator(const char* field, Enum value, Enum first, Enum last) {
    if (value < first || value > last) {
      throw error(errc::invalid_argument,
                  "send",
                  {},
                  std::string(field) + " has the invalid value " +
                      std::to_string(static_cast<unsigned>(value)),
                  "use an enumerator that the header defines");
    }
    return static_cast<std::uint8_t>(value);
  }
  static std::uint8_t number_of(gpushm::backend value) {
    return enumerator("backend", value, gpushm::backend::host, gpushm::backend::descriptor);
  }
  static std::uint8_t number_of(gpushm::lifetime value) {
    return enumerator("lifetime", value, gpushm::lifetime::leased, gpushm::lifetime::persistent);
  }

  fbs::Offset<fbs::Vector<std::uint64_t>> sizes(const char* list,
                                                const std::vector<std::uint64_t>& values) {
    check_count(list, values.size(), max_batch);
    return builder_.CreateVector(values);
  }
  fbs::Offset<fbs::Vector<std::uint8_t>> token_if_any(const session_token& value) {
    return value == session_token{} ? fbs::Offset<fbs::Vector<std::uint8_t>>()
                                    : builder_.CreateVector(value.data(), value.size());
  }
  fbs::Offset<fbs::Vector<std::uint8_t>> receipt_if_any(const std::optional<receipt>& value) {
    return value ? bytes(*value) : fbs::Offset<fbs::Vector<std::uint8_t>>();
  }
  static std::uint8_t number_of(gpushm::fence value) {
    return enumerator("fence", value, gpushm::fence::none, gpushm::fence::unproven);
  }
  fbs::Offset<fbs::String> text(std::string_view value) {
    return builder_.CreateString(value.data(), value.size());
  }
  fbs::Offset<fbs::Vector<std::uint8_t>> bytes(std::span<const std::byte> value) {
    std::uint8_t* target = nullptr;
    const auto offset = builder_.CreateUninitializedVector<std::uint8_t>(value.size(), &target);
    std::copy_n(reinterpret_cast<const std::uint8_t*>(value.data()), value.size(), target);
    return offset;
  }
  fbs::Offset<fbs::Vector<std::uint8_t>> bytes_if_any(std::span<const std::byte> value) {
    return value.empty() ? fbs::Offset<fbs::Vector<std::uint8_t>>() : bytes(value);
  }
  fbs::Offset<fb::Device> device(const device_id& value) {
    return fb::CreateDevice(
        builder_,
        enumerator("device.kind", value.kind, device_kind::host, device_kind::mig),
        text(value.uuid),
        text(value.pci_address),
        value.minor);
  }
  fbs::Offset<fb::Segment> describe(const segment& value) {
    const auto name = text(value.name);
    const auto where = device(value.device);
    return fb::CreateSegment(
        builder_,
        name,
        value.generation,
        value.slot,
        value.size_bytes,
        value.allocated_bytes,
        value.chunk_count,
        where,
        number_of(value.backend),
        number_of(value.lifetime),
        value.published,
        enumerator("state", value.state, segment_state::live, segment_state::device_lost),
        value.leases,
        value.creator_uid,
        value.creator_pid,
        value.creator_alive,
        value.metadata_bytes,
        value.offset_bytes,
        value.ending,
        value.ending_pid,
        value.ending_ms,
        enumerator("ending_waits", value.ending_waits, fence_wait::process, fence_wait::delay));
  }

  added add(const hello& v) {
    const auto boot_id = text(v.boot_id);
    const auto resume = token_if_any(v.resume);
    return {fb::Body::Hello,
            fb::CreateHello(builder_,
                            v.version,
                            boot_id,
                            v.pid_namespace,
                            v.pid,
                            number_of(v.fence),
                            resume,
                            v.known_kinds,
                            v.takes_tables,
                            v.knows_versions)
                .Union()};
  }
  added add(const welcome& v) {
    const auto domain = text(v.domain);
    const auto epoch = builder_.CreateVector(v.epoch.data(), v.epoch.size());
    const auto token = token_if_any(v.token);
    return {fb::Body::Welcome,
            fb::CreateWelcome(builder_,
                              v.version,
                              domain,
                              epoch,
                              v.max_segments,
                              v.quota_bytes,
                              v.max_batch,
                              v.takes_reports,
                              number_of(v.fence),
                              v.fence_delay_ms,
                              token,
                              v.resumed,
                              v.known_kinds,
                              v.knows_versions)
                .Union()};
  }
  added add(const reserve& v) {
    const auto name = text(v.name);
    const auto where = device(v.device);
    const auto ticket = bytes_if_any(v.ticket);
    const auto receipt = receipt_if_any(v.receipt);
    return {fb::Body::Reserve,
            fb::CreateReserve(builder_,
                              name,
                              v.size_bytes,
                              v.allocated_bytes,
                              v.chunk_count,
                              where,
                              number_of(v.backend),
                              number_of(v.lifetime),
                              v.offset_bytes,
                              ticket,
                              v.generation,
                              v.creator_uid,
                              receipt,
                              v.replaces)
                .Union()};
  }
  added add(const reserved& v) {
    const auto receipt = receipt_if_any(v.receipt);
    return {fb::Body::Reserved,
            fb::CreateReserved(builder_, v.generation, v.slot, receipt).Union()};
  }
  added add(const attach& v) {
    const auto chunk_sizes = sizes("chunk_bytes", v.chunk_bytes);
    return {fb::Body::Attach,
            fb::CreateAttach(builder_, v.generation, v.first_chunk, chunk_sizes).Union()};
  }
  added add(const publish& v) {
    const auto metadata = bytes(v.metadata);
    return {fb::Body::Publish, fb::CreatePublish(builder_, v.generation, metadata).Union()};
  }
  added add(const open& v) {
    const auto name = text(v.name);
    return {
        fb::Body::Open,
        fb::CreateOpen(builder_, name, v.expected_size_bytes, v.timeout_ms, v.generation).Union()};
  }
  added add(const open_many& v) {
    check_count("names", v.names.size(), max_open_many, 1);
    const auto names = builder_.CreateVectorOfStrings(v.names);
    return {fb::Body::OpenMany,
            fb::CreateOpenMany(builder_, names, v.expected_size_bytes, v.timeout_ms).Union()};
  }
  added add(const opened& v) {
    const auto info = describe(v.segment);
    const auto metadata = bytes(v.metadata);
    const auto chunk_sizes = sizes("chunk_bytes", v.chunk_bytes);
    const auto ticket = bytes_if_any(v.ticket);
    const auto receipt = receipt_if_any(v.receipt);
    return {fb::Body::Opened,
            fb::CreateOpened(builder_,
                             v.index,
                             info,
                             metadata,
                             chunk_sizes,
                             ticket,
                             receipt,
                             v.alias_slot,
                             v.alias_generation)
                .Union()};
  }
  added add(const fetch_chunks& v) {
    return {fb::Body::FetchChunks,
            fb::CreateFetchChunks(builder_, v.generation, v.first_chunk).Union()};
  }
  added add(const chunks& v) {
    const auto chunk_sizes = sizes("chunk_bytes", v.chunk_bytes);
    return {fb::Body::Chunks,
            fb::CreateChunks(builder_, v.generation, v.first_chunk, chunk_sizes).Union()};
  }
  added add(const release& v) {
    return {fb::Body::Release,
            fb::CreateRelease(builder_, v.generation, v.count, v.never_mapped).Union()};
  }
  added add(const remove& v) {
    const auto name = text(v.name);
    return {fb::Body::Remove, fb::CreateRemove(builder_, name, v.generation).Union()};
  }
  added add(const list& v) {
    const auto prefix = text(v.prefix);
    const auto after = text(v.after);
    return {fb::Body::List, fb::CreateList(builder_, prefix, after).Union()};
  }
  fbs::Offset<fbs::Vector<fbs::Offset<fb::Segment>>> describe(const std::vector<segment>& values) {
    std::vector<fbs::Offset<fb::Segment>> segments;
    segments.reserve(values.size());
    for (const segment& info : values) {
      segments.push_back(describe(info));
    }
    return builder_.CreateVector(segments);
  }
  added add(const listing& v) {
    const auto vector = describe(v.segments);
    return {fb::Body::Listing, fb::CreateListing(builder_, vector, v.more).Union()};
  }
  added add(const stat& v) {
    const auto name = text(v.name);
    return {fb::Body::Stat, fb::CreateStat(builder_, name, v.generation).Union()};
  }
  added add(const subscribe& v) {
    const auto prefix = text(v.prefix);
    return {fb::Body::Subscribe, fb::CreateSubscribe(builder_, prefix).Union()};
  }
  added add(const unsubscribe& v) {
    return {fb::Body::Unsubscribe, fb::CreateUnsubscribe(builder_, v.subscription).Union()};
  }
  added add(const event& v) {
    const auto name = text(v.name);
    return {
        fb::Body::Event,
        fb::CreateEvent(builder_,
                        enumerator("kind", v.kind, event_kind::published, event_kind::alias_moved),
                        name,
                        v.generation,
                        v.leases,
                        v.peer_pid,
                        static_cast<std::uint8_t>(v.loss.cause),
                        v.loss.xid)
            .Union()};
  }
  added add(const failure& v) {
    const auto cause = text(v.cause);
    const auto next_step = text(v.next_step);
    return {fb::Body::Failure,
            fb::CreateFailure(
                builder_, v.index, static_cast<std::uint16_t>(v.code), cause, next_step, v.pid)
                .Union()};
  }
  added add(const done& /*v*/) { return {fb::Body::Done, fb::CreateDone(builder_).Union()}; }
  added add(const bye& /*v*/) { return {fb::Body::Bye, fb::CreateBye(builder_).Union()}; }
  added add(const confirm& v) {
    check_count("questions", v.questions.size(), max_batch, 1);
    check_count("generations", v.generations.size(), v.questions.size(), v.questions.size());
    const auto questions = builder_.CreateVector(v.questions);
    const auto generations = builder_.CreateVector(v.generations);
    return {fb::Body::Confirm, fb::CreateConfirm(builder_, questions, generations).Union()};
  }
  added add(const confirmed& v) {
    check_count("questions", v.questions.size(), max_batch, 1);
    check_count("verdicts", v.verdicts.size(), v.questions.size(), v.questions.size());
    const auto questions = builder_.CreateVector(v.questions);
    std::uint8_t* target = nullptr;
    const auto verdicts =
        builder_.CreateUninitializedVector<std::uint8_t>(v.verdicts.size(), &target);
    for (const verdict each : v.verdicts) {
      *target++ = enumerator("verdict", each, verdict::unchanged, verdict::not_shared);
    }
    return {fb::Body::Confirmed, fb::CreateConfirmed(builder_, questions, verdicts).Union()};
  }
  added add(const report& v) {
    const auto open_ns = sizes("open_ns", v.open_ns);
    const auto failures = sizes("failures", v.failures);
    const auto import_ns = sizes("import_ns", v.import_ns);
    return {
        fb::Body::Report,
        fb::CreateReport(builder_, open_ns, failures, v.cached, v.items, v.item_bytes, import_ns)
            .Union()};
  }
  added add(const unfence& v) {
    const auto name = text(v.name);
    return {fb::Body::Unfence, fb::CreateUnfence(builder_, name).Union()};
  }
  added add(const keep& v) {
    check_count("generations", v.generations.size(), max_keep);
    check_count("counts", v.counts.size(), v.generations.size(), v.generations.size());
    const auto generations = builder_.CreateVector(v.generations);
    const auto counts = builder_.CreateVector(v.counts);
    return {fb::Body::Keep, fb::CreateKeep(builder_, generations, counts, v.more).Union()};
  }
  added add(const waiting& v) {
    const auto info = v.segment ? describe(*v.segment) : fbs::Offset<fb::Segment>();
    const auto chunk_sizes = v.chunk_bytes.empty() ? fbs::Offset<fbs::Vector<std::uint64_t>>()
                                                   : sizes("chunk_bytes", v.chunk_bytes);
    const auto ticket = bytes_if_any(v.ticket);
    return {fb::Body::Waiting,
            fb::CreateWaiting(builder_, v.index, info, chunk_sizes, ticket).Union()};
  }
  added add(const cancel& v) {
    return {fb::Body::Cancel, fb::CreateCancel(builder_, v.request).Union()};
  }
  added add(const cancelled& /*v*/) {
    return {fb::Body::Cancelled, fb::CreateCancelled(builder_).Union()};
  }
  added add(const too_late& v) {
    return {fb::Body::TooLate, fb::CreateTooLate(builder_, v.after).Union()};
  }
  added add(const subscribed& v) {
    const auto vector = describe(v.segments);
    return {fb::Body::Subscribed, fb::CreateSubscribed(builder_, vector, v.more, v.after).Union()};
  }
  added add(const continued& /*v*/) {
    return {fb::Body::Continued, fb::CreateContinued(builder_).Union()};
  }
  fbs::Offset<fbs::Vector<fbs::Offset<fbs::String>>> texts(const char* list,
                                                           const std::vector<std::string>& values,
                                                           std::size_t most) {
    check_count(list, values.size(), most);
    return builder_.CreateVectorOfStrings(values);
  }
  added add(const create_version& v) {
    const auto base = text(v.base);
    const auto parts = texts("parts", v.parts, max_parts);
    return {fb::Body::CreateVersion,
            fb::CreateCreateVersion(builder_, base, v.number, parts, v.keep_versions, v.keep_bytes)
                .Union()};
  }
  added add(const version_created& v) {
    return {fb::Body::VersionCreated, fb::CreateVersionCreated(builder_, v.number).Union()};
  }
  added add(const change_version& v) {
    const auto base = text(v.base);
    const auto alias = text(v.alias);
    return {
        fb::Body::ChangeVersion,
        fb::CreateChangeVersion(
            builder_,
            base,
            v.number,
            enumerator("change", v.change, version_change::withdraw, version_change::remove_alias),
            alias)
            .Union()};
  }
  added add(const resolve& v) {
    const auto name = text(v.name);
    return {fb::Body::Resolve, fb::CreateResolve(builder_, name).Union()};
  }
  added add(const resolved& v) {
    return {fb::Body::Resolved,
            fb::CreateResolved(builder_, v.number, v.alias_slot, v.alias_generation).Union()};
  }
  added add(const list_versions& v) {
    const auto base = text(v.base);
    return {fb::Body::ListVersions, fb::CreateListVersions(builder_, base).Union()};
  }
  added add(const versions& v) {
    std::vector<fbs::Offset<fb::VersionInfo>> list;
    list.reserve(v.versions.size());
    for (const version_info& each : v.versions) {
      const auto aliases = texts("aliases", each.aliases, max_batch);
      list.push_back(fb::CreateVersionInfo(
          builder_,
          each.number,
          enumerator("state", each.state, version_state::building, version_state::ending),
          each.withdrawn,
          each.bytes,
          each.held,
          aliases));
    }
    const auto all = builder_.CreateVector(list);
    return {fb::Body::Versions, fb::CreateVersions(builder_, all).Union()};
  }

  fbs::FlatBufferBuilder builder_;
};

// ---- decoding ----

/// Offsets of a packet may refer to the same data. Everything copied out of a packet is charged, so
/// that a small packet cannot cause more allocations than a large one.
class decoder {
 public:
  body read_body(const fb::Message& m) {
    switch (m.body_type()) {
      case fb::Body::Hello: {
        const auto& v = *m.body_as_Hello();
        return hello{v.version(),
                     text(v.boot_id()),
                     v.pid_namespace(),
                     v.pid(),
                     read_fence(v.fence()),
                     token(v.resume()),
                     v.known_kinds(),
                     v.takes_tables(),
                     v.knows_versions()};
      }
      case fb::Body::Welcome:
        return read(*m.body_as_Welcome());
      case fb::Body::Reserve: {
        const auto& v = *m.body_as_Reserve();
        return reserve{{{text(v.name()),
                         v.size_bytes(),
                         v.allocated_bytes(),
                         device(v.device()),
                         v.chunk_count(),
                         read_backend(v.backend()),
                         read_lifetime(v.lifetime()),
                         v.offset_bytes()},
                        bytes(v.ticket()),
                        v.replaces()},
                       v.generation(),
                       v.creator_uid(),
                       read_receipt(v.receipt())};
      }
      case fb::Body::Reserved: {
        const auto& v = *m.body_as_Reserved();
        return reserved{v.generation(), v.slot(), read_receipt(v.receipt())};
      }
      case fb::Body::Attach: {
        const auto& v = *m.body_as_Attach();
        return attach{v.generation(), v.first_chunk(), sizes(v.chunk_bytes())};
      }
      case fb::Body::Publish: {
        const auto& v = *m.body_as_Publish();
        return publish{v.generation(), bytes(v.metadata())};
      }
      case fb::Body::Open: {
        const auto& v = *m.body_as_Open();
        return open{text(v.name()), v.expected_size_bytes(), v.timeout_ms(), v.generation()};
      }
      case fb::Body::OpenMany:
        return read(*m.body_as_OpenMany());
      case fb::Body::Opened: {
        const auto& v = *m.body_as_Opened();
        return opened{v.index(),
                      describe(v.segment()),
                      bytes(v.metadata()),
                      sizes(v.chunk_bytes()),
                      bytes(v.ticket()),
                      read_receipt(v.receipt()),
                      v.alias_slot(),
                      v.alias_generation()};
      }
      case fb::Body::FetchChunks: {
        const auto& v = *m.body_as_FetchChunks();
        return fetch_chunks{v.generation(), v.first_chunk()};
      }
      case fb::Body::Chunks: {
        const auto& v = *m.body_as_Chunks();
        return chunks{v.generation(), v.first_chunk(), sizes(v.chunk_bytes())};
      }
      case fb::Body::Release: {
        const auto& v = *m.body_as_Release();
        return release{v.generation(), v.count(), v.never_mapped()};
      }
      case fb::Body::Remove: {
        const auto& v = *m.body_as_Remove();
        return remove{text(v.name()), v.generation()};
      }
      case fb::Body::List: {
        const auto& v = *m.body_as_List();
        return list{text(v.prefix()), text(v.after())};
      }
      case fb::Body::Listing: {
        const auto& v = *m.body_as_Listing();
        return listing{describe(v.segments()), v.more()};
      }
      case fb::Body::Stat: {
        const auto& v = *m.body_as_Stat();
        return stat{text(v.name()), v.generation()};
      }
      case fb::Body::Subscribe:
        return subscribe{text(m.body_as_Subscribe()->prefix())};
      case fb::Body::Unsubscribe:
        return unsubscribe{m.body_as_Unsubscribe()->subscription()};
      case fb::Body::Event: {
        const auto& v = *m.body_as_Event();
        return event{enumerator(v.kind(), event_kind::published, event_kind::alias_moved),
                     text(v.name()),
                     v.generation(),
                     v.leases(),
                     v.peer_pid(),
                     v.loss() == 0 ? base::device_loss{} : base::loss_of(v.loss(), v.xid())};
      }
      case fb::Body::Failure: {
        // A code unknown to this version is passed on: its number and text still help.
        const auto& v = *m.body_as_Failure();
        return failure{
            v.index(), static_cast<errc>(v.code()), text(v.cause()), text(v.next_step()), v.pid()};
      }
      case fb::Body::Done:
        return done{};
      case fb::Body::Bye:
        return bye{};
      case fb::Body::Confirm: {
        const auto& v = *m.body_as_Confirm();
        confirm result{sizes(v.questions()), sizes(v.generations())};
        check_one_each(result.questions, result.generations.size());
        return result;
      }
      case fb::Body::Confirmed: {
        const auto& v = *m.body_as_Confirmed();
        confirmed result{sizes(v.questions()), {}};
        check_one_each(result.questions, v.verdicts() == nullptr ? 0 : v.verdicts()->size());
        result.verdicts.reserve(result.questions.size());
        for (const std::uint8_t each : *v.verdicts()) {
          result.verdicts.push_back(enumerator(each, verdict::unchanged, verdict::not_shared));
        }
        return result;
      }
      case fb::Body::Report: {
        const auto& v = *m.body_as_Report();
        return report{sizes(v.open_ns()),
                      sizes(v.failures()),
                      v.cached(),
                      v.items(),
                      v.item_bytes(),
                      sizes(v.import_ns())};
      }
      case fb::Body::Unfence:
        return unfence{text(m.body_as_Unfence()->name())};
      case fb::Body::Keep: {
        const auto& v = *m.body_as_Keep();
        keep result{sizes(v.generations(), max_keep), sizes(v.counts(), max_keep), v.more()};
        if (result.generations.size() != result.counts.size()) {
          throw malformed{};
        }
        return result;
      }
      case fb::Body::Waiting: {
        const auto& v = *m.body_as_Waiting();
        waiting result{v.index(), {}, sizes(v.chunk_bytes()), bytes(v.ticket())};
        if (v.segment() != nullptr) {
          result.segment = describe(v.segment());
        }
        return result;
      }
      case fb::Body::Cancel:
        return cancel{m.body_as_Cancel()->request()};
      case fb::Body::Cancelled:
        return cancelled{};
      case fb::Body::TooLate:
        return too_late{m.body_as_TooLate()->after()};
      case fb::Body::Subscribed: {
        const auto& v = *m.body_as_Subscribed();
        return subscribed{describe(v.segments()), v.more(), v.after()};
      }
      case fb::Body::Continued:
        return continued{};
      case fb::Body::CreateVersion: {
        const auto& v = *m.body_as_CreateVersion();
        return create_version{text(v.base()),
                              v.number(),
                              texts(v.parts(), max_parts),
                              v.keep_versions(),
                              v.keep_bytes()};
      }
      case fb::Body::VersionCreated:
        return version_created{m.body_as_VersionCreated()->number()};
      case fb::Body::ChangeVersion: {
        const auto& v = *m.body_as_ChangeVersion();
        return change_version{
            text(v.base()),
            v.number(),
            enumerator(v.change(), version_change::withdraw, version_change::remove_alias),
            text(v.alias())};
      }
      case fb::Body::Resolve:
        return resolve{text(m.body_as_Resolve()->name())};
      case fb::Body::Resolved: {
        const auto& v = *m.body_as_Resolved();
        return resolved{v.number(), v.alias_slot(), v.alias_generation()};
      }
      case fb::Body::ListVersions:
        return list_versions{text(m.body_as_ListVersions()->base())};
      case fb::Body::Versions:
        return read(*m.body_as_Versions());
      case fb::Body::NONE:
        break;
    }
    throw malformed{};
  }

 private:
  /// A table's offset, and the table's own offset to its vtable.
  static constexpr std::size_t smallest_segment_bytes = 8;

  void charge(std::size_t bytes) {
    if (bytes > left_) {
      throw malformed{};
    }
    left_ -= bytes;
  }
  std::string text(const fbs::String* value) {
    if (value == nullptr) {
      return {};
    }
    charge(value->size());
    return {value->c_str(), value->size()};
  }

  std::vector<std::byte> bytes(const fbs::Vector<std::uint8_t>* value) {
    std::vector<std::byte> result;
    if (value != nullptr) {
      charge(value->size());
      const auto* first = reinterpret_cast<const std::byte*>(value->data());
      result.assign(first, first + value->size());
    }
    return result;
  }

  static session_token token(const fbs::Vector<std::uint8_t>* value) {
    session_token result{};
    if (value == nullptr) {
      return result;
    }
    if (value->size() != result.size()) {
      throw malformed{};
    }
    std::copy(value->begin(), value->end(), result.begin());
    return result;
  }
  static std::optional<receipt> read_receipt(const fbs::Vector<std::uint8_t>* value) {
    if (value == nullptr) {
      return std::nullopt;
    }
    receipt result;
    if (value->size() != result.size()) {
      throw malformed{};
    }
    std::memcpy(result.data(), value->data(), result.size());
    return result;
  }

  static std::vector<std::uint64_t> sizes(const fbs::Vector<std::uint64_t>* value,
                                          std::size_t most = max_batch) {
    std::vector<std::uint64_t> result;
    if (value != nullptr) {
      if (value->size() > most) {
        throw malformed{};
      }
      // The verifier checks the alignment of the list's length, not of its elements.
      static_assert(std::endian::native == std::endian::little);
      result.resize(value->size());
      if (!result.empty()) {
        std::memcpy(result.data(), value->Data(), result.size() * sizeof(std::uint64_t));
      }
    }
    return result;
  }

  /// Requires at least one question, and one entry of the other list per question.
  static void check_one_each(const std::vector<std::uint64_t>& questions, std::size_t others) {
    if (questions.empty() || questions.size() != others) {
      throw malformed{};
    }
  }

  /// An enumerator whose values run from `first` to `last` without gaps.
  template <typename Enum>
  static Enum enumerator(std::uint64_t value, Enum first, Enum last) {
    if (value < static_cast<std::uint64_t>(first) || value > static_cast<std::uint64_t>(last)) {
      throw malformed{};
    }
    return static_cast<Enum>(value);
  }

  static gpushm::backend read_backend(std::uint8_t value) {
    return enumerator(value, gpushm::backend::host, gpushm::backend::descriptor);
  }
  static gpushm::lifetime read_lifetime(std::uint8_t value) {
    return enumerator(value, gpushm::lifetime::leased, gpushm::lifetime::persistent);
  }

  static gpushm::fence read_fence(std::uint8_t value) {
    return enumerator(value, gpushm::fence::none, gpushm::fence::unproven);
  }

  device_id device(const fb::Device* value) {
    if (value == nullptr) {
      return {};
    }
    return {enumerator(value->kind(), device_kind::host, device_kind::mig),
            text(value->uuid()),
            text(value->pci_address()),
            value->minor()};
  }

  segment describe(const fb::Segment* v) {
    if (v == nullptr) {
      throw malformed{};
    }
    segment result;
    result.name = text(v->name());
    result.generation = v->generation();
    result.slot = v->slot();
    result.size_bytes = v->size_bytes();
    result.allocated_bytes = v->allocated_bytes();
    result.chunk_count = v->chunk_count();
    result.device = device(v->device());
    result.backend = read_backend(v->backend());
    result.lifetime = read_lifetime(v->lifetime());
    result.published = v->published();
    result.state = enumerator(v->state(), segment_state::live, segment_state::device_lost);
    result.leases = v->leases();
    result.creator_uid = v->creator_uid();
    result.creator_pid = v->creator_pid();
    result.creator_alive = v->creator_alive();
    result.metadata_bytes = v->metadata_bytes();
    result.offset_bytes = v->offset_bytes();
    result.ending = v->ending();
    result.ending_pid = v->ending_pid();
    result.ending_ms = v->ending_ms();
    result.ending_waits = enumerator(v->ending_waits(), fence_wait::process, fence_wait::delay);
    return result;
  }

  welcome read(const fb::Welcome& v) {
    welcome result{v.version(),
                   text(v.domain()),
                   {},
                   v.max_segments(),
                   v.quota_bytes(),
                   v.max_batch(),
                   v.takes_reports(),
                   read_fence(v.fence()),
                   v.fence_delay_ms(),
                   token(v.token()),
                   v.resumed(),
                   v.known_kinds(),
                   v.knows_versions()};
    if (v.epoch() == nullptr || v.epoch()->size() != result.epoch.size()) {
      throw malformed{};
    }
    std::copy(v.epoch()->begin(), v.epoch()->end(), result.epoch.begin());
    return result;
  }

  open_many read(const fb::OpenMany& v) {
    open_many result{{}, v.expected_size_bytes(), v.timeout_ms()};
    if (v.names() == nullptr || v.names()->size() == 0 || v.names()->size() > max_open_many) {
      throw malformed{};
    }
    result.names.reserve(v.names()->size());
    for (const fbs::String* name : *v.names()) {
      result.names.push_back(text(name));
    }
    return result;
  }

  versions read(const fb::Versions& v) {
    versions result;
    if (v.versions() != nullptr) {
      if (v.versions()->size() > left_ / smallest_segment_bytes) {
        throw malformed{};
      }
      for (const fb::VersionInfo* each : *v.versions()) {
        charge(smallest_segment_bytes);
        result.versions.push_back(
            {each->number(),
             enumerator(each->state(), version_state::building, version_state::ending),
             each->withdrawn(),
             each->bytes(),
             each->held(),
             texts(each->aliases(), max_batch)});
      }
    }
    return result;
  }

  std::vector<std::string> texts(const fbs::Vector<fbs::Offset<fbs::String>>* values,
                                 std::size_t most) {
    std::vector<std::string> result;
    if (values != nullptr) {
      if (values->size() > most) {
        throw malformed{};
      }
      result.reserve(values->size());
      for (const fbs::String* each : *values) {
        result.push_back(text(each));
      }
    }
    return result;
  }

  std::vector<segment> describe(const fbs::Vector<fbs::Offset<fb::Segment>>* values) {
    std::vector<segment> result;
    if (values != nullptr) {
      if (values->size() > left_ / smallest_segment_bytes) {
        throw malformed{};
      }
      result.reserve(values->size());
      for (const fb::Segment* info : *values) {
        charge(smallest_segment_bytes);
        result.push_back(describe(info));
      }
    }
    return result;
  }

  std::size_t left_ = max_packet_bytes;
};

}  // namespace

std::vector<std::byte> encode(const message& value) {
  return encoder().finish(value);
}

namespace {

/// Returns null if it is not a message of this protocol.
const fb::Message* verified(std::span<const std::byte> packet) noexcept {
  if (packet.size() > max_packet_bytes) {
    return nullptr;
  }
  const auto* data = reinterpret_cast<const std::uint8_t*>(packet.data());
  fbs::Verifier verifier(data, packet.size());
  return fb::VerifyMessageBuffer(verifier) ? fb::GetMessage(data) : nullptr;
}

}  // namespace

std::optional<message> decode(std::span<const std::byte> packet) {
  const fb::Message* root = verified(packet);
  if (root == nullptr || root->body() == nullptr) {
    return std::nullopt;
  }
  try {
    return message{root->id(), decoder().read_body(*root)};
  } catch (const malformed&) {
    return std::nullopt;
  }
}

std::uint64_t id_of(std::span<const std::byte> packet) noexcept {
  const fb::Message* root = verified(packet);
  return root == nullptr ? 0 : root->id();
}

}  // namespace gpushm::wire
