// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/demo/pattern.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gpushm::cli {

namespace {

constexpr std::size_t block_bytes = 16U << 20U;
constexpr std::size_t word_bytes = sizeof(std::uint64_t);

// The finalizer of splitmix64: every bit of the input affects every bit of the output.
constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ value >> 30U) * 0xBF58476D1CE4E5B9U;
  value = (value ^ value >> 27U) * 0x94D049BB133111EBU;
  return value ^ value >> 31U;
}

constexpr std::uint64_t word_at(std::uint64_t seed, std::uint64_t index) {
  return mix(seed + (index + 1) * 0x9E3779B97F4A7C15U);
}

using block_action = std::function<void(std::uint64_t offset, std::span<std::byte> buffer)>;

// Calls `action` once for each block of a segment of `total` bytes, from several threads, each with
// its own buffer. Rethrows the first exception.
void for_blocks(std::uint64_t total, const block_action& action) {
  const std::uint64_t blocks = (total + block_bytes - 1) / block_bytes;
  const std::uint64_t workers =
      std::min<std::uint64_t>(blocks, std::clamp(std::thread::hardware_concurrency(), 2U, 8U));
  std::atomic<std::uint64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      std::vector<std::byte> buffer(
          static_cast<std::size_t>(std::min<std::uint64_t>(block_bytes, total)));
      for (std::uint64_t index = next++; index < blocks; index = next++) {
        const std::uint64_t offset = index * block_bytes;
        const std::uint64_t size = std::min<std::uint64_t>(block_bytes, total - offset);
        action(offset, std::span(buffer.data(), static_cast<std::size_t>(size)));
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = failure ? failure : std::current_exception();
      next = blocks;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 0; i < workers; ++i) {
      threads.emplace_back(work);
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace

void make_pattern(std::uint64_t seed, std::uint64_t offset_bytes, std::span<std::byte> block) {
  std::uint64_t index = offset_bytes / word_bytes;
  std::size_t i = 0;
  for (; i + word_bytes <= block.size(); i += word_bytes) {
    const std::uint64_t word = word_at(seed, index++);
    std::memcpy(block.data() + i, &word, word_bytes);
  }
  const std::uint64_t last = word_at(seed, index);
  std::memcpy(block.data() + i, &last, block.size() - i);
}

check_result check_pattern(std::uint64_t seed,
                           std::uint64_t offset_bytes,
                           std::span<const std::byte> block) {
  check_result result{block.size(), 0, 0};
  const auto count_wrong = [&](std::size_t offset, std::uint64_t expected, std::size_t size) {
    std::array<std::byte, word_bytes> bytes{};
    std::memcpy(bytes.data(), &expected, word_bytes);
    for (std::size_t k = 0; k < size; ++k) {
      if (block[offset + k] != bytes.at(k)) {
        if (result.wrong_bytes == 0) {
          result.first_wrong_offset = offset_bytes + offset + k;
        }
        ++result.wrong_bytes;
      }
    }
  };
  std::uint64_t index = offset_bytes / word_bytes;
  std::size_t i = 0;
  for (; i + word_bytes <= block.size(); i += word_bytes) {
    const std::uint64_t expected = word_at(seed, index++);
    std::uint64_t actual = 0;
    std::memcpy(&actual, block.data() + i, word_bytes);
    if (actual != expected) {
      count_wrong(i, expected, word_bytes);
    }
  }
  count_wrong(i, word_at(seed, index), block.size() - i);
  return result;
}

void fill_segment(segment& target, std::uint64_t seed) {
  std::mutex writing;  // only one thread at a time may write a segment
  for_blocks(target.size_bytes(), [&](std::uint64_t offset, std::span<std::byte> buffer) {
    make_pattern(seed, offset, buffer);
    const std::lock_guard lock(writing);
    target.write(offset, buffer);
  });
}

check_result check_segment(const segment& source, std::uint64_t seed) {
  std::mutex mutex;
  check_result check;
  for_blocks(source.size_bytes(), [&](std::uint64_t offset, std::span<std::byte> buffer) {
    source.read(offset, buffer);
    const check_result result = check_pattern(seed, offset, buffer);
    const std::lock_guard lock(mutex);
    check.checked_bytes += result.checked_bytes;
    if (result.wrong_bytes != 0) {
      check.first_wrong_offset =
          check.wrong_bytes == 0 ? result.first_wrong_offset
                                 : std::min(check.first_wrong_offset, result.first_wrong_offset);
      check.wrong_bytes += result.wrong_bytes;
    }
  });
  return check;
}

void corrupt_segment(segment& target) {
  const std::uint64_t middle = target.size_bytes() / 2;
  std::array<std::byte, 1> byte{};
  target.read(middle, byte);
  byte[0] ^= std::byte{1};
  target.write(middle, byte);
}

}  // namespace gpushm::cli
