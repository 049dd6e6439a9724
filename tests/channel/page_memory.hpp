// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

#include "sync/timeline_page.hpp"

namespace gpushm_testing {

/// Zeroed memory of a timeline page, with a table behind it.
class page_memory {
 public:
  explicit page_memory(std::size_t bytes)
      : bytes_(bytes),
        memory_(static_cast<std::byte*>(operator new (bytes, std::align_val_t{64}))) {
    std::fill_n(memory_.get(), bytes, std::byte{0});
  }
  [[nodiscard]] gpushm::sync::timeline_page& page() const {
    return *reinterpret_cast<gpushm::sync::timeline_page*>(memory_.get());
  }
  [[nodiscard]] std::byte* table() const {
    return memory_.get() + gpushm::sync::timeline_page_bytes;
  }
  [[nodiscard]] std::size_t table_bytes() const {
    return bytes_ - gpushm::sync::timeline_page_bytes;
  }

 private:
  struct deleter {
    void operator()(std::byte* memory) const { operator delete (memory, std::align_val_t{64}); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, deleter> memory_;
};

}  // namespace gpushm_testing
