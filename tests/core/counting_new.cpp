// SPDX-License-Identifier: Apache-2.0
#include "tests/core/counting_new.hpp"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> in_use{0};
std::atomic<std::size_t> until_failure{0};
std::atomic<bool> keeps_failing{false};
std::atomic<bool> failed{false};
std::atomic<const void*> only_thread{nullptr};

const void* this_thread() noexcept {
  static thread_local const char mark = 0;
  return &mark;
}

bool is_selected() noexcept {
  const void* const only = only_thread.load();
  return only == nullptr || only == this_thread();
}

void* take(std::size_t size) noexcept {
  if (until_failure.load() != 0 && is_selected() && until_failure.fetch_sub(1) == 1) {
    until_failure = keeps_failing ? 1 : 0;
    failed = true;
    return nullptr;
  }
  void* const address = std::malloc(size == 0 ? 1 : size);
  if (address != nullptr) {
    in_use += ::malloc_usable_size(address);
  }
  return address;
}

void deallocate(void* address) noexcept {
  if (address != nullptr) {
    in_use -= ::malloc_usable_size(address);
    std::free(address);
  }
}

}  // namespace

namespace gpushm_testing {

std::size_t heap_bytes_in_use() noexcept {
  return in_use.load();
}
void fail_allocation(std::size_t count) noexcept {
  keeps_failing = false;
  failed = false;
  until_failure = count;
}
void fail_allocations_from(std::size_t count) noexcept {
  keeps_failing = true;
  failed = false;
  until_failure = count;
}
void fail_in_this_thread(bool alone) noexcept {
  only_thread = alone ? this_thread() : nullptr;
}
bool an_allocation_failed() noexcept {
  return failed;
}
no_failures::no_failures() noexcept : left_(until_failure.exchange(0)) {}
no_failures::~no_failures() {
  until_failure = left_;
}

}  // namespace gpushm_testing

void* operator new(std::size_t size) {
  if (void* const address = take(size)) {
    return address;
  }
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) {
  return ::operator new(size);
}
void operator delete(void* address) noexcept {
  deallocate(address);
}
void operator delete[](void* address) noexcept {
  deallocate(address);
}
void operator delete(void* address, std::size_t /*size*/) noexcept {
  deallocate(address);
}
void operator delete[](void* address, std::size_t /*size*/) noexcept {
  deallocate(address);
}
