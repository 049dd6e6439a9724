// SPDX-License-Identifier: Apache-2.0
#include "journal/journal.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/file.hpp"
#include "base/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::journal {

namespace {

constexpr std::string_view operation = "journal";
constexpr std::uint64_t magic = 0x314c4e4a'4d534847ULL;  // "GHSMJNL1"
constexpr std::uint32_t version = 1;
constexpr std::uint64_t log_offset = 4'096;
constexpr std::uint64_t growth_bytes = std::uint64_t{1} << 20U;
/// A journal is compacted when it is longer than this and this many times its records.
constexpr std::uint64_t least_compaction_bytes = std::uint64_t{1} << 22U;
constexpr std::uint64_t compaction_factor = 4;

/// The first page of the file. Never change an offset: raise `version` instead.
struct file_header {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t complete = 0;  ///< 0 while `compacted` writes it
  std::uint64_t sequence = 0;
  std::uint64_t committed = 0;  ///< the log ends at this offset of the file
  transport::reported_call call;
  death_notes notes;
};
static_assert(sizeof(file_header) <= log_offset);
static_assert(offsetof(file_header, sequence) == 16);
static_assert(offsetof(file_header, committed) == 24);
static_assert(offsetof(file_header, call) == 32);
static_assert(offsetof(file_header, notes) == 112);

enum class change_kind : std::uint32_t { put = 1, erase = 2 };

/// Before each record's bytes, which are padded to `alignment`.
struct entry_header {
  std::uint32_t size_bytes;
  change_kind what;
  std::uint32_t kind;
  std::uint32_t reserved;
  std::uint64_t first;
  std::uint64_t second;
};
static_assert(sizeof(entry_header) == 32);
constexpr std::uint64_t alignment = 8;

constexpr std::uint64_t entry_bytes(std::uint64_t value_bytes) noexcept {
  return sizeof(entry_header) + (value_bytes + alignment - 1) / alignment * alignment;
}

error damaged(std::string_view what) {
  return {errc::invalid_argument,
          std::string(operation),
          {},
          "the file is not a journal that this version can read: " + std::string(what),
          "start the broker without it; its clients connect again"};
}

error full(std::uint64_t max_bytes) {
  return {errc::out_of_memory,
          std::string(operation),
          {},
          "the journal has reached its limit of " + std::to_string(max_bytes) + " bytes",
          "remove segments, or end clients"};
}

struct key_hash {
  std::size_t operator()(const record_key& key) const noexcept {
    std::uint64_t mixed = key.kind;
    for (const std::uint64_t each : {key.first, key.second}) {
      mixed = (mixed ^ each) * 0x9e3779b97f4a7c15ULL;  // Fibonacci hashing: Knuth, vol. 3, 6.4
      mixed ^= mixed >> 32U;
    }
    return mixed;
  }
};

}  // namespace

class journal::impl {
 public:
  impl(base::unique_fd file, std::uint64_t file_bytes, std::uint64_t max_bytes)
      : file_(std::move(file)),
        file_bytes_(file_bytes),
        max_bytes_(std::max(max_bytes, file_bytes)) {
    mapping_ = base::map_file(operation, file_.get(), max_bytes_, true);
    // A forked child neither writes the journal nor keeps its memory.
    base::checked(operation, {}, "madvise", [&] {
      return ::madvise(mapping_.get().address, mapping_.get().size_bytes, MADV_DONTFORK);
    });
  }

  void initialise(std::uint64_t sequence) {
    grow_to(log_offset);
    file_header* const top = header();
    top->magic = magic;
    top->version = version;
    top->sequence = sequence;
    set_committed(log_offset);
    end_ = log_offset;
  }

  void set_complete() noexcept {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    header()->complete = 1;
  }

  /// Precondition: the file has a header.
  void read() {
    const file_header* const top = header();
    if (top->magic != magic) {
      throw damaged("it does not begin as one");
    }
    if (top->version != version) {
      throw damaged("it has version " + std::to_string(top->version));
    }
    if (top->complete == 0) {
      throw damaged("it is not complete");
    }
    const std::uint64_t committed = top->committed;
    if (committed < log_offset || committed > file_bytes_) {
      throw damaged("its end is outside of the file");
    }
    for (std::uint64_t at = log_offset; at < committed;) {
      entry_header entry{};
      if (committed - at < sizeof(entry)) {
        throw damaged("its last entry is incomplete");
      }
      std::memcpy(&entry, bytes_at(at), sizeof(entry));
      const std::uint64_t length = entry_bytes(entry.size_bytes);
      if (length > committed - at) {
        throw damaged("an entry is longer than the rest");
      }
      const record_key key{entry.kind, entry.first, entry.second};
      switch (entry.what) {
        case change_kind::put:
          change(key, {at + sizeof(entry), entry.size_bytes, true});
          break;
        case change_kind::erase:
          change(key, {});
          break;
        default:
          throw damaged("an entry has kind " +
                        std::to_string(static_cast<std::uint32_t>(entry.what)));
      }
      at += length;
      end_ = at;
      apply();
    }
    end_ = committed;
  }

  void put(const record_key& key, std::span<const std::byte> value) {
    constexpr std::uint64_t largest = std::uint32_t(-1);
    if (value.size() > largest) {
      throw full(max_bytes_);
    }
    // After this record there must be room to erase every record.
    const std::uint64_t length = entry_bytes(value.size());
    grow_to(end_ + length + (records_.size() + 1) * sizeof(entry_header));
    change(key, {end_ + sizeof(entry_header), value.size(), true});
    append(key, change_kind::put, value);
  }

  void erase(const record_key& key) noexcept {
    const auto at = records_.find(key);
    if (at == records_.end() || !at->second.latest().exists) {
      return;
    }
    mark(*at, {});
    append(key, change_kind::erase, {});
  }

  void commit() noexcept {
    set_committed(end_);
    apply();
  }

  void roll_back() noexcept {
    for (node* each = std::exchange(changed_, nullptr); each != nullptr;) {
      node* const next = each->second.next_changed;
      each->second.is_changed = false;
      if (!each->second.committed.exists) {
        records_.erase(records_.find(each->first));
      }
      each = next;
    }
    end_ = header()->committed;
  }

  [[nodiscard]] std::optional<std::span<const std::byte>> find(
      const record_key& key) const noexcept {
    const auto at = records_.find(key);
    if (at == records_.end() || !at->second.committed.exists) {
      return std::nullopt;
    }
    return value_of(at->second.committed);
  }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [key, each] : records_) {
      if (each.committed.exists) {
        visit(key, value_of(each.committed));
      }
    }
  }

  [[nodiscard]] int descriptor() const noexcept { return file_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t live_bytes() const noexcept { return live_bytes_; }
  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }
  [[nodiscard]] std::uint64_t max_bytes() const noexcept { return max_bytes_; }
  [[nodiscard]] file_header* header() const noexcept {
    return static_cast<file_header*>(mapping_.get().address);
  }

 private:
  struct place {
    std::uint64_t offset = 0;
    std::uint64_t size_bytes = 0;
    bool exists = false;
  };
  struct record;
  using node = std::pair<const record_key, record>;
  struct record {
    place committed;
    place changed;  ///< if `is_changed`
    bool is_changed = false;
    node* next_changed = nullptr;

    [[nodiscard]] const place& latest() const noexcept { return is_changed ? changed : committed; }
  };

  [[nodiscard]] std::byte* bytes_at(std::uint64_t offset) const noexcept {
    return static_cast<std::byte*>(mapping_.get().address) + offset;
  }
  [[nodiscard]] std::span<const std::byte> value_of(const place& where) const noexcept {
    return {bytes_at(where.offset), static_cast<std::size_t>(where.size_bytes)};
  }

  void set_committed(std::uint64_t end) noexcept {
    std::atomic_ref(header()->committed).store(end, std::memory_order_release);
  }

  void grow_to(std::uint64_t bytes) {
    if (bytes <= file_bytes_) {
      return;
    }
    if (bytes > max_bytes_) {
      throw full(max_bytes_);
    }
    const std::uint64_t wanted =
        std::min(max_bytes_, (bytes + growth_bytes - 1) / growth_bytes * growth_bytes);
    // Not ftruncate: a write to a page without memory would end this process (SIGBUS).
    base::checked(operation, {}, "fallocate", [&] {
      return ::fallocate(file_.get(), 0, 0, static_cast<off_t>(wanted));
    });
    file_bytes_ = wanted;
  }

  void append(const record_key& key, change_kind what, std::span<const std::byte> value) noexcept {
    const entry_header entry{
        static_cast<std::uint32_t>(value.size()), what, key.kind, 0, key.first, key.second};
    std::memcpy(bytes_at(end_), &entry, sizeof(entry));
    if (!value.empty()) {
      std::memcpy(bytes_at(end_ + sizeof(entry)), value.data(), value.size());
    }
    end_ += entry_bytes(value.size());
  }

  void change(const record_key& key, const place& to) {
    mark(*records_.try_emplace(key).first, to);
  }

  void mark(node& which, const place& to) noexcept {
    record& of = which.second;
    of.changed = to;
    if (!std::exchange(of.is_changed, true)) {
      of.next_changed = std::exchange(changed_, &which);
    }
  }

  void apply() noexcept {
    for (node* each = std::exchange(changed_, nullptr); each != nullptr;) {
      record& of = each->second;
      node* const next = of.next_changed;
      if (of.committed.exists) {
        live_bytes_ -= entry_bytes(of.committed.size_bytes);
        --count_;
      }
      of.committed = of.changed;
      of.is_changed = false;
      if (of.committed.exists) {
        live_bytes_ += entry_bytes(of.committed.size_bytes);
        ++count_;
      } else {
        records_.erase(records_.find(each->first));
      }
      each = next;
    }
  }

  base::unique_fd file_;
  std::uint64_t file_bytes_;
  std::uint64_t max_bytes_;
  base::unique_mapping mapping_;
  std::uint64_t end_ = log_offset;  ///< of the log, with changes that are not committed
  std::unordered_map<record_key, record, key_hash> records_;
  node* changed_ = nullptr;  ///< records with changes, linked
  std::size_t count_ = 0;
  std::uint64_t live_bytes_ = 0;
};

journal::journal(std::unique_ptr<impl> all) : impl_(std::move(all)) {}
journal::journal(journal&&) noexcept = default;
journal& journal::operator=(journal&&) noexcept = default;
journal::~journal() = default;

namespace {

base::unique_fd new_file() {
  return base::unique_fd(base::checked(
      operation, {}, "memfd_create", [] { return ::memfd_create("gpushm-journal", MFD_CLOEXEC); }));
}

}  // namespace

journal journal::create(std::uint64_t max_bytes) {
  journal result(std::make_unique<impl>(new_file(), 0, max_bytes));
  result.impl_->initialise(1);
  result.impl_->set_complete();
  return result;
}

journal journal::open(base::unique_fd file, std::uint64_t max_bytes) {
  struct stat status {};
  base::checked(operation, {}, "fstat", [&] { return ::fstat(file.get(), &status); });
  if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) < log_offset) {
    throw damaged("it is too short");
  }
  journal result(std::make_unique<impl>(
      std::move(file), static_cast<std::uint64_t>(status.st_size), max_bytes));
  result.impl_->read();
  return result;
}

int journal::descriptor() const noexcept {
  return impl_->descriptor();
}
void journal::put(const record_key& key, std::span<const std::byte> value) {
  impl_->put(key, value);
}
void journal::erase(const record_key& key) noexcept {
  impl_->erase(key);
}
void journal::commit() noexcept {
  impl_->commit();
}
void journal::roll_back() noexcept {
  impl_->roll_back();
}
std::optional<std::span<const std::byte>> journal::find(const record_key& key) const noexcept {
  return impl_->find(key);
}
std::size_t journal::size() const noexcept {
  return impl_->size();
}
void journal::visit_all(visitor visit, const void* context) const {
  impl_->for_each(
      [&](const record_key& key, std::span<const std::byte> value) { visit(context, key, value); });
}

bool journal::needs_compaction() const noexcept {
  const std::uint64_t used = impl_->end() - log_offset;
  return used > least_compaction_bytes && used / compaction_factor > impl_->live_bytes();
}

journal journal::compacted() const {
  journal result = emptied();
  for_each([&](const record_key& key, std::span<const std::byte> value) {
    result.impl_->put(key, value);
  });
  result.impl_->commit();
  return result;
}

journal journal::emptied() const {
  journal result(std::make_unique<impl>(new_file(), 0, impl_->max_bytes()));
  result.impl_->initialise(sequence() + 1);
  result.call() = impl_->header()->call;
  result.notes() = impl_->header()->notes;
  result.impl_->set_complete();
  return result;
}

std::uint64_t journal::sequence() const noexcept {
  return impl_->header()->sequence;
}
std::uint64_t journal::used_bytes() const noexcept {
  return impl_->end();
}
transport::reported_call& journal::call() noexcept {
  return impl_->header()->call;
}

death_notes& journal::notes() noexcept {
  return impl_->header()->notes;
}

}  // namespace gpushm::journal
