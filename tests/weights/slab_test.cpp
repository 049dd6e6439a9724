// SPDX-License-Identifier: Apache-2.0
#include "weights/slab.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "testing/process/temp_dir.hpp"
#include "weights/tensor_json.hpp"

namespace {

using namespace gpushm;
using testing::HasSubstr;

/// Of the error that a call throws; nothing if it throws none.
template <typename Call>
std::optional<errc> code_of(Call&& call) {
  try {
    call();
    return std::nullopt;
  } catch (const error& why) {
    return why.code();
  }
}

class tensors_in_segments : public testing::Test {
 protected:
  static broker_options options(const std::string& socket) {
    broker_options result;
    result.socket_path = socket;
    return result;
  }
  segment create(const std::string& name, std::uint64_t bytes) {
    return client_.create(name, {.size_bytes = bytes, .device = "host"});
  }

  gpushm_testing::temp_dir folder_{0755};
  const std::string socket_ = folder_ / "socket";
  broker broker_ = broker::start(options(socket_));
  client client_ = client::connect({.socket_path = socket_});
  const std::string table_ =
      R"({"__metadata__":{"by":"test"},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
      R"("b":{"dtype":"F32","shape":[2,2],"data_offsets":[256,272],"strides":[1,2]}})";
};

TEST_F(tensors_in_segments, are_published_and_read) {
  segment made = create("w", tensors_size(table_));
  made.write(0, std::as_bytes(std::span("abc", 3)));
  publish_tensors(made, table_);
  client other = client::connect({.socket_path = socket_});
  const segment opened = open_tensors(other, "w");
  EXPECT_EQ(tensor_table(opened), table_);
  EXPECT_EQ(opened.access(), access::read);
}

TEST_F(tensors_in_segments, are_listed) {
  const std::string table =
      R"({"b":{"dtype":"F32","shape":[2,2],"data_offsets":[256,272],"strides":[1,2]},)"
      R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3],"hash":"0123456789abcdef",)"
      R"("framework_dtype":"bits8"},"scalar":{"dtype":"I16","shape":[],"data_offsets":[512,514]},)"
      R"("none":{"dtype":"BF16","shape":[0,9223372036854775807],"data_offsets":[256,256]}})";
  segment made = create("w", tensors_size(table));
  publish_tensors(made, table);
  std::string read;
  for (const tensor_place& each : tensor_places(made)) {
    read += each.name + ' ' + each.dtype + ' ' + each.framework_dtype + ' ' + each.hash + ' ' +
            std::to_string(each.offset_bytes) + ' ' + std::to_string(each.size_bytes) + " [";
    for (const std::uint64_t size : each.shape) {
      read += std::to_string(size) + ' ';
    }
    for (const std::int64_t stride : each.strides) {
      read += '/' + std::to_string(stride);
    }
    read += "]\n";
  }
  EXPECT_EQ(read,
            "a U8 bits8 0123456789abcdef 0 3 [3 ]\n"
            "none BF16   256 0 [0 9223372036854775807 ]\n"
            "b F32   256 16 [2 2 /1/2]\n"
            "scalar I16   512 2 []\n");

  gpushm_tensors_table* raw = nullptr;
  ASSERT_EQ(gpushm_tensors_table_read(made.handle(), &raw), GPUSHM_OK);
  gpushm_tensor one{};
  one.struct_size = sizeof one;
  EXPECT_EQ(gpushm_tensors_table_get(raw, 4, &one), GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_tensors_table_get(raw, 0, nullptr), GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_tensors_table_get(nullptr, 0, &one), GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_tensors_table_count(nullptr), 0U);
  // A program of an older version of the structure.
  one.rank = 77;
  one.struct_size = offsetof(gpushm_tensor, rank);
  EXPECT_EQ(gpushm_tensors_table_get(raw, 3, &one), GPUSHM_OK);
  EXPECT_EQ(one.offset_bytes, 512U);
  EXPECT_EQ(one.rank, 77U);
  gpushm_tensors_table_free(raw);
}

TEST_F(tensors_in_segments, refuse_wrong_tables_and_sizes) {
  segment made = create("w", tensors_size(table_) + 1);
  EXPECT_EQ(code_of([&] { publish_tensors(made, table_); }), errc::size_mismatch);
  for (
      const std::string table :
      {"",
       "[]",
       R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
       R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,4]}})",
       R"({"a":{"dtype":"U8","shape":[3,3],"data_offsets":[0,9],"strides":[3,2]}})",
       R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3],"strides":[-1]}})",
       R"({"a":{"dtype":"U8","shape":[3,9],"data_offsets":[0,3],"strides":[9223372036854775807,9223372036854775807]}})"}) {
    EXPECT_EQ(code_of([&] { static_cast<void>(tensors_size(table)); }), errc::invalid_argument)
        << table;
  }
  made.publish("something else");
  EXPECT_EQ(code_of([&] { static_cast<void>(tensor_table(made)); }), errc::invalid_argument);
  client other = client::connect({.socket_path = socket_});
  EXPECT_EQ(code_of([&] { static_cast<void>(open_tensors(other, "w")); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { static_cast<void>(open_tensors(other, "x")); }), errc::no_such_segment);
}

TEST_F(tensors_in_segments, that_are_not_sealed_are_waited_for) {
  const auto info = weights::new_slab("f", 512, table_.size());
  segment made = create("w", weights::slab_bytes(info));
  made.publish(weights::to_metadata(info));
  client other = client::connect({.socket_path = socket_});
  try {
    static_cast<void>(open_tensors(other, "w", {.timeout = std::chrono::milliseconds(150)}));
    FAIL();
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::timed_out);
    EXPECT_THAT(why.what(), HasSubstr("not complete"));
  }
  EXPECT_THROW(static_cast<void>(tensor_table(made)), error);
  weights::seal(made, info, table_);
  EXPECT_EQ(tensor_table(open_tensors(other, "w")), table_);
}

/// What is behind a seal is visible to the thread that sees it.
TEST_F(tensors_in_segments, are_complete_for_each_thread_that_sees_the_seal) {
  constexpr int rounds = 200;
  for (int round = 0; round != rounds; ++round) {
    weights::model_sources sources{"x.safetensors\n", {weights::identity_from("x")}};
    const auto info =
        weights::new_slab("f", 512, table_.size(), weights::sources_bytes_for(sources));
    segment made = create("w" + std::to_string(round), weights::slab_bytes(info));
    std::jthread sealer([&] {
      std::memcpy(made.mutable_data(), "abc", 3);
      weights::seal(made, info, table_, sources);
    });
    std::optional<std::string> table;
    while (!table) {
      table = weights::table_of(made, info);
    }
    EXPECT_EQ(*table, table_);
    EXPECT_EQ(std::memcmp(made.data(), "abc", 3), 0);
    EXPECT_EQ(weights::sources_of(made, info).names, sources.names);
    EXPECT_EQ(weights::sources_of(made, info).known, sources.known);
  }
}

/// What was written before a version is visible to the thread that reads it.
TEST_F(tensors_in_segments, have_the_version_of_their_contents) {
  const auto info = weights::new_slab("f", 512, table_.size());
  segment made = create("w", weights::slab_bytes(info));
  EXPECT_EQ(weights::contents_version(made, info), 0U);
  weights::seal(made, info, table_);
  EXPECT_EQ(weights::contents_version(made, info), 1U);
  EXPECT_EQ(weights::contents_version(made, weights::new_slab("f", 512, table_.size())), 0U)
      << "of other contents";
  constexpr std::uint64_t last = 200;
  std::jthread writer([&] {
    auto* const words = static_cast<std::uint64_t*>(made.mutable_data());
    for (std::uint64_t version = 2; version <= last; ++version) {
      words[version % 32] = version;
      weights::set_contents_version(made, info, version);
    }
  });
  for (std::uint64_t seen = 1; seen != last;) {
    const std::uint64_t now = weights::contents_version(made, info);
    EXPECT_GE(now, seen);
    seen = now;
  }
  const auto* const words = static_cast<const std::uint64_t*>(made.data());
  for (std::uint64_t version = last - 31; version <= last; ++version) {
    EXPECT_EQ(words[version % 32], version);
  }
  EXPECT_EQ(weights::table_of(made, info), table_);
  EXPECT_EQ(weights::contents_version(made, info), last);
}

TEST_F(tensors_in_segments, remember_the_last_files) {
  const auto info = weights::new_slab("f", 512, table_.size(), weights::sources_bytes_for({}));
  segment made = create("w", weights::slab_bytes(info));
  weights::seal(made, info, table_);
  for (std::size_t i = 0; i != 2 * weights::max_identities; ++i) {
    const auto identity = weights::identity_from(std::to_string(i));
    weights::remember(made, info, identity);
    weights::remember(made, info, identity);
    const auto known = weights::sources_of(made, info).known;
    EXPECT_EQ(known.size(), std::min(i + 1, weights::max_identities));
    EXPECT_EQ(std::count(known.begin(), known.end(), identity), 1);
  }
  EXPECT_EQ(weights::table_of(made, info), table_);
}

TEST_F(tensors_in_segments, with_a_damaged_table_are_refused_by_its_readers) {
  const auto info = weights::new_slab("f", 512, table_.size());
  segment made = create("w", weights::slab_bytes(info));
  weights::seal(made, info, table_);
  const std::array<std::byte, 1> wrong{std::byte{' '}};
  made.write(info.table_offset + table_.size() - 2, wrong);
  made.publish(weights::to_metadata(info));
  client other = client::connect({.socket_path = socket_});
  const segment opened = open_tensors(other, "w");
  EXPECT_EQ(code_of([&] { static_cast<void>(tensor_table(opened)); }), errc::protocol_error);
}

/// Another member of the domain may write anything: an error, or tables within the segment.
TEST_F(tensors_in_segments, of_hostile_members_do_no_harm) {
  std::mt19937 random(4);
  client other = client::connect({.socket_path = socket_});
  for (int round = 0; round != 300; ++round) {
    auto info = weights::new_slab("f", 512, table_.size());
    std::string table = table_;
    for (auto left = random() % 4; left != 0; --left) {
      table[random() % table.size()] = static_cast<char>(random() % 96 + 32);
    }
    // A name of its own: the last lease of the one before may not have ended yet.
    const std::string name = "w" + std::to_string(round);
    segment made = create(name, weights::slab_bytes(info));
    weights::seal(made, info, table);
    std::string metadata = weights::to_metadata(info);
    if (random() % 2 == 0) {
      metadata[random() % metadata.size()] = static_cast<char>(random() % 96 + 32);
    }
    made.publish(metadata);
    try {
      const segment opened = open_tensors(other, name);
      const auto read = weights::read_tensors(tensor_table(opened), weights::dialect::table);
      for (const weights::tensor& each : read.all) {
        ASSERT_LE(each.end, opened.size_bytes());
      }
    } catch (const error& why) {
      ASSERT_TRUE(why.code() == errc::protocol_error || why.code() == errc::invalid_argument ||
                  why.code() == errc::timed_out)
          << why.what();
    }
  }
}

}  // namespace
