// SPDX-License-Identifier: Apache-2.0
#include "succession/journal/journal.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpushm/error.hpp"

namespace {

using gpushm::base::unique_fd;
using gpushm::journal::journal;
using gpushm::journal::record_key;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

unique_fd copy_of(const journal& journal) {
  return unique_fd(::fcntl(journal.descriptor(), F_DUPFD_CLOEXEC, 0));
}

using contents = std::map<record_key, std::string>;

contents read_all(const journal& journal) {
  contents result;
  journal.for_each([&](const record_key& key, std::span<const std::byte> value) {
    result.emplace(key, text_of(value));
  });
  EXPECT_EQ(result.size(), journal.size());
  for (const auto& [key, text] : result) {
    const auto found = journal.find(key);
    EXPECT_TRUE(found && text_of(*found) == text);
  }
  return result;
}

std::string error_of_open(unique_fd file) {
  try {
    static_cast<void>(journal::open(std::move(file)));
  } catch (const gpushm::error& why) {
    EXPECT_EQ(why.code(), gpushm::errc::invalid_argument);
    return why.cause();
  }
  return "none";
}

TEST(journal, has_what_was_committed_when_opened_again) {
  journal first = journal::create();
  first.put({1, 2, 3}, bytes_of("one"));
  first.put({1, 2, 4}, bytes_of(""));
  first.commit();
  first.put({1, 2, 3}, bytes_of("not committed"));
  first.put({9, 9, 9}, bytes_of("not committed"));
  first.erase({1, 2, 4});
  EXPECT_EQ(read_all(first), (contents{{{1, 2, 3}, "one"}, {{1, 2, 4}, ""}}));

  journal second = journal::open(copy_of(first));
  EXPECT_EQ(read_all(second), (contents{{{1, 2, 3}, "one"}, {{1, 2, 4}, ""}}));
  second.put({1, 2, 3}, bytes_of("another"));
  second.erase({1, 2, 4});
  second.erase({5, 5, 5});
  second.commit();
  EXPECT_EQ(read_all(journal::open(copy_of(second))), (contents{{{1, 2, 3}, "another"}}));
}

TEST(journal, rolls_back_to_the_last_commit) {
  journal one = journal::create();
  one.put({1, 0, 0}, bytes_of("kept"));
  one.commit();
  const std::uint64_t used = one.used_bytes();
  one.put({1, 0, 0}, bytes_of("dropped"));
  one.put({2, 0, 0}, bytes_of("dropped"));
  one.put({2, 0, 0}, bytes_of("dropped, again"));
  one.erase({1, 0, 0});
  one.roll_back();
  EXPECT_EQ(one.used_bytes(), used);
  EXPECT_EQ(read_all(one), (contents{{{1, 0, 0}, "kept"}}));
  one.put({3, 0, 0}, bytes_of("new"));
  one.commit();
  EXPECT_EQ(read_all(journal::open(copy_of(one))),
            (contents{{{1, 0, 0}, "kept"}, {{3, 0, 0}, "new"}}));
}

journal written_again(const journal& one) {
  journal result = one.emptied();
  one.for_each(
      [&](const record_key& key, std::span<const std::byte> value) { result.put(key, value); });
  result.commit();
  return result;
}

TEST(journal, agrees_with_a_map_after_random_transactions) {
  for (const unsigned seed : {1U, 2U, 3U, 4U, 5U}) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) {
      return std::uniform_int_distribution<unsigned>(0, n - 1)(random);
    };
    // Small enough to begin again at the file's beginning some 30 times.
    journal one = journal::create(seed <= 3 ? 128U << 10U : journal::default_max_bytes);
    contents expected;
    std::uint64_t sequence = 1;
    for (int round = 0; round < 2'000; ++round) {
      contents next = expected;
      for (unsigned i = below(6); i > 0; --i) {
        const record_key key{1 + below(3), below(10), below(10)};
        if (below(3) == 0) {
          one.erase(key);
          next.erase(key);
        } else {
          std::string text(below(200), static_cast<char>('a' + below(26)));
          one.put(key, bytes_of(text));
          next[key] = std::move(text);
        }
      }
      switch (below(10)) {
        case 0:
          one.roll_back();
          break;
        case 1:  // killed before the commit
          one = journal::open(copy_of(one));
          break;
        case 2:
          one.commit();
          expected = std::move(next);
          one = journal::open(copy_of(one));
          break;
        case 3:
          one.commit();
          expected = std::move(next);
          one = written_again(one);
          EXPECT_EQ(one.sequence(), ++sequence);
          break;
        case 4:
          one.begin_rewrite();
          for (const auto& [key, text] : next) {
            one.put(key, bytes_of(text));
          }
          one.end_rewrite();
          one.commit();
          expected = std::move(next);
          break;
        default:
          one.commit();
          expected = std::move(next);
      }
      ASSERT_EQ(one.size(), expected.size());
      if (round % 100 == 0) {
        ASSERT_EQ(read_all(one), expected);
      }
    }
    EXPECT_EQ(read_all(journal::open(copy_of(one))), expected);
  }
}

std::uint64_t memory_of(const journal& journal) {
  struct stat status {};
  EXPECT_EQ(::fstat(journal.descriptor(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

/// Beside the records and 3/8 of them: history, and pages in advance or to be given back.
constexpr std::uint64_t fixed_bytes = std::uint64_t{2'500} << 10U;

TEST(journal, stays_small_when_few_records_change_often) {
  journal one = journal::create();
  const std::string text(1'000, 'x');
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    one.put({1, i % 10, 0}, bytes_of(text));
    one.commit();
    if (i % 100 == 0) {
      ASSERT_LE(memory_of(one), fixed_bytes) << i;
    }
  }
  EXPECT_EQ(one.sequence(), 1U);
  EXPECT_EQ(one.size(), 10U);
  EXPECT_LE(memory_of(journal::open(copy_of(one))), fixed_bytes);
}

// The order that is worst: much that does not change, then little that does.
TEST(journal, has_little_history_of_much_that_does_not_change) {
  journal one = journal::create();
  const std::string large(65'536, 'x');
  constexpr std::uint64_t large_ones = 200;
  for (std::uint64_t i = 0; i < large_ones; ++i) {
    one.put({1, i, 0}, bytes_of(large));
    one.commit();
  }
  constexpr std::uint64_t live = large_ones * 65'600 + std::uint64_t{10} * 1'040;
  const std::string text(1'000, 'y');
  for (std::uint64_t i = 0; i < 40'000; ++i) {
    one.put({2, i % 10, 0}, bytes_of(text));
    one.commit();
    if (i % 100 == 0) {
      ASSERT_LE(memory_of(one), live + live / 8 * 3 + fixed_bytes) << i;
    }
  }
  const journal again = journal::open(copy_of(one));
  EXPECT_EQ(again.size(), large_ones + 10);
  for (std::uint64_t i = 0; i < large_ones; ++i) {
    ASSERT_EQ(text_of(*again.find({1, i, 0})), large) << i;
  }
  for (std::uint64_t i = 0; i < large_ones; ++i) {
    one.erase({1, i, 0});
    one.commit();
  }
  EXPECT_LE(memory_of(one), fixed_bytes);
}

TEST(journal, writes_only_what_differs_when_all_is_put_again) {
  journal one = journal::create();
  const std::string large(65'536, 'x');
  for (std::uint64_t i = 0; i < 20; ++i) {
    one.put({1, i, 0}, bytes_of(large));
  }
  one.commit();
  const std::uint64_t used = one.used_bytes();
  one.put({2, 0, 0}, bytes_of("not committed"));
  one.begin_rewrite();
  for (std::uint64_t i = 0; i < 19; ++i) {
    one.put({1, i, 0}, bytes_of(i == 7 ? "changed" : large));
  }
  one.put({3, 0, 0}, bytes_of("new"));
  one.end_rewrite();
  one.commit();
  EXPECT_LE(one.used_bytes(), used + 200);
  EXPECT_EQ(one.size(), 20U);
  EXPECT_FALSE(one.find({1, 19, 0}));
  EXPECT_FALSE(one.find({2, 0, 0}));
  EXPECT_EQ(text_of(*one.find({1, 7, 0})), "changed");
  EXPECT_EQ(read_all(journal::open(copy_of(one))), read_all(one));
}

TEST(journal, is_followed_by_an_empty_one) {
  journal one = journal::create();
  one.put({1, 1, 0}, bytes_of("a"));
  one.commit();
  one.notes().deaths = 2;
  journal next = one.emptied();
  EXPECT_EQ(next.size(), 0U);
  EXPECT_EQ(next.sequence(), one.sequence() + 1);
  EXPECT_EQ(next.notes().deaths, 2U);
  EXPECT_EQ(one.size(), 1U);
}

TEST(journal, full_one_refuses_changes_and_still_erases) {
  journal one = journal::create(64 * 1024);
  std::uint64_t count = 0;
  const auto fill = [&] {
    for (;; ++count) {
      one.put({1, count, 0}, bytes_of("0123456789"));
      one.commit();
    }
  };
  try {
    fill();
  } catch (const gpushm::error& why) {
    EXPECT_EQ(why.code(), gpushm::errc::out_of_memory);
    EXPECT_EQ(why.cause(), "the journal has reached its limit of 65536 bytes");
  }
  EXPECT_GT(count, 500U);
  EXPECT_EQ(one.size(), count);
  for (std::uint64_t i = 0; i < count; ++i) {
    one.erase({1, i, 0});
    one.commit();
  }
  EXPECT_EQ(one.size(), 0U);
  EXPECT_EQ(read_all(journal::open(copy_of(one))), contents{});
}

TEST(journal, rejects_what_is_not_a_journal) {
  const auto file_of = [](std::string_view text, off_t size) {
    unique_fd file(::memfd_create("test", MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(file.get(), size), 0);
    EXPECT_EQ(::pwrite(file.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return file;
  };
  EXPECT_THAT(error_of_open(file_of("", 0)), testing::EndsWith("it is too short"));
  EXPECT_THAT(error_of_open(file_of("", 8'192)), testing::EndsWith("it does not begin as one"));

  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const unique_fd write_end(ends[1]);
  EXPECT_THAT(error_of_open(unique_fd(ends[0])), testing::EndsWith("it is too short"));
}

TEST(journal, rejects_or_reads_damaged_ones) {
  // Any change of any word gives an error or records, never an access outside of the file.
  journal one = journal::create();
  one.put({1, 2, 3}, bytes_of("first"));
  one.put({4, 5, 6}, bytes_of("second"));
  one.erase({1, 2, 3});
  one.commit();
  std::vector<char> original(static_cast<std::size_t>(one.used_bytes()));
  ASSERT_EQ(::pread(one.descriptor(), original.data(), original.size(), 0),
            static_cast<ssize_t>(original.size()));
  std::mt19937 random(7);
  int rejected = 0;
  for (std::size_t at = 0; at < original.size(); at = at == 48 ? 4'096 : at + 4) {
    for (const std::uint32_t word :
         {0U, 1U, 0x7fffffffU, 0xffffffffU, static_cast<std::uint32_t>(random())}) {
      std::vector<char> changed = original;
      std::memcpy(changed.data() + at, &word, sizeof(word));
      unique_fd file(::memfd_create("test", MFD_CLOEXEC));
      ASSERT_EQ(::write(file.get(), changed.data(), changed.size()),
                static_cast<ssize_t>(changed.size()));
      try {
        read_all(journal::open(std::move(file)));
      } catch (const gpushm::error& why) {
        EXPECT_EQ(why.code(), gpushm::errc::invalid_argument);
        ++rejected;
      }
    }
  }
  EXPECT_GT(rejected, 40);
}

}  // namespace
