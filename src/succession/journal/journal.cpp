// SPDX-License-Identifier: Apache-2.0
#include "succession/journal/journal.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/files/file.hpp"
#include "base/files/page_size.hpp"
#include "base/files/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::journal {

namespace {

constexpr std::string_view operation = "journal";
constexpr std::uint64_t magic = 0x314c4e4a'4d534847ULL;  // "GHSMJNL1"
constexpr std::uint32_t version = 2;
// Of the machine, as every reader of a journal has it.
const std::uint64_t page_bytes = base::host_page_bytes();
const std::uint64_t log_offset = page_bytes;
constexpr std::uint64_t growth_bytes = std::uint64_t{1} << 20U;
/// Larger rings are not reserved, and in a file are a sign of damage.
constexpr std::uint64_t largest_ring_bytes = std::uint64_t{1} << 36U;

// History: entries that a later one has replaced. From this much on, commits move the beginning of
// the log.
constexpr std::uint64_t least_history_bytes = std::uint64_t{1} << 20U;
constexpr std::uint64_t history_fraction = 4;  ///< of the records' bytes
/// A commit reads this much of the log's beginning, and this many times the history that it has
/// made. Each byte of history lies among at most `history_fraction` bytes of records, and at worst
/// all records lie before it: then as much is added as 1/`turn_factor` of them.
constexpr std::uint64_t least_turn_bytes = std::uint64_t{64} << 10U;
constexpr std::uint64_t turn_factor = 2 * history_fraction;
/// The history of a small ring is at most its size divided by this.
constexpr std::uint64_t ring_fraction = 8;
/// Pages are given back in pieces of this size.
constexpr std::uint64_t freed_piece_bytes = std::uint64_t{256} << 10U;

/// The first page of the file. Never change an offset: raise `version` instead.
struct file_header {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t complete = 0;  ///< 0 until it can be read
  std::uint64_t sequence = 0;
  std::uint64_t committed = 0;  ///< the log ends at this position
  std::uint64_t start = 0;      ///< and begins at this one
  std::uint64_t ring_bytes = 0;
  transport::reported_call call;
  death_notes notes;
};
static_assert(sizeof(file_header) <= 4'096);
static_assert(offsetof(file_header, sequence) == 16);
static_assert(offsetof(file_header, committed) == 24);
static_assert(offsetof(file_header, start) == 32);
static_assert(offsetof(file_header, ring_bytes) == 40);
static_assert(offsetof(file_header, call) == 48);
static_assert(offsetof(file_header, notes) == 128);

enum class change_kind : std::uint32_t { put = 1, erase = 2 };

/// Positions grow without end. The byte at a position is at this offset of the file: the ring
/// begins after the header.
inline std::uint64_t offset_of(std::uint64_t position, std::uint64_t ring_bytes) noexcept {
  return log_offset + (position - log_offset) % ring_bytes;
}
inline std::uint64_t page_of(std::uint64_t position) noexcept {
  return position / page_bytes * page_bytes;
}
inline std::uint64_t page_after(std::uint64_t position) noexcept {
  return page_of(position + page_bytes - 1);
}

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

error damaged(std::string_view cause) {
  return {errc::invalid_argument,
          std::string(operation),
          {},
          "the file is not a journal that this version can read: " + std::string(cause),
          "start the broker without it; its clients connect again"};
}

error full(std::uint64_t max_bytes) {
  return {errc::out_of_memory,
          std::string(operation),
          {},
          "the journal has reached its limit of " + std::to_string(max_bytes) + " bytes",
          "remove segments, or end clients"};
}

bool is_equal(std::span<const std::byte> left, std::span<const std::byte> right) noexcept {
  return std::equal(left.begin(), left.end(), right.begin(), right.end());
}

/// A ring that needs larger files than this process may write would seem full before its end.
std::uint64_t ring_bytes_of(std::uint64_t max_bytes) noexcept {
  rlimit files{};
  if (::getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
    max_bytes = std::min<std::uint64_t>(max_bytes, files.rlim_cur);
  }
  return std::clamp(page_of(max_bytes), 3 * page_bytes, largest_ring_bytes) - log_offset;
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

/// Records by key, in several hash tables, each with a part of the keys: no call takes O(records),
/// because one table grows at a time.
template <typename Record>
class record_map {
 public:
  using node = std::pair<const record_key, Record>;

  /// Returns null if there is none.
  [[nodiscard]] node* find(const record_key& key) noexcept {
    table& part = parts_[part_of(key)];
    const auto at = part.find(key);
    return at == part.end() ? nullptr : &*at;
  }
  [[nodiscard]] const node* find(const record_key& key) const noexcept {
    const table& part = parts_[part_of(key)];
    const auto at = part.find(key);
    return at == part.end() ? nullptr : &*at;
  }
  /// An empty one if there was none. Throws std::bad_alloc; then nothing has changed.
  [[nodiscard]] node& find_or_add(const record_key& key) {
    const auto [at, is_new] = parts_[part_of(key)].try_emplace(key);
    size_ += is_new ? 1 : 0;
    return *at;
  }
  void erase(const record_key& key) noexcept { size_ -= parts_[part_of(key)].erase(key); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  template <typename Visit>
  void for_each(Visit&& visit) {
    for (table& part : parts_) {
      for (node& each : part) {
        visit(each);
      }
    }
  }
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const table& part : parts_) {
      for (const node& each : part) {
        visit(each);
      }
    }
  }

 private:
  using table = std::unordered_map<record_key, Record, key_hash>;
  /// With 250,000 records, those of a full domain, a table has 4,000: it grows in under 1 ms.
  static constexpr unsigned part_bits = 6;
  [[nodiscard]] static std::size_t part_of(const record_key& key) noexcept {
    return key_hash()(key) >> (64U - part_bits);
  }

  std::array<table, std::size_t{1} << part_bits> parts_;
  std::size_t size_ = 0;
};

}  // namespace

class journal::impl {
 public:
  /// A new file.
  impl(base::unique_fd file, std::uint64_t max_bytes)
      : file_(std::move(file)), ring_(ring_bytes_of(max_bytes)) {
    base::checked(operation, {}, "fallocate", [&] {
      return ::fallocate(file_.get(), 0, 0, static_cast<off_t>(log_offset));
    });
    map_header();
    map_ring();
  }

  /// An existing one, whose header is complete.
  explicit impl(base::unique_fd file) : file_(std::move(file)) { map_header(); }

  void initialise(std::uint64_t sequence) {
    file_header* const top = header();
    top->magic = magic;
    top->version = version;
    top->sequence = sequence;
    top->ring_bytes = ring_;
    top->start = log_offset;
    set_committed(log_offset);
  }

  void set_complete() noexcept {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    header()->complete = 1;
  }

  void read(std::uint64_t file_bytes) {
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
    ring_ = top->ring_bytes;
    if (ring_ == 0 || ring_ % page_bytes != 0 || ring_ > largest_ring_bytes) {
      throw damaged("its ring has an impossible size");
    }
    const std::uint64_t committed = top->committed;
    start_ = top->start;
    const bool is_ordered = start_ >= log_offset && committed >= start_;
    if (!is_ordered || committed - page_of(start_) > ring_ ||
        std::min(committed, log_offset + ring_) > file_bytes) {
      throw damaged("its end is outside of the file");
    }
    map_ring();
    for (std::uint64_t at = start_; at < committed;) {
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
    committed_history_ = history_from(start_);
    freed_ = page_of(start_);
    allocated_ =
        std::min(page_after(end_ + records_.size() * sizeof(entry_header)), freed_ + ring_);
    // A predecessor was killed before it had given these pages back, or used them.
    static_cast<void>(free_pages(allocated_, freed_ + ring_));
  }

  void put(const record_key& key, std::span<const std::byte> value) {
    constexpr std::uint64_t largest = std::uint32_t(-1);
    if (value.size() > largest) {
      throw full(max_bytes());
    }
    if (rewritten_ != 0) {
      if (node* const at = records_.find(key)) {
        at->second.rewritten = rewritten_;
        if (!at->second.is_changed && is_equal(value_of(at->second.committed), value)) {
          return;
        }
      }
    }
    // After this record there must be room to erase every record.
    const std::uint64_t length = entry_bytes(value.size());
    grow_to(end_ + length + (records_.size() + 1) * sizeof(entry_header));
    change(key, {end_ + sizeof(entry_header), static_cast<std::uint32_t>(value.size()), true});
    append(key, change_kind::put, value);
  }

  void begin_rewrite() noexcept {
    roll_back();
    rewritten_ = ++rewrites_;
  }

  void end_rewrite() noexcept {
    records_.for_each([&](node& each) {
      if (each.second.rewritten != rewritten_ && each.second.latest().exists) {
        mark(each, {});
        append(each.first, change_kind::erase, {});
      }
    });
    rewritten_ = 0;
  }

  bool erase(const record_key& key) noexcept {
    node* const at = records_.find(key);
    if (at == nullptr || !at->second.latest().exists) {
      return false;
    }
    mark(*at, {});
    append(key, change_kind::erase, {});
    return true;
  }

  void commit() noexcept {
    const std::uint64_t before = committed_history_;
    set_committed(end_);
    apply();
    const std::uint64_t history = history_from(start_);
    if (history > history_bound()) {
      clean(least_turn_bytes + turn_factor * (history - std::min(before, history)));
    }
    committed_history_ = history_from(start_);
  }

  void roll_back() noexcept {
    rewritten_ = 0;
    for (node* each = std::exchange(changed_, nullptr); each != nullptr;) {
      node* const next = each->second.next_changed;
      each->second.is_changed = false;
      if (!each->second.committed.exists) {
        records_.erase(record_key(each->first));  // a copy: it is in the node
      }
      each = next;
    }
    end_ = header()->committed;
  }

  [[nodiscard]] std::optional<std::span<const std::byte>> find(
      const record_key& key) const noexcept {
    const node* const at = records_.find(key);
    if (at == nullptr || !at->second.committed.exists) {
      return std::nullopt;
    }
    return value_of(at->second.committed);
  }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    records_.for_each([&](const node& each) {
      if (each.second.committed.exists) {
        visit(each.first, value_of(each.second.committed));
      }
    });
  }

  [[nodiscard]] int descriptor() const noexcept { return file_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t used_bytes() const noexcept { return end_ - start_ + log_offset; }
  [[nodiscard]] std::uint64_t max_bytes() const noexcept { return ring_ + log_offset; }
  [[nodiscard]] file_header* header() const noexcept {
    return static_cast<file_header*>(header_.get().address);
  }

 private:
  struct place {
    std::uint64_t position = 0;
    std::uint32_t size_bytes = 0;
    bool exists = false;
  };
  struct record;
  using node = std::pair<const record_key, record>;
  struct record {
    place committed;
    place changed;  ///< if `is_changed`
    node* next_changed = nullptr;
    std::uint32_t rewritten = 0;  ///< the last rewrite that has put it
    bool is_changed = false;

    [[nodiscard]] const place& latest() const noexcept { return is_changed ? changed : committed; }
  };

  /// The ring is mapped twice in a row: a record that crosses its end is also contiguous.
  [[nodiscard]] std::byte* bytes_at(std::uint64_t position) const noexcept {
    return static_cast<std::byte*>(ring_mapping_.get().address) + (position - log_offset) % ring_;
  }
  [[nodiscard]] std::span<const std::byte> value_of(const place& where) const noexcept {
    return {bytes_at(where.position), std::size_t{where.size_bytes}};
  }

  /// A forked child neither writes the journal nor keeps its memory.
  static void keep_from_children(const base::unique_mapping& mapping) {
    base::checked(operation, {}, "madvise", [&] {
      return ::madvise(mapping.get().address, mapping.get().size_bytes, MADV_DONTFORK);
    });
  }

  void map_header() {
    header_ = base::map_file(operation, file_.get(), log_offset, true);
    keep_from_children(header_);
  }

  void map_ring() {
    const std::size_t size_bytes = 2 * ring_;
    void* const address =
        ::mmap(nullptr, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the macro is a cast
      base::throw_errno(errno, operation, {}, "mmap");
    }
    ring_mapping_ = base::unique_mapping(base::mapping_value{address, size_bytes});
    for (const std::uint64_t at : {std::uint64_t{0}, ring_}) {
      void* const part = ::mmap(static_cast<std::byte*>(address) + at,
                                ring_,
                                PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED,
                                file_.get(),
                                static_cast<off_t>(log_offset));
      if (part == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the macro is a cast
        base::throw_errno(errno, operation, {}, "mmap");
      }
    }
    keep_from_children(ring_mapping_);
  }

  void set_committed(std::uint64_t end) noexcept {
    std::atomic_ref(header()->committed).store(end, std::memory_order_release);
  }

  /// Calls `use(offset, bytes)` for the one or two pieces of the file; stops when one returns
  /// false.
  template <typename Use>
  bool for_pieces(std::uint64_t begin, std::uint64_t end, Use&& use) const {
    while (begin < end) {
      const std::uint64_t offset = offset_of(begin, ring_);
      const std::uint64_t size_bytes = std::min(end - begin, log_offset + ring_ - offset);
      if (!use(static_cast<off_t>(offset), static_cast<off_t>(size_bytes))) {
        return false;
      }
      begin += size_bytes;
    }
    return true;
  }

  void grow_to(std::uint64_t end) {
    if (end <= allocated_) {
      return;
    }
    if (end > freed_ + ring_) {
      free_history();
    }
    if (end > freed_ + ring_) {
      throw full(max_bytes());
    }
    const std::uint64_t wanted =
        std::min(freed_ + ring_, (end + growth_bytes - 1) / growth_bytes * growth_bytes);
    // Not ftruncate: a write to a page without memory would end this process (SIGBUS).
    for_pieces(allocated_, wanted, [this](off_t offset, off_t size_bytes) {
      base::checked(operation, {}, "fallocate", [&] {
        return ::fallocate(file_.get(), 0, offset, size_bytes);
      });
      return true;
    });
    allocated_ = wanted;
  }

  /// Frees whole pages. Returns false if the kernel refuses it.
  [[nodiscard]] bool free_pages(std::uint64_t begin, std::uint64_t end) const noexcept {
    return for_pieces(begin, end, [this](off_t offset, off_t size_bytes) {
      constexpr int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
      return base::retry([&] { return ::fallocate(file_.get(), mode, offset, size_bytes); }) == 0;
    });
  }

  /// The pages before the log's beginning.
  void free_history() noexcept {
    if (free_pages(freed_, page_of(start_))) {
      freed_ = page_of(start_);
    }
  }

  /// Bytes from this position to the end that no record needs.
  [[nodiscard]] std::uint64_t history_from(std::uint64_t position) const noexcept {
    return end_ - position - live_bytes_;
  }
  [[nodiscard]] std::uint64_t history_bound() const noexcept {
    const std::uint64_t least = std::min(least_history_bytes, ring_ / ring_fraction);
    return std::max(least, live_bytes_ / history_fraction);
  }

  /// Moves the log's beginning by up to `turn_bytes`: copies records from there to the end, commits
  /// the copies, and only then drops the originals. So a file that is read after a SIGKILL has each
  /// record at least once, and the same value twice at most. Precondition: nothing has changed
  /// since the last commit.
  void clean(std::uint64_t turn_bytes) noexcept {
    const std::uint64_t committed = end_;
    std::uint64_t at = start_;
    while (at < committed && at - start_ < turn_bytes && history_from(at) > history_bound()) {
      entry_header entry{};
      std::memcpy(&entry, bytes_at(at), sizeof(entry));
      const std::uint64_t length = entry_bytes(entry.size_bytes);
      // What an erasure has erased was before it, and is gone.
      node* const node = entry.what == change_kind::put
                             ? records_.find({entry.kind, entry.first, entry.second})
                             : nullptr;
      if (node != nullptr && node->second.committed.position == at + sizeof(entry)) {
        try {
          grow_to(end_ + length + records_.size() * sizeof(entry_header));
        } catch (const std::exception&) {  // full, or memory is short: a later commit tries again
          break;
        }
        std::memcpy(bytes_at(end_), bytes_at(at), length);
        mark(*node, {end_ + sizeof(entry), entry.size_bytes, true});
        end_ += length;
      }
      at += length;
    }
    if (end_ != committed) {
      set_committed(end_);
      apply();
    }
    start_ = at;
    std::atomic_ref(header()->start).store(at, std::memory_order_release);
    if (page_of(start_) - freed_ >= std::min(freed_piece_bytes, ring_ / ring_fraction)) {
      free_history();
    }
  }

  void append(const record_key& key, change_kind kind, std::span<const std::byte> value) noexcept {
    const entry_header entry{
        static_cast<std::uint32_t>(value.size()), kind, key.kind, 0, key.first, key.second};
    std::memcpy(bytes_at(end_), &entry, sizeof(entry));
    if (!value.empty()) {
      std::memcpy(bytes_at(end_ + sizeof(entry)), value.data(), value.size());
    }
    end_ += entry_bytes(value.size());
  }

  void change(const record_key& key, const place& place) { mark(records_.find_or_add(key), place); }

  void mark(node& node, const place& place) noexcept {
    record& record = node.second;
    record.changed = place;
    record.rewritten = rewritten_;
    if (!std::exchange(record.is_changed, true)) {
      record.next_changed = std::exchange(changed_, &node);
    }
  }

  void apply() noexcept {
    for (node* each = std::exchange(changed_, nullptr); each != nullptr;) {
      record& record = each->second;
      node* const next = record.next_changed;
      if (record.committed.exists) {
        live_bytes_ -= entry_bytes(record.committed.size_bytes);
        --count_;
      }
      record.committed = record.changed;
      record.is_changed = false;
      if (record.committed.exists) {
        live_bytes_ += entry_bytes(record.committed.size_bytes);
        ++count_;
      } else {
        records_.erase(record_key(each->first));  // a copy: it is in the node
      }
      each = next;
    }
  }

  base::unique_fd file_;
  std::uint64_t ring_ = page_bytes;
  base::unique_mapping header_;
  base::unique_mapping ring_mapping_;
  // Positions. Pages from `freed_` to `allocated_`, which are less than the ring, have memory.
  std::uint64_t freed_ = log_offset;
  std::uint64_t start_ = log_offset;
  std::uint64_t end_ = log_offset;  ///< of the log, with changes that are not committed
  std::uint64_t allocated_ = log_offset;
  record_map<record> records_;
  node* changed_ = nullptr;  ///< records with changes, linked
  std::size_t count_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t committed_history_ = 0;
  std::uint32_t rewrites_ = 0;
  std::uint32_t rewritten_ = 0;  ///< the rewrite that is being made; 0: none
};

journal::journal(std::unique_ptr<impl> impl) : impl_(std::move(impl)) {}
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
  journal result(std::make_unique<impl>(new_file(), max_bytes));
  result.impl_->initialise(1);
  result.impl_->set_complete();
  return result;
}

journal journal::open(base::unique_fd file) {
  struct stat status {};
  base::checked(operation, {}, "fstat", [&] { return ::fstat(file.get(), &status); });
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || file_bytes < log_offset) {
    throw damaged("it is too short");
  }
  journal result(std::make_unique<impl>(std::move(file)));
  result.impl_->read(file_bytes);
  return result;
}

int journal::descriptor() const noexcept {
  return impl_->descriptor();
}
void journal::put(const record_key& key, std::span<const std::byte> value) {
  impl_->put(key, value);
}
bool journal::erase(const record_key& key) noexcept {
  return impl_->erase(key);
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

void journal::begin_rewrite() noexcept {
  impl_->begin_rewrite();
}
void journal::end_rewrite() noexcept {
  impl_->end_rewrite();
}

journal journal::emptied(std::uint64_t max_bytes) const {
  journal result(std::make_unique<impl>(new_file(), std::max(max_bytes, impl_->max_bytes())));
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
  return impl_->used_bytes();
}
transport::reported_call& journal::call() noexcept {
  return impl_->header()->call;
}

death_notes& journal::notes() noexcept {
  return impl_->header()->notes;
}

}  // namespace gpushm::journal
