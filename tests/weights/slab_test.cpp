// SPDX-License-Identifier: Apache-2.0
#include "tensors/loads/slab.hpp"

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
#include "tensors/files/tensor_json.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace gpushm;
using testing::HasSubstr;

/// Of the error that a call throws; nullopt if it throws none.
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
  const tensors::table_words words_ =
      tensors::encode_table(tensors::read_tensors(table_, tensors::dialect::table));
  const std::uint64_t table_bytes_ = tensors::bytes_in(words_).size();

  tensors::slab_info new_slab(std::uint64_t sources_bytes = 0) const {
    return tensors::new_slab("f", 512, table_bytes_, sources_bytes);
  }
  /// Of a segment that is sealed.
  static tensors::table_words words_of(const segment& segment, const tensors::slab_info& info) {
    return tensors::table_of(segment, info).value().words();
  }
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

TEST_F(tensors_in_segments, that_is_suspended_is_not_read) {
  segment made = create("w", tensors_size(table_));
  publish_tensors(made, table_);
  client other = client::connect({.socket_path = socket_});
  segment opened = open_tensors(other, "w");
  opened.suspend();
  try {
    static_cast<void>(open_tensors(other, "w"));
    ADD_FAILURE() << "no error";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::invalid_argument);
    EXPECT_STREQ(why.what(),
                 "open \"w\": this process has suspended the segment: no memory is mapped at its "
                 "address (resume it first)");
  }
  opened.resume();
  EXPECT_EQ(tensor_table(open_tensors(other, "w")), table_);
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
  std::size_t index = 77;
  EXPECT_FALSE(gpushm_tensors_table_find(raw, {"c", 1}, &index));
  EXPECT_FALSE(gpushm_tensors_table_find(nullptr, {"a", 1}, &index));
  EXPECT_FALSE(gpushm_tensors_table_find(raw, {nullptr, 1}, &index));
  EXPECT_EQ(index, 77U);
  EXPECT_TRUE(gpushm_tensors_table_find(raw, {"scalar", 6}, nullptr));
  EXPECT_TRUE(gpushm_tensors_table_find(raw, {"scalar", 6}, &index));
  EXPECT_EQ(index, 3U);
  gpushm_string text{};
  EXPECT_EQ(gpushm_tensors_table_metadata_count(raw), 0U);
  EXPECT_EQ(gpushm_tensors_table_metadata_count(nullptr), 0U);
  EXPECT_EQ(gpushm_tensors_table_metadata_get(raw, 0, &text, &text), GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_tensors_table_metadata_get(nullptr, 0, &text, &text),
            GPUSHM_ERRC_INVALID_ARGUMENT);
  // A program of an older version of the structure.
  one.rank = 77;
  one.struct_size = offsetof(gpushm_tensor, rank);
  EXPECT_EQ(gpushm_tensors_table_get(raw, 3, &one), GPUSHM_OK);
  EXPECT_EQ(one.offset_bytes, 512U);
  EXPECT_EQ(one.rank, 77U);
  gpushm_tensors_table_free(raw);
}

TEST_F(tensors_in_segments, are_found_by_name) {
  segment made = create("w", tensors_size(table_));
  publish_tensors(made, table_);
  const tensor_index index(made);
  ASSERT_EQ(index.size(), 2U);
  const auto entry = index.find("b");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->name, "b");
  EXPECT_EQ(entry->dtype, "F32");
  EXPECT_EQ(entry->offset_bytes, 256U);
  EXPECT_EQ(entry->size_bytes, 16U);
  EXPECT_TRUE(std::equal(
      entry->strides.begin(), entry->strides.end(), std::vector<std::int64_t>{1, 2}.begin()));
  EXPECT_FALSE(index.find("c"));
  EXPECT_FALSE(index.find(""));
  EXPECT_EQ(code_of([&] { static_cast<void>(index[2]); }), errc::invalid_argument);
  ASSERT_EQ(index.metadata().size(), 1U);
  EXPECT_EQ(index.metadata()[0].first, "by");
  EXPECT_EQ(index.metadata()[0].second, "test");
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
  const auto info = new_slab();
  segment made = create("w", tensors::slab_bytes(info));
  made.publish(tensors::to_metadata(info));
  client other = client::connect({.socket_path = socket_});
  try {
    static_cast<void>(open_tensors(other, "w", {.timeout = std::chrono::milliseconds(150)}));
    FAIL();
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::timed_out);
    EXPECT_THAT(why.what(), HasSubstr("not complete"));
  }
  EXPECT_THROW(static_cast<void>(tensor_table(made)), error);
  tensors::seal(made, info, words_);
  EXPECT_EQ(tensor_table(open_tensors(other, "w")), table_);
}

/// What is behind a seal is visible to the thread that sees it.
TEST_F(tensors_in_segments, are_complete_for_each_thread_that_sees_the_seal) {
  constexpr int rounds = 200;
  for (int round = 0; round != rounds; ++round) {
    tensors::model_sources sources{"x.safetensors\n", {tensors::identity_from("x")}};
    const auto info = new_slab(tensors::sources_bytes_for(sources));
    segment made = create("w" + std::to_string(round), tensors::slab_bytes(info));
    std::jthread sealer([&] {
      std::memcpy(made.mutable_data(), "abc", 3);
      tensors::seal(made, info, words_, sources);
    });
    std::optional<tensors::tensor_table> table;
    while (!table) {
      table = tensors::table_of(made, info);
    }
    EXPECT_EQ(table->words(), words_);
    EXPECT_EQ(std::memcmp(made.data(), "abc", 3), 0);
    EXPECT_EQ(tensors::sources_of(made, info).names, sources.names);
    EXPECT_EQ(tensors::sources_of(made, info).known, sources.known);
  }
}

/// What was written before a version is visible to the thread that reads it.
TEST_F(tensors_in_segments, have_the_version_of_their_contents) {
  const auto info = new_slab();
  segment made = create("w", tensors::slab_bytes(info));
  EXPECT_EQ(tensors::contents_version(made, info), 0U);
  tensors::seal(made, info, words_);
  EXPECT_EQ(tensors::contents_version(made, info), 1U);
  EXPECT_EQ(tensors::contents_version(made, new_slab()), 0U) << "of other contents";
  constexpr std::uint64_t last = 200;
  std::jthread writer([&] {
    auto* const words = static_cast<std::uint64_t*>(made.mutable_data());
    for (std::uint64_t version = 2; version <= last; ++version) {
      words[version % 32] = version;
      tensors::set_contents_version(made, info, version);
    }
  });
  for (std::uint64_t seen = 1; seen != last;) {
    const std::uint64_t now = tensors::contents_version(made, info);
    EXPECT_GE(now, seen);
    seen = now;
  }
  const auto* const words = static_cast<const std::uint64_t*>(made.data());
  for (std::uint64_t version = last - 31; version <= last; ++version) {
    EXPECT_EQ(words[version % 32], version);
  }
  EXPECT_EQ(words_of(made, info), words_);
  EXPECT_EQ(tensors::contents_version(made, info), last);
}

TEST_F(tensors_in_segments, remember_the_last_files) {
  const auto info = new_slab(tensors::sources_bytes_for({}));
  segment made = create("w", tensors::slab_bytes(info));
  tensors::seal(made, info, words_);
  for (std::size_t i = 0; i != 2 * tensors::max_identities; ++i) {
    const auto identity = tensors::identity_from(std::to_string(i));
    tensors::remember(made, info, identity);
    tensors::remember(made, info, identity);
    const auto known = tensors::sources_of(made, info).known;
    EXPECT_EQ(known.size(), std::min(i + 1, tensors::max_identities));
    EXPECT_EQ(std::count(known.begin(), known.end(), identity), 1);
  }
  EXPECT_EQ(words_of(made, info), words_);
}

TEST_F(tensors_in_segments, with_a_damaged_table_are_refused_by_its_readers) {
  const auto info = new_slab();
  segment made = create("w", tensors::slab_bytes(info));
  tensors::seal(made, info, words_);
  const std::array<std::byte, 1> wrong{std::byte{' '}};
  made.write(info.table_offset + table_bytes_ - 2, wrong);
  made.publish(tensors::to_metadata(info));
  client other = client::connect({.socket_path = socket_});
  const segment opened = open_tensors(other, "w");
  EXPECT_EQ(code_of([&] { static_cast<void>(tensor_table(opened)); }), errc::protocol_error);
}

/// A seal, with the right hash, over bytes that are not a table.
TEST_F(tensors_in_segments, with_a_table_that_is_not_valid_are_refused_by_its_readers) {
  const auto info = new_slab();
  segment made = create("w", tensors::slab_bytes(info));
  tensors::table_words words = words_;
  words[4] = 1'000;  // where "a" begins
  tensors::seal(made, info, words);
  made.publish(tensors::to_metadata(info));
  try {
    static_cast<void>(tensor_index(made));
    FAIL();
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::protocol_error);
    EXPECT_EQ(why.cause(),
              R"(its table of tensors is not valid: tensor "a" is not within the segment)");
  }
}

TEST_F(tensors_in_segments, of_another_version_are_refused) {
  const auto info = new_slab();
  segment made = create("w", tensors::slab_bytes(info));
  tensors::seal(made, info, words_);
  std::string metadata = tensors::to_metadata(info);
  metadata.replace(metadata.find("gpushm-tensors/2"), 16, "gpushm-tensors/1");
  made.publish(metadata);
  client other = client::connect({.socket_path = socket_});
  try {
    static_cast<void>(open_tensors(other, "w"));
    FAIL();
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::unsupported_version);
    EXPECT_STREQ(
        why.what(),
        "open tensors \"w\": its tensors have the format \"gpushm-tensors/1\", and this "
        "library reads \"gpushm-tensors/2\" (remove it (gpushm rm), and load or publish it "
        "again with the version of gpushm that reads it)");
  }
  EXPECT_EQ(code_of([&] { static_cast<void>(tensor_table(made)); }), errc::unsupported_version);
}

/// Another member of the domain may write anything: an error, or tables within the segment.
TEST_F(tensors_in_segments, of_hostile_members_do_no_harm) {
  std::mt19937 random(4);
  client other = client::connect({.socket_path = socket_});
  std::size_t accepted = 0;
  for (int round = 0; round != 300; ++round) {
    auto info = new_slab();
    tensors::table_words words = words_;
    for (auto left = random() % 3; left != 0; --left) {
      reinterpret_cast<char*>(words.data())[random() % table_bytes_] = static_cast<char>(random());
    }
    // A name of its own: the last lease of the one before may not have ended yet.
    const std::string name = "w" + std::to_string(round);
    segment made = create(name, tensors::slab_bytes(info));
    tensors::seal(made, info, words);
    std::string metadata = tensors::to_metadata(info);
    if (random() % 2 == 0) {
      metadata[random() % metadata.size()] = static_cast<char>(random() % 96 + 32);
    }
    made.publish(metadata);
    try {
      const segment opened = open_tensors(other, name);
      for (const tensor_place& each : tensor_places(opened)) {
        ASSERT_LE(each.offset_bytes, opened.size_bytes());
        ASSERT_LE(each.size_bytes, opened.size_bytes() - each.offset_bytes);
      }
      ++accepted;
    } catch (const error& why) {
      ASSERT_TRUE(why.code() == errc::protocol_error || why.code() == errc::invalid_argument ||
                  why.code() == errc::timed_out || why.code() == errc::unsupported_version)
          << why.what();
    }
  }
  EXPECT_GT(accepted, 30U);
}

}  // namespace
