// SPDX-License-Identifier: Apache-2.0
#include "tensors/files/model_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpushm/error.hpp"
#include "tensors/files/layout.hpp"
#include "tensors/loads/copy_lane.hpp"
#include "tensors/loads/piece_reader.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/weights/sample_model.hpp"

namespace {

using namespace gpushm::tensors;
using gpushm::errc;
using gpushm::reading;
using gpushm_tests::safetensors_of;
using gpushm_tests::safetensors_with;
using gpushm_tests::sample_model;
using gpushm_tests::write_file;
using testing::HasSubstr;

class model_files : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) {
    write_file(folder_ / name, content);
    return folder_ / name;
  }
  /// The cause of the error, which must be invalid_file.
  static std::string problem_of(const std::vector<std::string>& paths) {
    try {
      static_cast<void>(open_model(paths));
      return {};
    } catch (const gpushm::error& why) {
      EXPECT_EQ(why.code(), errc::invalid_file) << why.what();
      return why.cause();
    }
  }

  gpushm_testing::temp_dir folder_{0755};
};

TEST_F(model_files, are_read_in_every_way) {
  const auto model = sample_model();
  const std::string one = file("model.safetensors", safetensors_of(model, R"({"format":"pt"})"));
  const auto files = open_model({one});
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].contents.all.size(), model.size());
  const layout planned = plan(files);
  EXPECT_EQ(planned.table.metadata, (text_pairs{{"format", "pt"}}));
  std::uint64_t bytes = 0;
  for (const piece& each : planned.pieces) {
    EXPECT_LE(each.bytes, piece_bytes);
    bytes += each.bytes;
  }
  EXPECT_EQ(bytes, planned.tensor_bytes);
  for (const tensor& each : planned.table.all) {
    EXPECT_EQ(each.begin % tensor_alignment, 0U);
    EXPECT_LE(each.end, planned.table_offset);
  }
  for (const reading how : {reading::automatic, reading::cached, reading::direct}) {
    const piece_reader reader(files, how);
    std::vector<std::byte> segment(planned.table_offset);
    std::vector<std::byte> memory(copy_lane::buffer_bytes + 4'096);
    auto* const buffer = reinterpret_cast<std::byte*>(
        (reinterpret_cast<std::uintptr_t>(memory.data()) + 4'095) / 4'096 * 4'096);
    for (const piece& each : planned.pieces) {
      // Its bytes follow each other in the buffer.
      std::byte* to = buffer;
      const std::byte* from = nullptr;
      for (std::uint64_t at = 0; at != each.bytes;) {
        const std::uint64_t offset = each.file_offset + at;
        const std::uint64_t count = piece_reader::step(offset, each.bytes - at);
        const std::byte* const first = reader.read({each.file, offset, count}, to);
        EXPECT_TRUE(from == nullptr || first == to);
        from = from == nullptr ? first : from;
        to += static_cast<std::uint64_t>(first - to) + count;
        EXPECT_LE(to, buffer + copy_lane::buffer_bytes);
        at += count;
      }
      for (std::size_t i = 0; i != each.parts; ++i) {
        const part& next = planned.parts[each.first_part + i];
        std::copy(from,
                  from + next.bytes,
                  segment.begin() + static_cast<std::ptrdiff_t>(next.segment_offset));
        from += next.bytes;
      }
    }
    for (std::size_t i = 0; i != model.size(); ++i) {
      const auto expected = gpushm_tests::bytes_of(model[i]);
      const tensor& placed = planned.table.all[i];
      ASSERT_EQ(placed.name, model[i].name);
      const auto* const first = segment.data() + placed.begin;
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), first)) << model[i].name;
    }
  }
}

TEST_F(model_files, of_an_index_are_merged) {
  const std::vector<gpushm_tests::sample_tensor> a{{"a", "U8", {5}, 5}};
  const std::vector<gpushm_tests::sample_tensor> b{{"b", "U8", {7}, 7}, {"c", "U8", {1}, 1}};
  file("x1.safetensors", safetensors_of(a));
  file("x2.safetensors", safetensors_of(b));
  const std::string good = R"({"weight_map":{"a":"x1.safetensors","b":"x2.safetensors",)";
  const std::string index =
      file("model.safetensors.index.json", good + R"("c":"x2.safetensors"}})");
  for (const std::string& path : {index, std::string(folder_ / "")}) {
    const auto files = open_model({path});
    EXPECT_EQ(plan(files).table.all.size(), 3U);
    EXPECT_EQ(plan(files).tensor_bytes, 13U);
  }
  EXPECT_THAT(
      problem_of({file("b.index.json", good + R"("c":"x2.safetensors","d":"x1.safetensors"}})")}),
      HasSubstr(R"(no tensor "d")"));
  for (const std::string name : {"../x1.safetensors", "/etc/passwd", ".hidden", ""}) {
    EXPECT_THAT(problem_of({file("c.index.json", R"({"weight_map":{"a":")" + name + R"("}})")}),
                HasSubstr("not the name of a file beside it"));
  }
  EXPECT_THAT(problem_of({folder_ / "x1.safetensors", folder_ / "x1.safetensors"}),
              HasSubstr("is also in"));
  EXPECT_THAT(problem_of({"/"}), HasSubstr("neither"));
}

/// Real checkpoints reuse shards that have more tensors, also others of the same name.
TEST_F(model_files, have_the_tensors_that_the_index_names) {
  const std::vector<gpushm_tests::sample_tensor> first{
      {"a", "U8", {5}, 5}, {"rotary", "U8", {3}, 3}, {"b", "U8", {2}, 2}};
  const std::vector<gpushm_tests::sample_tensor> second{{"a", "U8", {4}, 4}, {"c", "U8", {1}, 1}};
  file("x1.safetensors", safetensors_of(first));
  file("x2.safetensors", safetensors_of(second));
  const std::string index =
      file("a.index.json",
           R"({"weight_map":{"a":"x1.safetensors","b":"x1.safetensors","c":"x2.safetensors"}})");
  const auto files = open_model({index});
  const layout planned = plan(files);
  std::vector<std::string> names;
  for (const tensor& each : planned.table.all) {
    names.push_back(each.name);
  }
  EXPECT_THAT(names, testing::ElementsAre("a", "b", "c"));
  EXPECT_EQ(planned.tensor_bytes, 8U);
  // What is left out is not read into the place of what follows it.
  const piece_reader reader(files, reading::cached);
  std::vector<std::byte> buffer(4'096);
  std::size_t parts = 0;
  for (const piece& each : planned.pieces) {
    const std::byte* from = reader.read({each.file, each.file_offset, each.bytes}, buffer.data());
    for (std::size_t i = 0; i != each.parts; ++i, ++parts) {
      const tensor& tensor = planned.table.all[parts];
      const auto& source = (each.file == 0 ? first : second);
      const auto at = std::find_if(
          source.begin(), source.end(), [&](const auto& one) { return one.name == tensor.name; });
      const auto expected = gpushm_tests::bytes_of(*at);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), from)) << tensor.name;
      from += expected.size();
    }
  }
  EXPECT_EQ(parts, 3U);
  // Another selection of the same files is another model.
  const std::string less =
      file("b.index.json", R"({"weight_map":{"a":"x1.safetensors","c":"x2.safetensors"}})");
  EXPECT_FALSE(plan(open_model({less})).table == planned.table);
  EXPECT_TRUE(plan(open_model({index})).table == planned.table);
}

TEST_F(model_files, that_are_missing_are_named_at_once) {
  file("x1.safetensors", safetensors_of({{"a", "U8", {5}, 5}}));
  const std::string index =
      file("a.index.json",
           R"({"weight_map":{"a":"x1.safetensors","b":"x2.safetensors","c":"x3.safetensors"}})");
  const std::string cause = R"(2 of its 3 files are missing: "x2.safetensors", "x3.safetensors")";
  EXPECT_EQ(problem_of({index}), cause);
  std::filesystem::create_symlink("blobs/x2", folder_ / "x2.safetensors");
  EXPECT_THAT(problem_of({index}), HasSubstr("not what they lead to"));
}

TEST_F(model_files, say_what_they_are_instead) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "Git LFS pointer"},
      {"<!DOCTYPE html>\n<html>", "an HTML page"},
      {"\xef\xbb\xbf\n  <HTML lang=\"en\">", "an HTML page"},
      {"<?xml version=\"1.0\"?><Error>", "an XML document"},
      {"PK\x03\x04" + std::string(100, 'x'), "ZIP archive"},
      {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20", "a pickle"},
      {"GGUF" + std::string("\x03\0\0\0", 4), "GGUF"},
      {"\x89HDF\r\n\x1a\n", "HDF5"},
      {R"({"error":"Repository not found"})", "it is JSON"},
      {"Entry not found", R"(text that begins with "Entry not found")"},
      {"Invalid username or password.\n", R"(text that begins with "Invalid username)"},
      {std::string(4'096, '\0'), "begins with zeros"}};
  for (const auto& [content, cause] : cases) {
    EXPECT_THAT(problem_of({file("bad.safetensors", content)}), HasSubstr(cause));
    if (content.front() != '{') {
      EXPECT_THAT(problem_of({file("bad.index.json", content)}), HasSubstr(cause));
    }
  }
  file("pytorch_model.bin", "PK");
  file("other.safetensors", "");
  EXPECT_THAT(problem_of({folder_ / ""}), HasSubstr(R"("other.safetensors", "pytorch_model.bin")"));
}

/// What helps with one refusal does not help with another.
TEST_F(model_files, are_refused_with_an_advice_that_fits) {
  const auto advice = [](const std::string& path) -> std::string {
    try {
      static_cast<void>(open_model({path}));
    } catch (const gpushm::error& why) {
      return why.next_step();
    }
    return {};
  };
  const std::string whole = safetensors_of({{"a", "U8", {4}, 4}});
  EXPECT_THAT(advice(file("x.safetensors", whole.substr(0, whole.size() - 1))),
              HasSubstr("download the file again"));
  for (const std::string& content : {whole + "x", std::string("PK\x03\x04xxxxxxxx")}) {
    EXPECT_THAT(advice(file("x.safetensors", content)), testing::Not(HasSubstr("download")));
  }
  EXPECT_THAT(advice(file("x.safetensors", "version https://git-lfs.github.com/spec/v1\n")),
              HasSubstr("git lfs pull"));
}

TEST_F(model_files, that_are_damaged_are_refused) {
  const std::string whole = safetensors_of(sample_model());
  const std::string one = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[)";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "it is empty"},
      {std::string("\x01\0\0\0", 4), "shorter than the length"},
      {whole.substr(0, 100), "truncated within its header"},
      {whole.substr(0, whole.size() - 1), "it is truncated"},
      {whole + "x", "belong to no tensor"},
      {safetensors_with(one + "0,4]}}", 4) + "tail", "belong to no tensor"},
      {safetensors_with(one + "1,5]}}", 5), "begins at 1"},
      {safetensors_with(one + "4,0]}}", 4), "begins at 4"},
      {safetensors_with(one + "0,3]}}", 3), "shape and dtype 4"},
      {safetensors_with(one + R"(0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6),
       "begins at 2"},
      {safetensors_with("[1]", 0), "in its header"},
      {std::string(8, '\xFF') + "{}", "not a safetensors file"},
      {std::string("\0\xE1\xF5\x05\0\0\0\0{}", 10), "truncated within its header"}};
  for (const auto& [content, cause] : cases) {
    EXPECT_THAT(problem_of({file("bad.safetensors", content)}), HasSubstr(cause));
  }
  EXPECT_THAT(problem_of({"/dev/zero"}), HasSubstr("regular"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(problem_of({folder_ / "pipe"}), HasSubstr("regular"));
}

TEST_F(model_files, with_any_bytes_are_read_or_refused) {
  std::mt19937 random(3);
  const std::string whole = safetensors_of({{"a", "U8", {5}, 5}, {"b", "F32", {2, 2}, 16}});
  for (int round = 0; round != 3'000; ++round) {
    std::string changed = whole;
    for (auto left = 1 + random() % 3; left != 0; --left) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) {
      changed.resize(random() % changed.size());
    }
    static_cast<void>(problem_of({file("any.safetensors", changed)}));
  }
}

}  // namespace
