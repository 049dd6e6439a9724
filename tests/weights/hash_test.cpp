// SPDX-License-Identifier: Apache-2.0
#include "tensors/files/hash.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace {

using gpushm::tensors::hash_of;
using gpushm::tensors::hash_variant;
using gpushm::tensors::hash_variants;
using gpushm::tensors::running_hash;

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> result(count);
  std::uint32_t state = 1;
  for (std::byte& each : result) {
    state = state * 1'664'525U + 1'013'904'223U;
    each = static_cast<std::byte>(state >> 24U);
  }
  return result;
}

/// Around the limits at which XXH3 changes its method, and at which its state is full.
std::vector<std::size_t> sizes() {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i != 1'100; ++i) {
    result.push_back(i);
  }
  for (const std::size_t near : {2'048U, 4'096U, 65'536U, 1U << 20U, 4U << 20U}) {
    for (std::size_t size = near - 65; size < near + 66; size += 13) {
      result.push_back(size);
    }
    result.push_back(near);
  }
  return result;
}

TEST(hash, is_the_one_that_the_format_specifies) {
  EXPECT_EQ(hash_of({}), 0x2d06800538d394c2U);  // of the xxHash specification
  EXPECT_EQ(gpushm::tensors::hash_text({}), "99aa06d3014798d86001c324468d497f");
}

TEST(hash, is_equal_for_all_instruction_sets) {
  const auto bytes = some_bytes((4U << 20U) + 100);
  const auto variants = hash_variants();
  ASSERT_EQ(variants.back().name, "baseline");
  for (const std::size_t size : sizes()) {
    // As in files, where no tensor is aligned.
    for (const std::size_t offset : {0U, 1U, 8U}) {
      const std::byte* const first = bytes.data() + offset;
      const std::uint64_t expected = variants.back().kernel.hash(first, size);
      EXPECT_EQ(hash_of({first, size}), expected) << size;
      for (const hash_variant& each : variants) {
        EXPECT_EQ(each.kernel.hash(first, size), expected) << each.name << " of " << size;
      }
    }
  }
}

TEST(hash, does_not_depend_on_the_steps) {
  const auto bytes = some_bytes((4U << 20U) + 3);
  const std::uint64_t expected = hash_of(bytes);
  running_hash hash;
  for (const std::size_t step : {64U, 255U, 256U, 1'024U, 4'097U, 1U << 20U, 5U << 20U}) {
    hash.restart();
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      hash.add({bytes.data() + at, std::min(step, bytes.size() - at)});
    }
    EXPECT_EQ(hash.value(), expected) << step;
    for (const hash_variant& each : hash_variants()) {
      alignas(GPUSHM_HASH_STATE_ALIGNMENT) std::array<std::byte, GPUSHM_HASH_STATE_BYTES> state{};
      each.kernel.begin(state.data());
      for (std::size_t at = 0; at < bytes.size(); at += step) {
        each.kernel.add(state.data(), bytes.data() + at, std::min(step, bytes.size() - at));
      }
      EXPECT_EQ(each.kernel.value(state.data()), expected) << each.name << " in steps of " << step;
    }
  }
  hash.restart();
  EXPECT_EQ(hash.value(), hash_of({}));
}

}  // namespace
