// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "succession/descriptor_store/shared_memory.hpp"

namespace gpushm::keeper {

/// The caller does not own the descriptor; `name` is valid while it is stored.
struct stored_descriptor {
  std::string_view name;
  int number = -1;
};

/// Descriptors by name; several may have the same. The names are in shared memory, by the
/// descriptor's number: a process that shares this one's descriptor table and was forked from it
/// continues with what is stored there (`read_again`), whatever instruction this one was killed in.
/// Nothing is closed when the object is destroyed.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Only one process at a time may
/// use it.
class stored_descriptors {
 public:
  /// Descriptors with smaller numbers than `numbers` can be stored; 264 bytes of address space
  /// each. Throws `error`: system_error.
  explicit stored_descriptors(std::size_t numbers);

  /// `name`: 1 to 255 bytes; `message`: the number of that by which it came. Returns false, and
  /// closes it, if its number is too large. Throws std::bad_alloc only.
  bool add(std::string_view name, base::unique_fd descriptor, std::uint64_t message = 0);
  /// Closes what has been added of this message, whose descriptors have arrived again as `copies`.
  void undo(std::uint64_t message,
            const std::string& name,
            const std::vector<base::unique_fd>& copies);
  /// Removes all with this name, in constant time for each; the caller closes them.
  [[nodiscard]] std::vector<base::unique_fd> remove(const std::string& name);
  [[nodiscard]] bool contains(const std::string& name) const {
    return index_.find(name) != index_.end();
  }
  void clear() noexcept;
  /// After another process has used it.
  void read_again();

  [[nodiscard]] std::size_t size() const noexcept { return index_.size(); }
  [[nodiscard]] bool empty() const noexcept { return index_.empty(); }
  /// All descriptors by number.
  [[nodiscard]] std::vector<stored_descriptor> all() const;

 private:
  struct entry {
    std::uint64_t message;
    std::atomic<unsigned char> length;  ///< of `name`; 0: there is no such descriptor
    char name[255];                     // NOLINT(modernize-avoid-c-arrays): in shared memory
  };
  [[nodiscard]] base::unique_fd forget(int number) noexcept;

  shared_memory<entry> entries_;
  shared_memory<std::atomic<std::size_t>> end_;  ///< no entry from here on has been used
  std::unordered_multimap<std::string, int> index_;
};

}  // namespace gpushm::keeper
