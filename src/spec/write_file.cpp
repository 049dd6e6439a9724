// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/syscall.hpp"
#include "base/unique_fd.hpp"
#include "spec/write.hpp"

namespace gpushm::cdi {

namespace {

constexpr const char* operation = "write CDI document";

/// A file beside the one to be, until it has its name. Engines read neither ".tmp" nor half of a
/// file.
class file_beside {
 public:
  explicit file_beside(const std::string& path) : path_(path), own_(path + ".XXXXXX.tmp") {
    constexpr int suffix = 4;
    file_ = base::unique_fd(base::checked(operation, path, "mkostemps", [this] {
      return ::mkostemps(own_.data(), suffix, O_CLOEXEC);
    }));
  }
  file_beside(const file_beside&) = delete;
  file_beside& operator=(const file_beside&) = delete;
  ~file_beside() {
    if (!own_.empty()) {
      ::unlink(own_.c_str());
    }
  }

  void write(std::string_view text) {
    while (!text.empty()) {
      const auto written = base::checked(operation, path_, "write", [&] {
        return ::write(file_.get(), text.data(), text.size());
      });
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  void commit() {
    constexpr mode_t mode = 0644;
    base::checked(operation, path_, "fchmod", [this] { return ::fchmod(file_.get(), mode); });
    // A power cut must not leave an empty file under the name.
    base::checked(operation, path_, "fsync", [this] { return ::fsync(file_.get()); });
    base::checked(
        operation, path_, "rename", [this] { return ::rename(own_.c_str(), path_.c_str()); });
    own_.clear();
  }

 private:
  std::string path_;
  std::string own_;
  base::unique_fd file_;
};

void make_directory_of(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code failed;
  if (directory.empty() || std::filesystem::is_directory(directory, failed)) {
    return;
  }
  std::string made;
  for (const auto& part : directory) {
    made = made.empty() ? part.string() : (std::filesystem::path(made) / part).string();
    constexpr mode_t mode = 0755;
    base::checked(
        operation, path, "mkdir", [&made] { return ::mkdir(made.c_str(), mode); }, {EEXIST});
  }
}

}  // namespace

void write_file(const document& content, const std::string& path, format as) {
  const std::string text = to_text(content, as);
  make_directory_of(path);
  file_beside file(path);
  file.write(text);
  file.commit();
}

}  // namespace gpushm::cdi
