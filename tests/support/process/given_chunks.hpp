// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "base/files/guarded_fd.hpp"
#include "gpu/memory/backends/backend.hpp"

namespace gpushm_testing {

/// Chunks that a test passes to an import.
class given_chunks final : public gpushm::memory::chunk_source {
 public:
  void add(gpushm::base::guarded_fd file, std::uint64_t size_bytes) {
    left_.push_back({std::move(file), size_bytes});
  }
  [[nodiscard]] std::optional<chunk> next() override {
    if (left_.empty()) {
      return std::nullopt;
    }
    chunk first = std::move(left_.front());
    left_.pop_front();
    return first;
  }

 private:
  std::deque<chunk> left_;
};

}  // namespace gpushm_testing
