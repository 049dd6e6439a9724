// SPDX-License-Identifier: Apache-2.0
#include "broker/state_table_file.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <string_view>

#include "base/syscall.hpp"
#include "broker/reopen.hpp"

namespace gpushm::broker_detail {

namespace {

// Clients read the futex word at `owner_futex`: glibc stores it first (nptl, __pthread_mutex_s).
static_assert(sizeof(pthread_mutex_t) <= 64);

pthread_mutex_t* mutex_in(wire::state_table_header* header) {
  return reinterpret_cast<pthread_mutex_t*>(&header->owner_futex);
}

void check_pthread(int result, std::string_view call) {
  if (result != 0) {
    base::throw_errno(result, "serve", {}, call);
  }
}

wire::slot_state stored(std::optional<segment_state> state) {
  if (!state) {
    return wire::slot_state::free;
  }
  switch (*state) {
    case segment_state::live:
      return wire::slot_state::live;
    case segment_state::exporter_gone:
      return wire::slot_state::exporter_gone;
    case segment_state::removed:
    case segment_state::broker_gone:
    case segment_state::unknown:
      break;
  }
  return wire::slot_state::removed;
}

}  // namespace

state_table_file::state_table_file(std::uint32_t slots, const gpushm::epoch& epoch, bool resumable)
    : slots_(slots), epoch_(epoch) {
  const std::size_t bytes = wire::state_table_bytes(slots);
  fd_ = base::guarded_fd::open([] {
    return base::checked("serve", {}, "memfd_create", [] {
      return ::memfd_create("gpushm-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    });
  });
  const auto size = static_cast<off_t>(bytes);
  base::checked("serve", {}, "ftruncate", [&] { return ::ftruncate(fd_.get(), size); });
  base::checked("serve", {}, "fallocate", [&] { return ::fallocate(fd_.get(), 0, 0, size); });
  map(bytes);
  // With FUTURE_WRITE no process, not even this one, can create a writable mapping from here on.
  const int against_writing = resumable ? 0 : F_SEAL_FUTURE_WRITE;
  base::checked("serve", {}, "fcntl(F_ADD_SEALS)", [&] {
    return ::fcntl(
        fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | against_writing);
  });
  if (resumable) {
    base::checked("serve", {}, "fchmod", [&] { return ::fchmod(fd_.get(), 0600); });
    open_for_members();
  }

  wire::state_table_header* table = header();
  table->magic = wire::state_table_magic;
  table->version = wire::state_table_version;
  table->slots = slots;
  table->epoch = epoch;
  table->resumable = resumable ? 1 : 0;

  pthread_mutexattr_t attributes;
  check_pthread(::pthread_mutexattr_init(&attributes), "pthread_mutexattr_init");
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int result = ::pthread_mutex_init(mutex_in(table), &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  check_pthread(result, "pthread_mutex_init");
}

state_table_file::state_table_file(base::guarded_fd file,
                                   std::uint32_t slots,
                                   const gpushm::epoch& epoch)
    : slots_(slots), epoch_(epoch), fd_(std::move(file)) {
  const std::size_t bytes = wire::state_table_bytes(slots);
  struct stat found {};
  const int seals = ::fcntl(fd_.get(), F_GET_SEALS);
  const bool can_map = ::fstat(fd_.get(), &found) == 0 && seals != -1 &&
                       (seals & F_SEAL_SHRINK) != 0 &&
                       static_cast<std::size_t>(found.st_size) >= bytes;
  if (can_map) {
    map(bytes);
  }
  if (!can_map || !view()) {
    throw error(errc::invalid_argument,
                "serve",
                {},
                "the inherited state table is not that of this domain",
                "start the broker without it; its clients connect again");
  }
  open_for_members();
}

void state_table_file::map(std::size_t bytes) {
  mapping_ = base::map_file("serve", fd_.get(), bytes, true);
  // No child inherits the mapping. A child never touches its copy of this object.
  base::checked("serve", {}, "madvise", [&] {
    return ::madvise(mapping_.get().address, mapping_.get().size_bytes, MADV_DONTFORK);
  });
}

void state_table_file::open_for_members() {
  for_members_ = reopen_for_reading("serve", fd_.get());
}

wire::state_table_header* state_table_file::header() noexcept {
  return static_cast<wire::state_table_header*>(mapping_.get().address);
}

void state_table_file::set(std::uint32_t slot,
                           gpushm::generation generation,
                           std::optional<segment_state> state) noexcept {
  auto* words = reinterpret_cast<wire::slot_word*>(static_cast<std::byte*>(mapping_.get().address) +
                                                   wire::state_table_words_offset);
  words[slot].store(wire::make_slot_word(state ? generation : 0, stored(state)),
                    std::memory_order_release);
}

void state_table_file::lock() {
  const int result = ::pthread_mutex_lock(mutex_in(header()));
  if (result == EOWNERDEAD) {  // a predecessor's thread has ended
    check_pthread(::pthread_mutex_consistent(mutex_in(header())), "pthread_mutex_consistent");
    return;
  }
  check_pthread(result, "pthread_mutex_lock");
}

void state_table_file::unlock() noexcept {
  ::pthread_mutex_unlock(mutex_in(header()));
}

}  // namespace gpushm::broker_detail
