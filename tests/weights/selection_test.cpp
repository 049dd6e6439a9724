// SPDX-License-Identifier: Apache-2.0
// Loads of some tensors of a model, and of slices of them.
#include "tensors/files/selection.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tensors/files/dtype.hpp"
#include "tensors/files/layout.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/weights/model_compare.hpp"
#include "tests/weights/sample_model.hpp"

namespace {

using namespace std::chrono_literals;
using namespace gpushm;
using gpushm_tests::model_comparison;
using gpushm_tests::safetensors_of;
using gpushm_tests::sample_tensor;
using gpushm_tests::write_file;
using testing::AllOf;
using testing::HasSubstr;

// ---- patterns ----

TEST(patterns, match_as_in_python) {
  const auto is_match = [](const char* pattern, const char* name) {
    return tensors::matches(pattern, name);
  };
  EXPECT_TRUE(is_match("*", ""));
  EXPECT_TRUE(is_match("a", "a"));
  EXPECT_FALSE(is_match("a", "ab"));
  EXPECT_FALSE(is_match("ab", "a"));
  EXPECT_TRUE(is_match("model.*.weight", "model.layers/1.mlp.weight"));
  EXPECT_FALSE(is_match("model.*.weight", "model.weight"));
  EXPECT_TRUE(is_match("*a*b*", "xaxxbaxb"));
  EXPECT_FALSE(is_match("*a*b*", "bbba"));
  EXPECT_TRUE(is_match("layers.?.q", "layers.7.q"));
  EXPECT_FALSE(is_match("layers.?.q", "layers.77.q"));
  EXPECT_TRUE(is_match("l.[0-37].q", "l.7.q"));
  EXPECT_TRUE(is_match("l.[0-37].q", "l.2.q"));
  EXPECT_FALSE(is_match("l.[0-37].q", "l.4.q"));
  EXPECT_TRUE(is_match("l.[!0-3]", "l.4"));
  EXPECT_FALSE(is_match("l.[!0-3]", "l.3"));
  EXPECT_TRUE(is_match("[]a]", "]"));
  EXPECT_TRUE(is_match("[a-]", "-"));
  EXPECT_TRUE(is_match("[a", "[a"));
  EXPECT_TRUE(is_match("[]", "[]"));
  EXPECT_TRUE(is_match("a\\*", "a\\b"));
  EXPECT_TRUE(is_match("?", "\xc3\xbc"));
  EXPECT_TRUE(is_match("[\xc3\xa0-\xc3\xbf]", "\xc3\xbc"));
  EXPECT_TRUE(is_match("?\xff?", "\xfe\xff\xc3"));
  EXPECT_FALSE(is_match("\xc3*", "\xc3\xbc"));  // not the half of a character
}

TEST(patterns, of_many_stars_end) {
  std::string pattern;
  for (int i = 0; i != 200; ++i) {
    pattern += "*a";
  }
  EXPECT_FALSE(tensors::matches(pattern + 'b', std::string(4'000, 'a')));
}

// ---- plans ----

/// A matrix of 2^20 rows and terabytes, of which each row is a run.
TEST(plans_of_slices, do_not_grow_with_the_runs) {
  std::vector<tensors::model_file> files(1);
  files[0].data_begin = 100;
  tensors::tensor matrix;
  matrix.name = "m";
  matrix.type = *tensors::find_dtype("U8");
  matrix.shape = {1U << 20U, 3, 1U << 20U};
  matrix.end = std::uint64_t{3} << 40U;
  files[0].contents.all = {matrix};
  load_options wanted;
  wanted.slices = {{"m", 1, 1, 2, 0}, {"m", -1, 3, 3 + 64, 0}};
  EXPECT_FALSE(tensors::apply_selection(files, wanted).empty());
  const tensors::layout plan = tensors::plan(files);
  EXPECT_EQ(plan.tensor_bytes, 64U << 20U);
  EXPECT_EQ(plan.pieces.size(), 16U);
  ASSERT_EQ(plan.strided.size(), 1U);
  EXPECT_EQ(plan.strided[0].row.count, 64U);
  EXPECT_EQ(plan.strided[0].outer.size(), 1U);
  EXPECT_EQ(plan.pieces[0].file_offset, 100U + (1U << 20U) + 3);
  const auto offset_of = [&](std::uint64_t run) { return plan.strided[0].run_at(run * 64).offset; };
  EXPECT_EQ(offset_of((1U << 20U) - 1), ((std::uint64_t{1} << 20U) - 1) * 3 << 20U);
  EXPECT_EQ(offset_of(5), std::uint64_t{5} * 3 << 20U);
  EXPECT_EQ(plan.pieces[15].first_byte, std::uint64_t{15} * (4U << 20U));
}

/// One rank's part of a fused matrix: of queries, keys and values, in this order.
TEST(plans_of_slices, of_several_ranges_read_them_as_contiguous_ones) {
  std::vector<tensors::model_file> files(1);
  tensors::tensor matrix;
  matrix.name = "qkv";
  matrix.type = *tensors::find_dtype("BF16");
  matrix.shape = {6'144, 4'096};
  const std::uint64_t row = 8'192;
  matrix.end = 6'144 * row;
  files[0].contents.all = {matrix};
  load_options wanted;
  wanted.slices = {
      {"qkv", 0, 1'024, 2'048, 0}, {"qkv", 0, 4'352, 4'608, 0}, {"qkv", 0, 5'300, 5'556, 0}};
  EXPECT_FALSE(tensors::apply_selection(files, wanted).empty());
  const auto& narrowed = files[0].contents.all[0];
  EXPECT_EQ(narrowed.shape, (std::vector<std::uint64_t>{1'536, 4'096}));
  EXPECT_EQ(narrowed.begin, 1'024 * row);
  EXPECT_EQ(narrowed.end - narrowed.begin, 1'536 * row);
  const tensors::layout plan = tensors::plan(files);
  ASSERT_EQ(plan.pieces.size(), 3U);  // of 4 MiB
  EXPECT_EQ(plan.pieces[0].strided, tensors::piece::contiguous);
  EXPECT_EQ(plan.pieces[0].file_offset, 1'024 * row);
  EXPECT_EQ(plan.pieces[1].strided, tensors::piece::contiguous);
  EXPECT_EQ(plan.pieces[2].strided, 0U);  // keys and values
  const auto keys = plan.strided[0].run_at(1'024 * row);
  EXPECT_EQ(keys.offset, (4'352 - 1'024) * row);
  EXPECT_EQ(keys.bytes, 256 * row);
  const auto values = plan.strided[0].run_at(1'281 * row);
  EXPECT_EQ(values.offset, (5'301 - 1'024) * row);
  EXPECT_EQ(values.bytes, 255 * row);
}

/// Equal texts for equal selections, so that loads of them need not compare contents.
TEST(selection_texts, have_the_order_of_ranges_and_no_other) {
  const auto text = [](std::vector<tensor_slice> slices) {
    load_options options;
    options.slices = std::move(slices);
    return tensors::selection_text(options);
  };
  const auto ranges = text({{"a", 0, 0, 2, 0}, {"a", 0, 4, 6, 0}, {"b", 1, 0, 1, 2}});
  EXPECT_EQ(ranges, text({{"b", 1, 0, 1, 2}, {"a", 0, 0, 2, 0}, {"a", 0, 4, 6, 0}}));
  EXPECT_EQ(ranges,
            text({{"a", 0, 0, 1, 0}, {"a", 0, 1, 2, 0}, {"b", 1, 0, 1, 2}, {"a", 0, 4, 6, 0}}));
  EXPECT_NE(ranges, text({{"a", 0, 4, 6, 0}, {"a", 0, 0, 2, 0}, {"b", 1, 0, 1, 2}}));
  EXPECT_NE(ranges, text({{"a", 0, 0, 2, 0}, {"a", 1, 4, 6, 0}, {"b", 1, 0, 1, 2}}));
  // What is refused must not be equal to what is not.
  EXPECT_NE(text({{"a", 0, 5, 3, 0}, {"a", 0, 3, 7, 0}}), text({{"a", 0, 5, 7, 0}}));
  EXPECT_NE(text({{"a", 0, 2, 4, 0}, {"a", 0, 4, 3, 0}}), text({{"a", 0, 2, 3, 0}}));
  EXPECT_NE(text({{"a", 0, 0, 2, 0}, {"a", 0, 0, 2, 0}}), text({{"a", 0, 0, 2, 0}}));
  EXPECT_NE(text({{"a", 0, 0, 2, 4}, {"a", 0, 2, 4, 0}}), text({{"a", 0, 0, 4, 0}}));
}

// ---- loads ----

class selections : public testing::Test {
 protected:
  static broker_options options(const std::string& socket) {
    broker_options result;
    result.socket_path = socket;
    return result;
  }
  [[nodiscard]] static load_options wanted(std::vector<std::string> tensors = {},
                                           std::vector<tensor_slice> slices = {}) {
    load_options result;
    result.device = "host";
    result.threads = 2;
    result.timeout = gpushm_testing::scaled_timeout(60s);
    result.tensors = std::move(tensors);
    result.slices = std::move(slices);
    return result;
  }
  segment load(const load_options& options) {
    return load_tensors(client_, "w", {{path_}}, options);
  }
  /// The code and the text of the error that the load throws.
  [[nodiscard]] std::string refusal_of(const load_options& options) {
    try {
      static_cast<void>(load(options));
      return "it has loaded";
    } catch (const error& why) {
      return std::string(to_string(why.code())) + ' ' + why.what();
    }
  }

  gpushm_testing::temp_dir folder_{0755};
  const std::string socket_ = folder_ / "socket";
  const std::string path_ = folder_ / "model.safetensors";
  broker broker_ = broker::start(options(socket_));
  client client_ = client::connect({.socket_path = socket_});
};

/// At least one, in a random order, none of which overlap.
std::vector<std::pair<std::uint64_t, std::uint64_t>> random_ranges(std::mt19937& random,
                                                                   std::uint64_t size) {
  std::set<std::uint64_t> bounds;
  const std::uint64_t count = std::min<std::uint64_t>(size + 1, 2 + random() % 6);
  while (bounds.size() != count) {
    bounds.insert(random() % (size + 1));
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> result;
  for (auto each = bounds.begin(); std::next(each) != bounds.end(); ++each) {
    result.emplace_back(*each, *std::next(each));
  }
  std::shuffle(result.begin(), result.end(), random);
  result.resize(1 + random() % result.size());
  return result;
}

/// Random shapes, types and slices against copies of single elements.
TEST_F(selections, have_the_elements_of_their_slices) {
  std::mt19937 random(38);
  const auto below = [&](std::uint64_t end) { return random() % end; };
  const std::vector<std::pair<const char*, std::uint64_t>> types{
      {"U8", 8}, {"BF16", 16}, {"F32", 32}, {"C64", 64}, {"F4", 4}, {"F6_E2M3", 6}, {"BOOL", 8}};
  for (int round = 0; round != 5; ++round) {
    std::vector<sample_tensor> model;
    load_options how = wanted();
    how.reading = round % 2 == 0 ? reading::cached : reading::direct;
    for (int number = 0; number != 25; ++number) {
      const auto& [type, bits] = types[below(types.size())];
      // Multiples of it are whole bytes.
      const std::uint64_t unit = bits == 4 ? 2 : bits == 6 ? 4 : 1;
      sample_tensor made{"t" + std::to_string(number), type, {}, 0, below(1'000)};
      const std::uint64_t rank = 1 + below(4);
      std::uint64_t elements = 1;
      for (std::uint64_t i = 0; i != rank; ++i) {
        const bool is_last = i + 1 == rank;
        std::uint64_t size = (1 + below(rank == 1 ? 5'000 : 12)) * (is_last ? unit : 1);
        if (below(30) == 0) {
          size = 0;
        } else if (is_last && elements < 200 && below(4) == 0) {
          size *= 997;  // runs that are far from each other
        }
        elements *= size;
        made.shape.push_back(size);
        if (size != 0 && below(2) == 0) {
          const std::uint64_t step = is_last ? unit : 1;
          for (const auto& [begin, end] : random_ranges(random, size / step)) {
            how.slices.push_back(
                {made.name, static_cast<std::int32_t>(i), begin * step, end * step, 0});
          }
        }
      }
      made.bytes = elements * bits / 8;
      model.push_back(made);
    }
    write_file(path_, safetensors_of(model));
    const segment loaded = load(how);
    ASSERT_EQ(model_comparison(loaded, path_, how).all(), "whole") << "round " << round;
    how.verify = verify::full;
    EXPECT_EQ(load(how).generation(), loaded.generation());
    client_.remove("w");
  }
}

/// Runs and tensors that are longer than a step, and than a piece.
TEST_F(selections, of_large_tensors_are_read_in_pieces) {
  write_file(path_,
             safetensors_of({{"wide", "C64", {2, 400'001}, 6'400'016},
                             {"tall", "F32", {300'000, 9}, 10'800'000},
                             {"deep", "F16", {3, 500, 1'100}, 3'300'000},
                             {"two", "BF16", {1'500, 5'000}, 15'000'000},
                             {"left", "U8", {7}, 7}}));
  for (const reading each : {reading::cached, reading::direct}) {
    load_options how = wanted({"[wtd]*"},
                              {{"wide", 1, 1, 390'000, 0},
                               {"tall", 1, 2, 7, 0},
                               {"deep", 0, 2, 3, 0},
                               {"deep", 0, 0, 1, 0},
                               {"deep", 2, 1, 2, 4},
                               {"two", 0, 900, 1'500, 0},
                               {"two", 0, 0, 600, 0}});
    how.reading = each;
    const segment loaded = load(how);
    EXPECT_EQ(tensor_places(loaded).size(), 4U);
    EXPECT_EQ(model_comparison(loaded, path_, how).all(), "whole");
    client_.remove("w");
  }
}

TEST_F(selections, of_several_files_read_those_that_have_them) {
  const std::string other = folder_ / "other.safetensors";
  write_file(path_, safetensors_of({{"a", "U8", {5}, 5}, {"b", "U8", {7}, 7}}));
  write_file(other, safetensors_of({{"c", "U8", {4}, 4}}));
  auto files = tensors::open_model({path_, other});
  EXPECT_FALSE(tensors::apply_selection(files, wanted({"b"})).empty());
  const tensors::layout plan = tensors::plan(files);
  ASSERT_EQ(plan.pieces.size(), 1U);
  EXPECT_EQ(plan.pieces[0].file, 0U);
  EXPECT_EQ(plan.tensor_bytes, 7U);
  const load_options how = wanted({"c"});
  const segment loaded = load_tensors(client_, "w", {{path_, other}}, how);
  EXPECT_EQ(model_comparison(loaded, other).all(), "whole");
  // All files are those of the model, also one that is not read.
  write_file(path_, safetensors_of({{"a", "U8", {5}, 5, 1}, {"b", "U8", {7}, 7}}));
  EXPECT_EQ(load_tensors(client_, "w", {{path_, other}}, how).generation(), loaded.generation());
  write_file(other, safetensors_of({{"c", "U8", {4}, 4, 1}}));
  EXPECT_THROW(static_cast<void>(load_tensors(client_, "w", {{path_, other}}, how)), error);
}

TEST_F(selections, are_part_of_what_a_name_has) {
  write_file(path_, safetensors_of({{"a", "U8", {4, 6}, 24}, {"b", "U8", {6, 4}, 24}}));
  const auto is_refusal = AllOf(HasSubstr("already_exists"), HasSubstr("another selection"));
  const load_options first = wanted({"a", "b"}, {{"a", 1, 0, 1, 2}, {"b", 0, 0, 3, 0}});
  const generation loaded = load(first).generation();
  // The same shapes and places, of other elements.
  EXPECT_THAT(refusal_of(wanted({}, {{"a", 1, 1, 2, 2}, {"b", 0, 0, 3, 0}})), is_refusal);
  EXPECT_THAT(refusal_of(wanted({"a"}, {{"a", 1, 0, 1, 2}})), is_refusal);
  EXPECT_THAT(refusal_of(wanted()), is_refusal);
  // The same selection in other words, or in another order.
  EXPECT_EQ(load(wanted({"b", "a"}, {{"b", 0, 0, 3, 0}, {"a", 1, 0, 1, 2}})).generation(), loaded);
  EXPECT_EQ(load(wanted({"*"}, {{"a", -1, 0, 3, 0}, {"b", 0, 0, 1, 2}})).generation(), loaded);
  load_options replacing = wanted({"a"});
  replacing.replace = true;
  // Ranges in another order, which have the same shape, and one that has the shape of the whole.
  EXPECT_THAT(refusal_of(wanted({}, {{"a", 1, 2, 3, 0}, {"a", 1, 0, 2, 0}, {"b", 0, 0, 3, 0}})),
              is_refusal);
  EXPECT_EQ(
      load(wanted({}, {{"a", 1, 0, 2, 0}, {"a", 1, 2, 3, 0}, {"b", 0, 0, 3, 0}})).generation(),
      loaded);
  {
    const segment other = load(replacing);
    EXPECT_NE(other.generation(), loaded);
    EXPECT_EQ(model_comparison(other, path_, replacing).all(), "whole");
  }
  EXPECT_THAT(refusal_of(first), is_refusal);
  client_.remove("w");
  // A pattern for everything selects nothing less.
  const generation all = load(wanted()).generation();
  EXPECT_EQ(load(wanted({"*"}, {{"a", 0, 0, 4, 0}})).generation(), all);
  EXPECT_THAT(refusal_of(first), is_refusal);
  EXPECT_THAT(refusal_of(wanted({}, {{"a", 0, 2, 4, 0}, {"a", 0, 0, 2, 0}})), is_refusal);
}

/// Other contents of what was not selected are no difference.
TEST_F(selections, are_compared_by_what_they_select) {
  const load_options how = wanted({"a"}, {{"a", 1, 0, 2, 0}});
  std::string content = safetensors_of({{"a", "U8", {4, 6}, 24}, {"b", "U8", {4}, 4}});
  write_file(path_, content);
  const generation loaded = load(how).generation();
  content[content.size() - 1] = static_cast<char>(content.back() + 1);               // of b
  content[content.size() - 5] = static_cast<char>(content[content.size() - 5] + 1);  // a[3][5]
  write_file(path_, content);
  EXPECT_EQ(load(how).generation(), loaded);
  content[content.size() - 28] = static_cast<char>(content[content.size() - 28] + 1);  // a[0][0]
  write_file(path_, content);
  EXPECT_THAT(refusal_of(how), AllOf(HasSubstr("already_exists"), HasSubstr("tensor \"a\"")));
}

TEST_F(selections, that_a_model_does_not_have_are_refused) {
  write_file(path_,
             safetensors_of({{"a", "U8", {4, 6}, 24},
                             {"scalar", "F32", {}, 4},
                             {"none", "U8", {0, 6}, 0},
                             {"four", "F4", {2, 6}, 6},
                             {"odd", "F4", {2, 3}, 3},
                             {"a*", "U8", {2}, 2}}));
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const auto refused = [&](const std::string& selection,
                           std::vector<std::string> tensors,
                           std::vector<tensor_slice> slices = {}) {
    EXPECT_THAT(refusal_of(wanted(std::move(tensors), std::move(slices))),
                AllOf(HasSubstr("invalid_argument"), HasSubstr(selection)));
  };
  refused("no tensor of these files matches \"x.*\"", {"a", "x.*"});
  refused("these files have no tensor \"x\"", {"x"});
  refused("have no tensor \"\"", {""});
  refused("\"a\" twice", {"a", "none", "a"});
  refused("no tensor of these files matches \"[b-z]x\"", {}, {{"[b-z]x", 0, 0, 1, 0}});
  refused("tensor \"a\" of shape [4, 6]: it has 2 dimensions", {}, {{"a", 2, 0, 1, 0}});
  refused("it has 2 dimensions", {}, {{"a", -3, 0, 1, 0}});
  refused("it has 2 dimensions", {}, {{"a", std::numeric_limits<std::int32_t>::min(), 0, 1, 0}});
  refused("tensor \"scalar\" of shape []: it is a scalar", {}, {{"scalar", 0, 0, 1, 0}});
  refused("(dim 1, 2 to 2)", {}, {{"a", 1, 2, 2, 0}});
  refused("the slice is empty", {}, {{"a", 1, 3, 2, 0}});
  refused("it ends behind the last one", {}, {{"a", 1, 3, 7, 0}});
  refused("it ends behind the last one", {}, {{"a", 1, 3, most, 0}});
  refused("(dim 0, 4 to 5 of 4 parts)", {}, {{"a", 0, 4, 5, 4}});
  refused("6 elements cannot be divided into equal parts", {}, {{"a", 1, 3, 4, 4}});
  refused("cannot be divided", {}, {{"a", 1, most - 1, most, most}});
  refused("it ends behind", {}, {{"none", 0, 0, 1, 0}});
  refused("0 elements cannot be divided", {}, {{"none", 0, 0, 1, 2}});
  refused("has the same dimension", {}, {{"a", 1, 0, 1, 0}, {"[a]", -1, 0, 1, 0}});
  refused(R"("[a]" (dim 1, 3 to 4) of tensor "a" of shape [4, 6]: slice "a" (dim 1, 0 to 1))",
          {},
          {{"a", 1, 0, 1, 0}, {"[a]", 1, 3, 4, 0}});
  refused("has the same dimension", {}, {{"a", 1, 0, 1, 0}, {"a", -1, 3, 4, 0}});
  refused("the ranges 0 to 2 and 1 to 3 overlap", {}, {{"a", 1, 1, 3, 0}, {"a", 1, 0, 2, 0}});
  refused("the ranges 0 to 6 and 0 to 6 overlap", {}, {{"a", 1, 0, 1, 1}, {"a", 1, 0, 6, 0}});
  refused("the ranges 0 to 4 and 3 to 5 overlap",
          {},
          {{"a", 1, 0, 2, 0}, {"a", 1, 2, 4, 0}, {"a", 1, 3, 5, 0}});
  refused("the slice is empty", {}, {{"a", 1, 0, 2, 0}, {"a", 1, 2, 2, 0}});
  refused("it ends behind the last one", {}, {{"a", 1, 0, 2, 0}, {"a", 1, 5, 7, 0}});
  refused("elements have 4 bits", {}, {{"four", 1, 1, 4, 0}});
  refused("elements have 4 bits", {}, {{"four", 1, 4, 6, 0}, {"four", 1, 0, 3, 0}});
  refused("elements have 4 bits", {}, {{"four", 1, 3, 6, 0}, {"four", 1, 0, 3, 0}});
  refused("elements have 4 bits", {}, {{"four", 1, 0, 3, 0}});
  refused("elements have 4 bits", {}, {{"odd", 1, 0, 2, 0}});
  refused("elements have 4 bits", {}, {{"odd", 0, 1, 2, 0}});
  EXPECT_FALSE(client_.try_open("w").has_value());
  // A name comes before a pattern, and slices need not be of what is wanted.
  const segment loaded = load(wanted({"a*", "none"}, {{"four", 1, 1, 4, 0}, {"none", 1, 1, 3, 0}}));
  const auto places = tensor_places(loaded);
  ASSERT_EQ(places.size(), 2U);
  EXPECT_EQ(places[0].shape, (std::vector<std::uint64_t>{0, 2}));
  EXPECT_EQ(places[1].name, "a*");
}

/// The ranges of a tensor are bounded, because a plan has all of them.
TEST_F(selections, of_too_many_ranges_are_refused) {
  write_file(path_, safetensors_of({{"a", "U8", {5'000, 2}, 10'000}}));
  std::vector<tensor_slice> slices;
  for (std::uint64_t i = 1'024; i-- != 0;) {
    slices.push_back({"a", 0, 4 * i, 4 * i + 1, 0});
  }
  {
    const load_options how = wanted({}, slices);
    const segment loaded = load(how);
    EXPECT_EQ(model_comparison(loaded, path_, how).all(), "whole");
  }
  client_.remove("w");
  slices.push_back({"a", 0, 4'999, 5'000, 0});
  EXPECT_THAT(refusal_of(wanted({}, slices)),
              AllOf(HasSubstr("invalid_argument"), HasSubstr("more than 1024 ranges")));
}

TEST_F(selections, of_c_are_checked) {
  write_file(path_, safetensors_of({{"a", "U8", {4, 6}, 24}}));
  const auto path = glue::text(path_);
  auto how = glue::sized<gpushm_load_options>();
  how.device = {"host", 4};
  gpushm_segment* loaded = nullptr;
  const auto code = [&] {
    return gpushm_tensors_load(
        client_.handle(), {"w", 1}, &path, 1, &how, GPUSHM_DEFAULT_TIMEOUT, &loaded);
  };
  how.tensor_count = 1;
  EXPECT_EQ(code(), GPUSHM_ERRC_INVALID_ARGUMENT);
  how.tensor_count = 0;
  how.slice_count = 1;
  EXPECT_EQ(code(), GPUSHM_ERRC_INVALID_ARGUMENT);
  std::vector<gpushm_tensor_slice> slices(2, glue::sized<gpushm_tensor_slice>());
  slices[0].name = slices[1].name = {"a", 1};
  slices[0].end = slices[1].end = 2;
  slices[1].dimension = 1;
  how.slices = slices.data();
  how.slice_count = slices.size();
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{12}, slices[0].struct_size + 8}) {
    slices[1].struct_size = wrong;
    EXPECT_EQ(code(), GPUSHM_ERRC_INVALID_ARGUMENT) << wrong;
  }
  slices[1].struct_size = slices[0].struct_size;
  ASSERT_EQ(code(), GPUSHM_OK);
  const segment owned(loaded);
  EXPECT_EQ(tensor_places(owned)[0].shape, (std::vector<std::uint64_t>{2, 2}));
}

}  // namespace
