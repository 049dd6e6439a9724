// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "succession/records/records.hpp"

/// Values for the tests of records. A field that is added to one of the structures does not compile
/// until it is listed in `fields_of`, and fails a test until `full_values` sets it.
namespace gpushm::records::samples {

template <typename T, typename Of>
concept is = std::same_as<std::remove_const_t<T>, Of>;

template <is<device_id> T>
auto fields_of(T& v) {
  auto& [kind, uuid, pci_address, minor] = v;
  return std::tie(kind, uuid, pci_address, minor);
}
template <is<core::principal> T>
auto fields_of(T& v) {
  auto& [key, vouched_for] = v;
  return std::tie(key, vouched_for);
}
template <is<core::peer> T>
auto fields_of(T& v) {
  auto& [pid, uid, uid_known, principal, is_foreign] = v;
  return std::tie(pid, uid, uid_known, principal, is_foreign);
}
template <is<core::open_request> T>
auto fields_of(T& v) {
  auto& [request, index, name, expected_size_bytes, deadline, asked, generation, waits] = v;
  return std::tie(request, index, name, expected_size_bytes, deadline, asked, generation, waits);
}
template <is<core::saved_numbers> T>
auto fields_of(T& v) {
  auto& [generation, waiting, confirmation, dead_name, session, change] = v;
  return std::tie(generation, waiting, confirmation, dead_name, session, change);
}
template <is<core::saved_session::loss> T>
auto fields_of(T& v) {
  auto& [since, waits_for] = v;
  return std::tie(since, waits_for);
}
template <is<core::saved_session> T>
auto fields_of(T& v) {
  auto& [who, lost, kept, resumes] = v;
  return std::tie(who, lost, kept, resumes);
}
template <is<base::segment_facts> T>
auto fields_of(T& v) {
  auto& [name, size_bytes, allocated_bytes, device, chunk_count, backend, lifetime, offset_bytes] =
      v;
  return std::tie(
      name, size_bytes, allocated_bytes, device, chunk_count, backend, lifetime, offset_bytes);
}

/// Converts to anything.
struct anything {
  template <typename T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
template <typename T, typename... Fields>
concept has_fields = requires(Fields... fields) {
  T{fields...};
};
/// `T` derives from `Base` and adds as many fields as `More` has.
template <typename T, typename Base, typename... More>
inline constexpr bool adds_exactly =
    has_fields<T, Base, More...> && !has_fields<T, Base, More..., anything>;

// Structured bindings do not include fields of a base.
static_assert(adds_exactly<base::reservation, base::segment_facts, anything, anything>);
static_assert(adds_exactly<core::saved_segment,
                           base::reservation,
                           anything,
                           anything,
                           anything,
                           anything,
                           anything,
                           anything,
                           anything,
                           anything,
                           anything,
                           anything>,
              "list the new field of saved_segment in fields_of");
template <is<core::saved_segment> T>
auto fields_of(T& v) {
  using facts =
      std::conditional_t<std::is_const_v<T>, const base::segment_facts, base::segment_facts>;
  return std::tuple_cat(fields_of(static_cast<facts&>(v)),
                        std::tie(v.ticket,
                                 v.replaces,
                                 v.slot,
                                 v.attached_chunks,
                                 v.published,
                                 v.removed,
                                 v.used,
                                 v.creator,
                                 v.creator_session,
                                 v.exporter_gone,
                                 v.loss.cause,
                                 v.loss.xid,
                                 v.complete));
}
template <is<core::saved_metadata> T>
auto fields_of(T& v) {
  auto& [bytes] = v;
  return std::tie(bytes);
}
template <is<core::saved_lease> T>
auto fields_of(T& v) {
  auto& [count, used, kept] = v;
  return std::tie(count, used, kept);
}
template <is<core::saved_subscription> T>
auto fields_of(T& v) {
  auto& [prefix] = v;
  return std::tie(prefix);
}
template <is<core::saved_open> T>
auto fields_of(T& v) {
  auto& [session, request] = v;
  return std::tie(session, request);
}
template <is<core::saved_confirmation> T>
auto fields_of(T& v) {
  auto& [session, request, generation, deadline, exporter, sent] = v;
  return std::tie(session, request, generation, deadline, exporter, sent);
}
template <is<core::saved_end> T>
auto fields_of(T& v) {
  auto& [who, how] = v;
  return std::tie(who, how);
}
template <is<core::saved_unkept> T>
auto fields_of(T& v) {
  auto& [left] = v;
  return std::tie(left);
}
template <is<core::saved_dead_name> T>
auto fields_of(T& v) {
  auto& [name, loss] = v;
  return std::tie(name, loss.cause, loss.xid);
}
template <is<core::retention> T>
auto fields_of(T& v) {
  auto& [versions, bytes] = v;
  return std::tie(versions, bytes);
}
template <is<core::saved_version> T>
auto fields_of(T& v) {
  auto& [base, number, state, withdrawn, parts, creator, session] = v;
  return std::tie(base, number, state, withdrawn, parts, creator, session);
}
template <is<core::saved_alias> T>
auto fields_of(T& v) {
  auto& [base, alias, generation, number, last, keep, owner] = v;
  return std::tie(base, alias, generation, number, last, keep, owner);
}
template <is<broker_record> T>
auto fields_of(T& v) {
  auto& [domain, epoch, slots, socket_path, table, listener, lock, device, inode, reader] = v;
  return std::tie(domain, epoch, slots, socket_path, table, listener, lock, device, inode, reader);
}
template <is<connection_record> T>
auto fields_of(T& v) {
  auto& [greeted,
         bye,
         dropped,
         closed,
         token,
         fence,
         requests,
         events,
         process,
         life,
         kinds,
         tables,
         inflight,
         inflight_events,
         versions] = v;
  return std::tie(greeted,
                  bye,
                  dropped,
                  closed,
                  token,
                  fence,
                  requests,
                  events,
                  process,
                  life,
                  kinds,
                  tables,
                  inflight,
                  inflight_events,
                  versions);
}
template <is<files_record> T>
auto fields_of(T& v) {
  auto& [chunks, chunk_bytes, writable] = v;
  return std::tie(chunks, chunk_bytes, writable);
}
template <is<open_rest_record> T>
auto fields_of(T& v) {
  auto& [id, names, expected_size_bytes, next, deadline, asked] = v;
  return std::tie(id, names, expected_size_bytes, next, deadline, asked);
}
template <is<lane_record> T>
auto fields_of(T& v) {
  auto& [queued, sent] = v;
  return std::tie(queued, sent);
}
template <is<packet_record> T>
auto fields_of(T& v) {
  auto& [session, on_event_lane, is_reply, place, bytes, metadata_of, descriptors, files_of] = v;
  return std::tie(
      session, on_event_lane, is_reply, place, bytes, metadata_of, descriptors, files_of);
}

inline core::time_point at(std::int64_t nanoseconds) {
  return core::time_point(std::chrono::nanoseconds(nanoseconds));
}

inline std::vector<std::byte> some_bytes(std::size_t count, unsigned first) {
  std::vector<std::byte> result(count);
  for (std::byte& each : result) {
    each = static_cast<std::byte>(first++);
  }
  return result;
}

/// One value of each kind, whose fields all differ from their defaults and, where the type allows
/// it, from each other.
inline auto full_values() {
  const core::peer who{101, 1'000, true, {"container 3f9c", false}, true};
  const core::open_request request{
      11, 12, "w/llama", 1ULL << 40U, at(13'000'000'014), at(-15), 16, true};

  core::saved_session session{who,
                              core::saved_session::loss{at(21), fence_wait::delay},
                              std::vector<generation>{22, 23},
                              77};
  core::saved_segment segment;
  segment.name = "w/llama";
  segment.size_bytes = 31;
  segment.allocated_bytes = 32;
  segment.device = {device_kind::mig, "MIG-5fd4f087", "0000:18:00.0", 33};
  segment.chunk_count = 34;
  segment.backend = backend::cuda_pool;
  segment.lifetime = lifetime::persistent;
  segment.offset_bytes = 35;
  segment.ticket = some_bytes(36, 36);
  segment.replaces = 34;
  segment.slot = 37;
  segment.attached_chunks = 38;
  segment.published = true;
  segment.removed = true;
  segment.used = true;
  segment.creator = {102, 0xFFFF'FFFFU, true, {"uid 4294967295", false}, true};
  segment.creator_session = 39;
  segment.exporter_gone = true;
  segment.loss = {base::loss_cause::xid, 79};
  segment.complete = true;

  broker_record broker{"default", {}, 41, "/run/gpushm/s", 42, 43, 44, 45, 46, 47};
  broker.epoch = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  connection_record connection{true,
                               true,
                               true,
                               true,
                               {},
                               fence::unproven,
                               51,
                               52,
                               53,
                               0xFFFF'FFFF'FFFF'FFFFULL,
                               0x55,
                               true,
                               56,
                               57,
                               true};
  connection.token.fill(0x54);

  return std::make_tuple(
      core::saved_numbers{2, 3, 4, 5, 6, 7},
      std::move(session),
      std::move(segment),
      core::saved_metadata{some_bytes(300, 61)},
      core::saved_lease{62, true, true},
      core::saved_subscription{std::string("a\0b", 3)},
      core::saved_open{63, request},
      core::saved_confirmation{64, request, max_generation, at(65), 66, true},
      core::saved_end{who, 2},
      core::saved_unkept{{{71, 72}, {73, 0xFFFF'FFFFU}}},
      core::saved_dead_name{"w/gone", {base::loss_cause::xid, 95}},
      core::saved_version{"w/x", 75, version_state::ending, true, {"r0", "", "cache/1"}, who, 76},
      core::saved_alias{"w/x", "prod", 77, 78, 79, {80, 81}, who},
      std::move(broker),
      std::move(connection),
      files_record{{81, 82, 83}, {84, 85, 86}, 87},
      open_rest_record{91, {"a", "", "c", "c"}, 92, 3, at(93), at(94)},
      lane_record{101, 102},
      packet_record{103, true, false, 104, some_bytes(50, 105), 106, {107, 0, 108}, 109});
}
using all_values = decltype(full_values());

// A value's kind is its place among the alternatives.
static_assert(std::variant_size_v<core::saved_value> == 14 &&
              std::variant_size_v<broker_value> == 6);
static_assert(std::tuple_size_v<all_values> == 13 + 6);
inline std::uint32_t kind_of(const core::saved_value& value) {
  return static_cast<std::uint32_t>(value.index());
}
inline std::uint32_t kind_of(const broker_value& value) {
  return static_cast<std::uint32_t>(kind::broker) + static_cast<std::uint32_t>(value.index());
}

/// Values that are empty, or have only one field that differs from its default.
template <typename T>
std::vector<T> sparse_values(const T& full) {
  std::vector<T> result(1);
  const auto add = [&]<std::size_t... I>(std::index_sequence<I...> /*fields*/) {
    (
        [&] {
          T one{};
          std::get<I>(fields_of(one)) = std::get<I>(fields_of(full));
          result.push_back(std::move(one));
        }(),
        ...);
  };
  add(std::make_index_sequence<std::tuple_size_v<decltype(fields_of(full))>>());
  return result;
}

struct record {
  std::uint32_t kind = 0;
  std::vector<std::byte> bytes;
};

template <typename Value>
record encoded(const Value& value) {
  encoder one;
  const auto bytes = one.encode(value);
  return {kind_of(value), {bytes.begin(), bytes.end()}};
}

/// One record of each kind, with all fields.
inline std::vector<record> full_records() {
  std::vector<record> result;
  std::apply([&](const auto&... each) { (result.push_back(encoded(each)), ...); }, full_values());
  return result;
}

}  // namespace gpushm::records::samples
