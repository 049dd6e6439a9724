// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/unique_fd.hpp"

namespace gpushm::base {

/// Watches directories for changes (inotify), including directories that are created, removed,
/// renamed or replaced later, and their parents. Not recursive; the target of a symbolic link
/// inside a directory is not watched.
///
/// Create it before reading the directories, and read them again after each change.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class directory_watch {
 public:
  /// A change. The strings are valid during the call that receives them.
  struct change {
    std::string_view directory;  ///< as given; empty: events were lost, all may have changed
    std::string_view name;       ///< an entry of the directory; empty: the directory itself
    /// The directory or one of its parents was created, removed or replaced: its contents may be
    /// unrelated to the previous ones.
    bool whole = false;
    bool created = false;  ///< an entry is new, and may not be completely written yet
    bool is_directory = false;
  };

  /// `operation` is named in errors ("watch CDI directories"). Throws `error`
  /// (too_many_descriptors, system_error) if the kernel allows no more instances.
  explicit directory_watch(std::string operation);

  /// Watches these directories from now on, and no others. Throws as the constructor, if the kernel
  /// allows no more watches.
  void set_directories(std::vector<std::string> directories);

  /// Readable when there may be changes; then call `take`.
  [[nodiscard]] int fd() const noexcept { return inotify_.get(); }
  /// Passes each change since the last call to `use`. Returns false if there was none. Does not
  /// block. Throws as `set_directories`.
  bool take(const std::function<void(const change&)>& use);
  /// Blocks until `fd` is readable (true) or `deadline` (false).
  [[nodiscard]] bool wait_until(std::chrono::steady_clock::time_point deadline) const;

 private:
  /// The changes to report for one watched directory.
  struct interest {
    std::vector<std::string> directories;  ///< as given; all lead to this directory
    /// Entries that lead to a watched directory: the entry and that directory.
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
