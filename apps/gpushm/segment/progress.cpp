// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/progress.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "apps/support/duration.hpp"
#include "base/text/size_text.hpp"

namespace gpushm::cli {

using clock = std::chrono::steady_clock;

progress::progress(std::string activity, std::uint64_t total_bytes)
    : what_(std::move(activity)),
      total_bytes_(total_bytes),
      start_(clock::now()),
      next_(start_ + std::chrono::seconds(1)),
      terminal_(::isatty(STDERR_FILENO) == 1) {}

progress::~progress() {
  if (drawn_) {
    std::fputs("\r\x1b[K", stderr);
  }
}

void progress::update(std::uint64_t done_bytes) {
  const auto now = clock::now();
  if (!terminal_ || now < next_) {
    return;
  }
  next_ = now + std::chrono::milliseconds(100);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string line = progress_line(what_, done_bytes, total_bytes_, seconds);
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  drawn_ = true;
}

std::string progress_line(const std::string& activity,
                          std::uint64_t done_bytes,
                          std::uint64_t total_bytes,
                          double seconds) {
  constexpr std::size_t bar_columns = 24;
  const double part =
      total_bytes == 0
          ? 1.0
          : std::min(1.0, static_cast<double>(done_bytes) / static_cast<double>(total_bytes));
  const auto full = static_cast<std::size_t>(part * static_cast<double>(bar_columns));
  const double rate = static_cast<double>(done_bytes) / std::max(seconds, 1e-9);
  const double left =
      rate <= 0 ? 0 : static_cast<double>(total_bytes - std::min(done_bytes, total_bytes)) / rate;
  return fmt::format("{} [{}{}] {}%  {}/s, {} s left",
                     activity,
                     std::string(full, '#'),
                     std::string(bar_columns - full, '.'),
                     static_cast<int>(part * 100),
                     base::size_text(static_cast<std::uint64_t>(rate)),
                     static_cast<std::uint64_t>(left));
}

}  // namespace gpushm::cli
