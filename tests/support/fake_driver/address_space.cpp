// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_driver/address_space.hpp"

#include <algorithm>
#include <utility>

namespace gpushm::fake {

bool address_space::add(range added) {
  if (overlaps(added.base, added.size_bytes)) {
    return false;
  }
  const cuda::CUdeviceptr base = added.base;
  ranges_.emplace(base, std::move(added));
  return true;
}

range* address_space::find(cuda::CUdeviceptr pointer) {
  auto after = ranges_.upper_bound(pointer);
  if (after == ranges_.begin()) {
    return nullptr;
  }
  range& candidate = std::prev(after)->second;
  return pointer - candidate.base < candidate.size_bytes ? &candidate : nullptr;
}

bool address_space::overlaps(cuda::CUdeviceptr pointer, std::size_t size_bytes) {
  const auto next = ranges_.lower_bound(pointer);
  return find(pointer) != nullptr || (next != ranges_.end() && next->first - pointer < size_bytes);
}

bool address_space::allows(cuda::CUdeviceptr pointer, std::size_t size_bytes, bool write) {
  while (size_bytes > 0) {
    const range* const range = find(pointer);
    if (range == nullptr || !range->readable || (write && !range->writable)) {
      return false;
    }
    const std::size_t step =
        std::min<std::size_t>(size_bytes, range->size_bytes - (pointer - range->base));
    pointer += step;
    size_bytes -= step;
  }
  return true;
}

}  // namespace gpushm::fake
