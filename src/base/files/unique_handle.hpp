// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace gpushm::base {

/// The owner type for descriptors, driver handles, address ranges and mappings.
/// `Traits` has `using value_type`, `static value_type empty() noexcept` and
/// `static void close(value_type) noexcept`. Moved-from is empty.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
template <typename Traits>
class unique_handle {
 public:
  using value_type = typename Traits::value_type;

  unique_handle() noexcept : value_(Traits::empty()) {}
  explicit unique_handle(value_type value) noexcept : value_(std::move(value)) {}
  unique_handle(unique_handle&& other) noexcept
      : value_(std::exchange(other.value_, Traits::empty())) {}
  unique_handle& operator=(unique_handle&& other) noexcept {
    if (this != &other) {
      reset();
      value_ = std::exchange(other.value_, Traits::empty());
    }
    return *this;
  }
  unique_handle(const unique_handle&) = delete;
  unique_handle& operator=(const unique_handle&) = delete;
  ~unique_handle() { reset(); }

  [[nodiscard]] const value_type& get() const noexcept { return value_; }
  explicit operator bool() const noexcept { return !(value_ == Traits::empty()); }
  /// Releases the value without closing it.
  [[nodiscard]] value_type release() noexcept { return std::exchange(value_, Traits::empty()); }
  void reset() noexcept {
    if (*this) {
      Traits::close(std::exchange(value_, Traits::empty()));
    }
  }

 private:
  value_type value_;
};

}  // namespace gpushm::base
