// SPDX-License-Identifier: Apache-2.0
#include "succession/descriptor_store/stored_descriptors.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace gpushm::keeper {

namespace {

bool are_same_file(int left, int right) noexcept {
  struct stat first {};
  struct stat second {};
  return ::fstat(left, &first) == 0 && ::fstat(right, &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace

stored_descriptors::stored_descriptors(std::size_t numbers) : entries_(numbers) {}

bool stored_descriptors::add(std::string_view name,
                             base::unique_fd descriptor,
                             std::uint64_t message) {
  const auto number = static_cast<std::size_t>(descriptor.get());
  if (number >= entries_.size()) {
    return false;
  }
  index_.emplace(name, descriptor.get());  // may throw: first
  if (number >= end_[0]) {
    end_[0] = number + 1;
  }
  entry& at = entries_[number];
  std::copy(name.begin(), name.end(), &at.name[0]);
  at.message = message;
  at.length.store(static_cast<unsigned char>(name.size()), std::memory_order_release);
  static_cast<void>(descriptor.release());
  return true;
}

base::unique_fd stored_descriptors::forget(int number) noexcept {
  // Before it is closed: a process that continues closes what is open and has no name.
  entries_[static_cast<std::size_t>(number)].length.store(0, std::memory_order_release);
  return base::unique_fd(number);
}

void stored_descriptors::undo(std::uint64_t message,
                              const std::string& name,
                              const std::vector<base::unique_fd>& copies) {
  // The message before has the same number, if the process was killed before it counted that.
  const auto is_copied = [&](int number) {
    return std::any_of(copies.begin(), copies.end(), [&](const base::unique_fd& each) {
      return are_same_file(each.get(), number);
    });
  };
  auto [at, last] = index_.equal_range(name);
  while (at != last) {
    const int number = at->second;
    if (entries_[static_cast<std::size_t>(number)].message == message && is_copied(number)) {
      forget(number).reset();
      at = index_.erase(at);
    } else {
      ++at;
    }
  }
}

std::vector<base::unique_fd> stored_descriptors::remove(const std::string& name) {
  const auto [first, last] = index_.equal_range(name);
  std::vector<base::unique_fd> result;
  result.reserve(static_cast<std::size_t>(std::distance(first, last)));
  std::for_each(first, last, [&](const auto& each) { result.push_back(forget(each.second)); });
  index_.erase(first, last);
  return result;
}

void stored_descriptors::clear() noexcept {
  for (const auto& [name, number] : index_) {
    forget(number).reset();
  }
  index_.clear();
}

void stored_descriptors::read_again() {
  index_.clear();
  for (std::size_t number = 0; number < end_[0]; ++number) {
    const entry& at = entries_[number];
    if (const std::size_t length = at.length.load(std::memory_order_acquire); length != 0) {
      index_.emplace(std::string(&at.name[0], length), static_cast<int>(number));
    }
  }
}

std::vector<stored_descriptor> stored_descriptors::all() const {
  std::vector<stored_descriptor> result;
  result.reserve(index_.size());
  for (const auto& [name, number] : index_) {
    result.push_back({name, number});
  }
  std::sort(result.begin(), result.end(), [](const auto& left, const auto& right) {
    return left.number < right.number;
  });
  return result;
}

}  // namespace gpushm::keeper
