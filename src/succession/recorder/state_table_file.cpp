// SPDX-License-Identifier: Apache-2.0
#include "succession/recorder/state_table_file.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <string_view>

#include "base/files/syscall.hpp"

namespace gpushm::succession {

namespace {

wire::slot_state stored(std::optional<segment_state> state) {
  if (!state) {
    return wire::slot_state::free;
  }
  switch (*state) {
    case segment_state::live:
      return wire::slot_state::live;
    case segment_state::exporter_gone:
      return wire::slot_state::exporter_gone;
    case segment_state::device_lost:
      return wire::slot_state::device_lost;
    case segment_state::removed:
    case segment_state::broker_gone:
    case segment_state::unknown:
    case segment_state::suspended:
      break;
  }
  return wire::slot_state::removed;
}

void check(std::string_view call, long result) {
  if (result != 0) {
    base::throw_errno(errno, "serve", {}, call);
  }
}

}  // namespace

/// Private memory of the owner's thread, which the kernel walks when the thread ends. It sets
/// FUTEX_OWNER_DIED in the word of each node if that has the thread's id. The word is in the table,
/// which others read; the list is not.
struct state_table_file::owner_list {
  robust_list_head head{};
  robust_list node{};
  robust_list_head* previous = nullptr;  ///< that of the C library
};

state_table_file::~state_table_file() = default;

state_table_file::state_table_file(std::uint32_t slots, const gpushm::epoch& epoch, bool resumable)
    : slots_(slots), epoch_(epoch), fd_(base::guarded_fd::open([] {
        return base::checked("serve", {}, "memfd_create", [] {
          return ::memfd_create("gpushm-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        });
      })) {
  const std::size_t bytes = wire::state_table_bytes(slots_);
  const auto size = static_cast<off_t>(bytes);
  base::checked("serve", {}, "ftruncate", [&] { return ::ftruncate(fd_.get(), size); });
  base::checked("serve", {}, "fallocate", [&] { return ::fallocate(fd_.get(), 0, 0, size); });
  mapping_ = base::map_file("serve", fd_.get(), bytes, true);
  // No child inherits the mapping. A child never touches its copy of this object.
  base::checked("serve", {}, "madvise", [&] {
    return ::madvise(mapping_.get().address, mapping_.get().size_bytes, MADV_DONTFORK);
  });
  // No process, not even this one, can write to it or create a writable mapping from here on.
  base::checked("serve", {}, "fcntl(F_ADD_SEALS)", [&] {
    return ::fcntl(
        fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
  });
  wire::state_table_header* table = header();
  table->magic = wire::state_table_magic;
  table->version = wire::state_table_version;
  table->slots = slots_;
  table->epoch = epoch_;
  table->resumable = resumable ? 1 : 0;
  if (resumable) {
    owner().store(FUTEX_OWNER_DIED, std::memory_order_release);
  }
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

std::atomic_ref<std::uint32_t> state_table_file::owner() noexcept {
  return std::atomic_ref<std::uint32_t>(header()->owner_futex);
}

void state_table_file::lock() {
  auto list = std::make_unique<owner_list>();
  list->head.list.next = &list->node;
  list->node.next = &list->head.list;
  list->head.futex_offset =
      static_cast<long>(reinterpret_cast<std::intptr_t>(&header()->owner_futex) -
                        reinterpret_cast<std::intptr_t>(&list->node));
  std::size_t size = 0;
  const long error = ::syscall(SYS_get_robust_list, 0, &list->previous, &size);
  // QEMU's emulator of programs has none: there readers see an orderly end only.
  if (error == 0 || errno != ENOSYS) {
    check("get_robust_list", error);
    check("set_robust_list", ::syscall(SYS_set_robust_list, &list->head, sizeof(list->head)));
    owner_list_ = std::move(list);
  }
  owner().store(static_cast<std::uint32_t>(::gettid()), std::memory_order_release);
}

void state_table_file::unlock() noexcept {
  owner().store(0, std::memory_order_release);
  ::syscall(SYS_futex, &header()->owner_futex, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  if (owner_list_) {
    // Cannot fail: it succeeded in `lock`.
    ::syscall(SYS_set_robust_list, owner_list_->previous, sizeof(robust_list_head));
    owner_list_.reset();
  }
}

}  // namespace gpushm::succession
