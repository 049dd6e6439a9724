// SPDX-License-Identifier: Apache-2.0
#include "base/files/staged_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "base/files/syscall.hpp"

namespace gpushm::base {

staged_file::staged_file(const char* operation, std::string path)
    : operation_(operation),
      path_(std::move(path)),
      own_(path_ + ".tmp.XXXXXX"),
      file_(base::checked(
          operation_, path_, "mkostemp", [this] { return ::mkostemp(own_.data(), O_CLOEXEC); })) {}

staged_file::~staged_file() {
  if (!own_.empty()) {
    ::unlink(own_.c_str());
  }
}

void staged_file::write(std::string_view text) {
  while (!text.empty()) {
    const auto written = base::checked(
        operation_, path_, "write", [&] { return ::write(file_.get(), text.data(), text.size()); });
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void staged_file::commit() {
  base::checked(
      operation_, path_, "rename", [this] { return ::rename(own_.c_str(), path_.c_str()); });
  own_.clear();
}

}  // namespace gpushm::base
