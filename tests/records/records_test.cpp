// SPDX-License-Identifier: Apache-2.0
#include "succession/records/records.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <set>
#include <string>

#include "gpushm/error.hpp"
#include "succession/records/records_generated.h"
#include "tests/core/counting_new.hpp"
#include "tests/records/samples.hpp"

namespace gpushm::records {
namespace {

namespace fbs = flatbuffers;
using samples::encoded;
using samples::fields_of;
using samples::record;

using either_value = std::variant<core::saved_value, broker_value>;

/// Decodes a copy in a buffer of the exact size, so that sanitizers detect reads past the end.
either_value decoded(const record& record) {
  const std::vector<std::byte> copy(record.bytes.begin(), record.bytes.end());
  if (const auto name = name_of({record.kind, 0, 0})) {
    return decode(name->kind, copy);
  }
  return decode(static_cast<kind>(record.kind), copy);
}

record encoded_again(const either_value& value) {
  return std::visit([](const auto& each) { return encoded(each); }, value);
}

/// The cause of the error that decoding throws.
std::string refusal(const record& record) {
  try {
    static_cast<void>(decoded(record));
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::invalid_argument);
    return why.cause();
  }
  return "none";
}

template <typename Table>
record finished(std::uint32_t kind, fbs::FlatBufferBuilder& builder, fbs::Offset<Table> table) {
  builder.Finish(table);
  const auto* const first = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {kind, {first, first + builder.GetSize()}};
}

constexpr std::uint32_t number(core::record_kind kind) {
  return static_cast<std::uint32_t>(kind);
}
constexpr std::uint32_t number(kind kind) {
  return static_cast<std::uint32_t>(kind);
}

template <typename T>
void expect_every_field_set(const T& value, const T& empty) {
  if constexpr (requires { fields_of(value); }) {
    const auto check = [&]<std::size_t... I>(std::index_sequence<I...> /*fields*/) {
      (
          [&] {
            SCOPED_TRACE("field " + std::to_string(I));
            expect_every_field_set(std::get<I>(fields_of(value)), std::get<I>(fields_of(empty)));
          }(),
          ...);
    };
    check(std::make_index_sequence<std::tuple_size_v<decltype(fields_of(value))>>());
  } else if constexpr (requires { value.has_value(); }) {
    ASSERT_TRUE(value.has_value());
    expect_every_field_set(*value, {});
  } else {
    EXPECT_FALSE(value == empty);
  }
}

/// Calls `visit` with each of samples::full_values.
template <typename Visit>
void for_each_full_value(Visit&& visit) {
  std::apply([&](const auto&... each) { (visit(each), ...); }, samples::full_values());
}

bool is_valid(const files_record& value) {
  return value.chunks.size() == value.chunk_bytes.size();
}
bool is_valid(const open_rest_record& value) {
  return value.next <= value.names.size();
}
bool is_valid(const base::device_loss& loss) {
  return (loss.cause == base::loss_cause::xid) == (loss.xid != 0);
}
bool is_valid(const core::saved_segment& value) {
  return is_valid(value.loss);
}
bool is_valid(const core::saved_dead_name& value) {
  return is_valid(value.loss);
}
template <typename T>
bool is_valid(const T& /*value*/) {
  return true;
}

TEST(record, has_every_field_of_its_value) {
  std::set<std::uint32_t> kinds;
  for_each_full_value([&](const auto& full) {
    const record bytes = encoded(full);
    SCOPED_TRACE("kind " + std::to_string(bytes.kind));
    kinds.insert(bytes.kind);
    expect_every_field_set(full, {});
    EXPECT_EQ(decoded(bytes), either_value(full));
    for (const auto& sparse : samples::sparse_values(full)) {
      if (is_valid(sparse)) {
        EXPECT_EQ(decoded(encoded(sparse)), either_value(sparse));
      }
    }
  });
  EXPECT_EQ(kinds.size(), std::tuple_size_v<samples::all_values>);
}

TEST(record, tells_an_empty_list_from_none) {
  core::saved_session value;
  value.kept.emplace();
  EXPECT_EQ(decoded(encoded(value)), either_value(value));
  const std::vector<std::string> empty_names(3);
  EXPECT_EQ(decoded(encoded(open_rest_record{1, empty_names, 0, 3, {}, {}})),
            either_value(open_rest_record{1, empty_names, 0, 3, {}, {}}));
}

TEST(record, keeps_the_largest_and_smallest_times) {
  for (const auto when : {core::time_point::min(), core::time_point::max(), core::time_point()}) {
    const open_rest_record value{1, {}, 0, 0, when, when};
    EXPECT_EQ(decoded(encoded(value)), either_value(value));
  }
}

TEST(record_key, has_the_numbers_of_its_object) {
  const core::record_name name{core::record_kind::lease, 7, 1ULL << 63U};
  EXPECT_EQ(key_of(name), (journal::record_key{5, 7, 1ULL << 63U}));
  EXPECT_EQ(name_of(key_of(name)), name);
  EXPECT_EQ(key_of(kind::handled, 8, 1), (journal::record_key{70, 8, 1}));
  for (std::uint32_t each = 0; each < 100; ++each) {
    EXPECT_EQ(name_of({each, 1, 2}).has_value(), each >= 1 && each <= 13) << each;
  }
  EXPECT_FALSE(name_of({0xFFFF'FFFF, 0, 0}));
}

TEST(encoder, is_reusable) {
  encoder one;
  for (int round = 0; round < 2; ++round) {
    for_each_full_value([&](const auto& full) {
      const auto bytes = one.encode(full);
      const record expected = encoded(full);
      EXPECT_TRUE(std::ranges::equal(bytes, expected.bytes)) << expected.kind;
    });
  }
}

TEST(encoder, continues_after_a_failed_allocation) {
  const packet_record large{1, false, true, 0, samples::some_bytes(100'000, 0), 0, {}, 0};
  const open_rest_record many{1, std::vector<std::string>(1'000, "a name"), 0, 0, {}, {}};
  const lane_record small{1, 2};
  int failures = 0;
  const auto check = [&](const broker_value& value) {
    for (std::size_t nth = 1;; ++nth) {
      encoder one;
      static_cast<void>(one.encode(small));
      bool failed = false;
      gpushm_testing::fail_allocation(nth);
      try {
        static_cast<void>(one.encode(value));
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      gpushm_testing::fail_allocation(0);
      for (const broker_value& each : {broker_value(small), value}) {
        const auto bytes = one.encode(each);
        EXPECT_EQ(decoded({samples::kind_of(each), {bytes.begin(), bytes.end()}}),
                  either_value(each));
      }
      if (!failed) {
        return;
      }
      ++failures;
    }
  };
  check(large);
  check(many);
  EXPECT_GE(failures, 2);
}

TEST(damaged_record, that_is_truncated_is_refused_or_complete) {
  for (const record& full : samples::full_records()) {
    const either_value value = decoded(full);
    for (std::size_t size = 0; size < full.bytes.size(); ++size) {
      record cut = full;
      cut.bytes.resize(size);
      try {
        // The last bytes may be padding or the end of a string.
        EXPECT_EQ(decoded(cut), value) << "kind " << full.kind << " cut to " << size;
      } catch (const error& why) {
        EXPECT_EQ(why.code(), errc::invalid_argument);
      }
    }
    EXPECT_EQ(refusal({full.kind, {}}), "a record is damaged: it is not a record of its kind");
  }
}

TEST(damaged_record, is_refused_or_is_a_value) {
  const std::vector<record> records = samples::full_records();
  std::mt19937 random(20'250'731);
  const auto below = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  int refused = 0;
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    record changed = records[below(records.size())];
    for (std::size_t more = 1 + below(4); more > 0; --more) {
      const std::size_t at = below(changed.bytes.size());
      switch (below(8)) {
        case 0:
          changed.bytes.resize(at + 1);
          break;
        case 1:
          changed.bytes.insert(changed.bytes.begin() + static_cast<std::ptrdiff_t>(at), 4, {});
          break;
        case 2: {
          const auto word = static_cast<std::uint32_t>(below(changed.bytes.size() + 8));
          std::memcpy(
              changed.bytes.data() + at, &word, std::min(sizeof(word), changed.bytes.size() - at));
          break;
        }
        case 3:
          changed.bytes[at] = static_cast<std::byte>(random());
          break;
        case 4:
          changed.kind = records[below(records.size())].kind;
          break;
        default:
          changed.bytes[at] ^= static_cast<std::byte>(1U << below(8));
      }
    }
    try {
      const either_value value = decoded(changed);
      ASSERT_EQ(decoded(encoded_again(value)), value) << "mutation " << i;
      ++accepted;
    } catch (const error& why) {
      ASSERT_EQ(why.code(), errc::invalid_argument) << "mutation " << i;
      ++refused;
    }
  }
  // Both must happen, otherwise the test checks nothing.
  EXPECT_GT(refused, 1'000);
  EXPECT_GT(accepted, 1'000);
}

TEST(damaged_record, with_an_unknown_enumerator_is_refused) {
  const std::string unknown = "a record is damaged: an unknown enumerator";
  struct enumerators {
    std::uint8_t device;
    std::uint8_t backend;
    std::uint8_t lifetime;
    bool known;
  };
  for (const auto& each : {enumerators{2, 6, 1, true},
                           enumerators{3, 0, 0, false},
                           enumerators{0, 7, 0, false},
                           enumerators{0, 0, 2, false},
                           enumerators{255, 0, 0, false}}) {
    fbs::FlatBufferBuilder builder;
    fb::SegmentBuilder segment(builder);
    segment.add_device_kind(each.device);
    segment.add_backend(each.backend);
    segment.add_lifetime(each.lifetime);
    EXPECT_EQ(refusal(finished(number(core::record_kind::segment), builder, segment.Finish())),
              each.known ? "none" : unknown);
  }
  for (const int value : {2, 3, 255}) {
    const auto stored = static_cast<std::uint8_t>(value);
    const std::string expected = value == 2 ? "none" : unknown;
    fbs::FlatBufferBuilder builder;
    const auto lost = fb::CreateSession(builder, 0, true, 1, stored);
    EXPECT_EQ(refusal(finished(number(core::record_kind::session), builder, lost)), expected);
    builder.Clear();
    const auto end = fb::CreateEnd(builder, 1, stored);
    EXPECT_EQ(refusal(finished(number(core::record_kind::end), builder, end)), expected);
    builder.Clear();
    fb::ConnectionBuilder connection(builder);
    connection.add_fence(stored);
    EXPECT_EQ(refusal(finished(number(kind::connection), builder, connection.Finish())), expected);
  }
}

TEST(damaged_record, with_a_wrong_length_is_refused) {
  const std::string wrong = "a record is damaged: a wrong length";
  for (const std::size_t size : {0U, 15U, 16U, 17U, 23U, 24U, 25U}) {
    fbs::FlatBufferBuilder builder;
    const std::vector<std::uint8_t> bytes(size, 1);
    const auto epoch = fb::CreateBroker(builder, 0, builder.CreateVector(bytes));
    EXPECT_EQ(refusal(finished(number(kind::broker), builder, epoch)), size == 16 ? "none" : wrong);
    builder.Clear();
    const auto token =
        fb::CreateConnection(builder, true, false, false, false, builder.CreateVector(bytes));
    EXPECT_EQ(refusal(finished(number(kind::connection), builder, token)),
              size == 24 ? "none" : wrong);
  }
  const std::string different = "a record is damaged: lists of different lengths";
  for (const std::size_t size : {0U, 1U, 2U, 3U}) {
    const std::string expected = size == 2 ? "none" : different;
    const std::vector<std::uint64_t> two{1, 2};
    fbs::FlatBufferBuilder builder;
    const auto chunks = builder.CreateVector(two);
    const auto sizes = builder.CreateVector(std::vector<std::uint64_t>(size, 3));
    const auto files = fb::CreateFiles(builder, chunks, sizes);
    EXPECT_EQ(refusal(finished(number(kind::files), builder, files)), expected);
    builder.Clear();
    const auto generations = builder.CreateVector(two);
    const auto counts = builder.CreateVector(std::vector<std::uint32_t>(size, 3));
    const auto unkept = fb::CreateUnkept(builder, generations, counts);
    EXPECT_EQ(refusal(finished(number(core::record_kind::unkept), builder, unkept)), expected);
  }
  EXPECT_EQ(refusal(encoded(files_record{{1}, {}})), different);
  EXPECT_EQ(refusal(encoded(open_rest_record{1, {"a"}, 0, 2, {}, {}})),
            "a record is damaged: an index behind the end");
}

TEST(damaged_record, of_no_kind_or_without_a_part_is_refused) {
  const record lane = encoded(lane_record{1, 2});
  for (const std::uint32_t kind_number :
       {0U, 14U, 63U, number(kind::handled), 71U, 72U, 0xFFFF'FFFFU}) {
    EXPECT_EQ(refusal({kind_number, lane.bytes}), "a record is damaged: an unknown kind")
        << kind_number;
  }
  EXPECT_THROW(static_cast<void>(decode(static_cast<core::record_kind>(14), lane.bytes)), error);
  fbs::FlatBufferBuilder builder;
  EXPECT_EQ(refusal(finished(
                number(core::record_kind::confirmation), builder, fb::CreateConfirmation(builder))),
            "a record is damaged: a confirmation without its open");
}

// Offsets may refer to the same text: a small record could cause gigabytes of allocations.
TEST(damaged_record, cannot_fill_the_memory) {
  fbs::FlatBufferBuilder builder;
  const auto name = builder.CreateString(std::string(100'000, 'n'));
  const auto names = builder.CreateVector(std::vector<fbs::Offset<fbs::String>>(20'000, name));
  EXPECT_EQ(
      refusal(finished(number(kind::open_rest), builder, fb::CreateOpenRest(builder, 1, names))),
      "a record is damaged: names that share their text");
}

TEST(damaged_record, that_is_too_long_is_refused) {
  const std::size_t size = max_record_bytes + 1;
  void* const memory =
      ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::span bytes(static_cast<const std::byte*>(memory), size);
  EXPECT_THROW(static_cast<void>(decode(kind::lane, bytes)), error);
  EXPECT_EQ(::munmap(memory, size), 0);
}

// The library's verifier checks the alignment of a list's length, not of its elements.
TEST(damaged_record, with_unaligned_numbers_is_read) {
  std::array<std::uint32_t, 11> words{20,                // the table
                                      16U | 12U << 16U,  // the sizes of its vtable and of it
                                      0,                 // no who, not is_lost
                                      0,                 // no lost_since, no lost_waits_for
                                      8U | 4U << 16U,    // has_kept and kept, in the table
                                      16,                // the table: its vtable is 16 bytes before
                                      8,                 // the list, 8 bytes after this
                                      1,                 // has_kept
                                      1,                 // the list's length
                                      0x55667788,
                                      0x11223344};
  const auto* const first = reinterpret_cast<const std::byte*>(words.data());
  const record bytes{number(core::record_kind::session), {first, first + sizeof(words)}};
  core::saved_session expected;
  expected.kept = {0x1122334455667788};
  EXPECT_EQ(decoded(bytes), either_value(expected));
}

TEST(newer_record, may_have_unknown_fields) {
  fbs::FlatBufferBuilder builder;
  const auto future = builder.CreateString("from the future");
  fbs::uoffset_t start = builder.StartTable();
  builder.AddElement<std::uint32_t>(fb::Lease::VT_COUNT, 3, 0);
  builder.AddElement<std::uint8_t>(fb::Lease::VT_USED, 1, 0);
  builder.AddOffset(fb::Lease::VT_KEPT + 2, future);
  builder.AddElement<std::uint64_t>(fb::Lease::VT_KEPT + 20, 99, 0);
  EXPECT_EQ(decoded(finished(number(core::record_kind::lease),
                             builder,
                             fbs::Offset<fb::Lease>(builder.EndTable(start)))),
            either_value(core::saved_lease{3, true}));

  builder.Clear();
  const auto bytes = builder.CreateVector(std::vector<std::uint8_t>{1, 2});
  start = builder.StartTable();
  builder.AddOffset(fb::Packet::VT_BYTES, bytes);
  builder.AddElement<std::uint8_t>(fb::Packet::VT_FILES_OF + 2, 7, 0);
  packet_record expected;
  expected.bytes = {std::byte{1}, std::byte{2}};
  EXPECT_EQ(decoded(finished(
                number(kind::packet), builder, fbs::Offset<fb::Packet>(builder.EndTable(start)))),
            either_value(expected));
}

TEST(older_record, of_a_lost_gpu_has_no_cause) {
  fbs::FlatBufferBuilder builder;
  const auto name = fb::CreateText(builder, builder.CreateString("w"), true);
  EXPECT_EQ(decoded(finished(number(core::record_kind::dead_name), builder, name)),
            either_value(core::saved_dead_name{"w", {base::loss_cause::reported}}));
  builder.Clear();
  fb::SegmentBuilder segment(builder);
  segment.add_device_lost(true);
  core::saved_segment expected;
  expected.loss = {base::loss_cause::reported};
  EXPECT_EQ(decoded(finished(number(core::record_kind::segment), builder, segment.Finish())),
            either_value(expected));
}

TEST(older_record, has_defaults_for_missing_fields) {
  for_each_full_value([](const auto& full) {
    using value = std::decay_t<decltype(full)>;
    const std::uint32_t kind_number = samples::kind_of(full);
    if (kind_number == number(core::record_kind::confirmation)) {
      return;  // its open is required
    }
    fbs::FlatBufferBuilder builder;
    const fbs::uoffset_t start = builder.StartTable();
    const fbs::Offset<fbs::Table> table(builder.EndTable(start));
    EXPECT_EQ(decoded(finished(kind_number, builder, table)), either_value(value{})) << kind_number;
  });
  fbs::FlatBufferBuilder builder;
  const auto empty = fb::CreateOpen(builder);
  const auto confirmation = fb::CreateConfirmation(builder, empty);
  EXPECT_EQ(decoded(finished(number(core::record_kind::confirmation), builder, confirmation)),
            either_value(core::saved_confirmation{}));
  builder.Clear();
  const auto peer = fb::CreatePeer(builder);
  const auto session = fb::CreateSession(builder, peer);
  EXPECT_EQ(decoded(finished(number(core::record_kind::session), builder, session)),
            either_value(core::saved_session{}));
  builder.Clear();
  const auto end = fb::CreateEnd(builder, 7, 1);  // only the pid is known
  EXPECT_EQ(decoded(finished(number(core::record_kind::end), builder, end)),
            either_value(core::saved_end{core::peer{7}, 1}));
}

}  // namespace
}  // namespace gpushm::records
