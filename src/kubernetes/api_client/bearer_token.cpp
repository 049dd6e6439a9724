// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_client/bearer_token.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/text/text.hpp"

namespace gpushm::api_client {

namespace {

constexpr const char* operation = "read token";

/// The token becomes part of a header.
bool fits_a_header(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

}  // namespace

bearer_token::file_state bearer_token::stat_file() const {
  struct stat status {};
  if (::stat(file_.c_str(), &status) != 0) {
    return {};
  }
  return {
      status.st_dev, status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_size};
}

std::string bearer_token::current() {
  const std::lock_guard lock(mutex_);
  if (!file_.empty() && (value_.empty() || stat_file() != seen_)) {
    read();
  }
  return value_;
}

bool bearer_token::differs_from(const std::string& used) {
  const std::lock_guard lock(mutex_);
  if (!file_.empty()) {
    read();
  }
  return value_ != used;
}

void bearer_token::read() {
  // The file's state first: a file that changes while it is read is read again.
  const file_state before = stat_file();
  const auto text = base::read_small_file(file_);
  const int number = errno;
  const std::string_view token = text ? base::trim(*text) : std::string_view();
  if (!token.empty() && fits_a_header(token)) {
    value_ = token;
    seen_ = before;
    return;
  }
  if (!value_.empty()) {
    return;
  }
  if (!text) {
    base::throw_errno(number, operation, file_, "open");
  }
  throw error(
      errc::invalid_argument,
      operation,
      file_,
      token.empty() ? "it is empty" : "it contains characters that are not allowed in a token",
      "mount a service account token there");
}

}  // namespace gpushm::api_client
