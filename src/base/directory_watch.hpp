// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"

namespace gpushm::base {

/// Notices what happens in some directories (inotify), also in those that are made, removed,
/// renamed or replaced later, with whatever leads to them. No recursion; what a symbolic link
/// inside a directory points to is not watched.
///
/// Make it before the directories are read, and read them again after each change.
///
/// Distinct objects: safe. Shared objects: unsafe.
class directory_watch {
 public:
  /// What happened. The texts are valid during the call that gets them.
  struct change {
    std::string_view directory;  ///< as it was given; empty: events were lost, look everywhere
    std::string_view name;       ///< an entry of it; empty: the directory itself
    /// The directory was made, removed or replaced, or something on the way to it: what is in it
    /// now may have nothing to do with what was.
    bool whole = false;
    bool created = false;  ///< an entry is new, and may still be being written
    bool is_directory = false;
  };

  /// `operation` goes into errors ("watch CDI directories"). Throws `error` (too_many_descriptors,
  /// system_error) when the kernel gives no more instances.
  explicit directory_watch(std::string operation);

  /// Watches these from now on, and no others. Throws as the constructor, when the kernel gives no
  /// more watches.
  void set_directories(std::vector<std::string> directories);

  /// Readable when there may be changes: then call `take`.
  [[nodiscard]] int fd() const noexcept { return inotify_.get(); }
  /// Hands each change since the last call to `each`. False when there was none. Does not block.
  /// Throws as `set_directories`.
  bool take(const std::function<void(const change&)>& each);
  /// Blocks until `fd` is readable (true) or `deadline` (false).
  [[nodiscard]] bool wait_until(std::chrono::steady_clock::time_point deadline) const;

 private:
  /// What counts in one watched directory.
  struct interest {
    std::vector<std::string> directories;  ///< as given, that this one is
    /// Entries that lead to a directory: the entry and where it leads to.
    std::vector<std::pair<std::string, std::string>> leads;
  };
  void watch_all();
  [[nodiscard]] interest* watch(const std::string& path,
                                std::uint32_t events,
                                std::map<int, interest>& now) const;

  std::string operation_;
  unique_fd inotify_;
  std::vector<std::string> directories_;
  std::map<int, interest> watched_;
};

}  // namespace gpushm::base
