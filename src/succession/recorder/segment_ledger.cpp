// SPDX-License-Identifier: Apache-2.0
#include "succession/recorder/segment_ledger.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <type_traits>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/process/process.hpp"
#include "base/segments/names.hpp"
#include "base/text/size_text.hpp"
#include "succession/recorder/limited_log.hpp"

namespace gpushm::succession {

namespace {

constexpr const char* operation = "keep the list of segments";
/// "GSHMSEGS"; the last byte is the version of the format.
constexpr std::uint64_t magic = 0x4753484D53454701;
/// The first one is the header. A power of two, so that no row crosses a page: the kernel writes a
/// part of a page as a whole, also if the process is killed.
constexpr std::size_t row_bytes = 512;
/// Names in the report of what is lost.
constexpr std::size_t names_in_report = 10;
/// Longer than any name that a broker gives to a principal it can vouch for.
constexpr std::size_t max_principal_bytes = 128;

struct header {
  std::uint64_t magic = succession::magic;
  std::array<char, 40> boot_id{};
  gpushm::generation first_generation = 0;
  std::int64_t last_return_ns = 0;  ///< of the monotonic clock
};
static_assert(std::is_trivially_copyable_v<header> && sizeof(header) <= row_bytes);

std::array<char, 40> this_boot() {
  std::array<char, 40> result{};
  const std::string text = base::this_process().boot_id;
  std::copy_n(text.begin(), std::min(text.size(), result.size()), result.begin());
  return result;
}

/// Collects values in one unambiguous sequence of bytes.
class byte_sequence {
 public:
  explicit byte_sequence(std::string_view purpose) { add(purpose); }
  void add(std::uint64_t value) {
    for (unsigned shift = 0; shift != 64; shift += 8) {
      bytes_.push_back(static_cast<std::byte>(value >> shift));
    }
  }
  void add(std::span<const std::byte> value) {
    add(std::uint64_t{value.size()});
    bytes_.insert(bytes_.end(), value.begin(), value.end());
  }
  void add(std::string_view value) { add(std::as_bytes(std::span(value))); }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// In constant time: a member must not learn how much of its guess is right.
bool are_equal(const wire::receipt& receipt, const wire::receipt& two) noexcept {
  std::byte differs{};
  for (std::size_t i = 0; i != receipt.size(); ++i) {
    differs |= receipt[i] ^ two[i];
  }
  return differs == std::byte{};
}

error not_missing() {
  return {errc::gone_or_replaced,
          {},
          {},
          "the broker does not miss a segment of this name and generation: it was removed, another "
          "one has its name, or the time to hand it back is over",
          "create it again"};
}

}  // namespace

/// A segment in the file. Generation 0: none.
struct segment_ledger::row {
  gpushm::generation generation = 0;
  std::uint64_t allocated_bytes = 0;
  wire::receipt facts{};
  wire::receipt metadata{};  ///< if it is published
  std::uint8_t is_published = 0;
  std::uint8_t is_persistent = 0;
  std::uint16_t name_bytes = 0;
  std::array<char, max_name_bytes> name_text{};
  // From here on 0 in rows of earlier versions.
  std::uint8_t has_creator = 0;
  std::uint8_t principal_bytes = 0;
  std::uint32_t creator_uid = 0;
  page_identity page;
  std::array<char, max_principal_bytes> principal_text{};
  gpushm::generation replaces = 0;

  [[nodiscard]] std::string_view name() const noexcept {
    return {name_text.data(), std::min<std::size_t>(name_bytes, name_text.size())};
  }
  /// An empty key: none that was vouched for.
  [[nodiscard]] core::principal principal() const {
    return {{principal_text.data(), std::min<std::size_t>(principal_bytes, principal_text.size())},
            true};
  }
  /// It has the name of the other one, without the right to it before it is published.
  [[nodiscard]] bool is_to_replace(const row& other) const noexcept {
    return is_published == 0 && replaces != 0 && replaces == other.generation;
  }
};

page_identity page_identity_of(int file) noexcept {
  struct stat status {};
  return ::fstat(file, &status) == 0 ? page_identity{status.st_dev, status.st_ino}
                                     : page_identity{};
}

segment_ledger::segment_ledger(config config) : with_(std::move(config)) {
  static_assert(std::is_trivially_copyable_v<row> && sizeof(row) <= row_bytes);
  open();
  load();
}

void segment_ledger::open() {
  file_ = base::unique_fd(base::checked(operation, with_.path, "open", [&] {
    return ::open(with_.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  }));
}

void segment_ledger::load() {
  header head;
  const ssize_t got = ::pread(file_.get(), &head, sizeof(head), 0);
  const bool is_known = got == sizeof(head) && head.magic == magic && head.boot_id == this_boot();
  if (!is_known) {
    base::checked(operation, with_.path, "ftruncate", [&] { return ::ftruncate(file_.get(), 0); });
    head = {};
    head.boot_id = this_boot();
  }
  if (with_.first_generation) {
    head.first_generation = *with_.first_generation;
    head.last_return_ns =
        std::chrono::nanoseconds(
            (std::chrono::steady_clock::now() + with_.return_time).time_since_epoch())
            .count();
  }
  const ssize_t put = ::pwrite(file_.get(), &head, sizeof(head), 0);
  if (put != sizeof(head)) {
    base::throw_errno(put == -1 ? errno : ENOSPC, operation, with_.path, "pwrite");
  }
  first_generation_ = head.first_generation;
  last_return_ = core::time_point(std::chrono::nanoseconds(head.last_return_ns));
  is_continuing_ = !with_.first_generation;

  struct stat status {};
  base::checked(operation, with_.path, "fstat", [&] { return ::fstat(file_.get(), &status); });
  const auto rows = static_cast<std::uint64_t>(status.st_size) / row_bytes;
  for (; next_index_ + 1 < rows; ++next_index_) {
    const auto one = read(next_index_);
    if (!one || one->generation == 0) {
      free_.push_back(next_index_);
      continue;
    }
    places_[one->generation] = {
        next_index_, one->is_published != 0, one->is_persistent != 0, true, one->page.is_known()};
    const auto [place, is_first] = missing_.try_emplace(std::string(one->name()), one->generation);
    if (is_first) {
      continue;
    }
    const auto other = read(places_.at(place->second).index);
    const bool is_newer = one->generation > place->second;
    // The newer one has replaced the other one, whose end the last broker could not write; or it
    // was to do so, and is made again.
    const bool is_kept =
        other && (is_newer ? !one->is_to_replace(*other) : other->is_to_replace(*one));
    const gpushm::generation dropped = is_kept ? place->second : one->generation;
    place->second = is_kept ? one->generation : place->second;
    drop(places_.find(dropped));
  }
  if (!is_continuing_ && !missing_.empty()) {
    log_about_broker(
        log_level::warning,
        "domain " + with_.domain + ": the last broker and its keeper have ended with " +
            std::to_string(missing_.size()) + " segments, which clients can hand back for " +
            std::to_string(with_.return_time.count() / 1'000) + " s");
  }
}

std::optional<segment_ledger::row> segment_ledger::read(std::uint32_t index) const noexcept {
  row result;
  const auto offset = static_cast<off_t>((std::uint64_t{index} + 1) * row_bytes);
  if (::pread(file_.get(), &result, sizeof(result), offset) != sizeof(result)) {
    return std::nullopt;
  }
  return result;
}

void segment_ledger::write(std::uint32_t index, const row& row) {
  std::array<std::byte, row_bytes> bytes{};
  std::memcpy(bytes.data(), &row, sizeof(row));
  const auto offset = static_cast<off_t>((std::uint64_t{index} + 1) * row_bytes);
  if (::pwrite(file_.get(), bytes.data(), bytes.size(), offset) != row_bytes) {
    base::throw_errno(errno, operation, with_.path, "pwrite");
  }
}

void segment_ledger::failed(const char* why) noexcept {
  if (!std::exchange(has_failed_, true)) {
    log_about_broker(log_level::error, why);
  }
}

// ---- codes ----

wire::receipt segment_ledger::receipt_for(std::string_view name,
                                          gpushm::generation generation,
                                          std::uint32_t uid,
                                          bool is_creator) const {
  byte_sequence sequence("receipt");
  sequence.add(with_.domain);
  sequence.add(name);
  sequence.add(generation);
  sequence.add(std::uint64_t{uid});
  sequence.add(std::uint64_t{is_creator});
  return with_.code(sequence.bytes());
}

page_identity segment_ledger::page_of(gpushm::generation generation) const noexcept {
  const auto place = places_.find(generation);
  const auto known = place == places_.end() ? std::nullopt : read(place->second.index);
  return known && known->generation == generation ? known->page : page_identity{};
}

core::time_point segment_ledger::end_of(std::chrono::milliseconds time) const noexcept {
  return last_return_ - with_.return_time + time;
}

wire::receipt segment_ledger::code_of_facts(const base::reservation& reservation,
                                            std::uint32_t creator_uid) const {
  byte_sequence sequence("facts");
  sequence.add(reservation.name);
  sequence.add(reservation.size_bytes);
  sequence.add(reservation.allocated_bytes);
  sequence.add(static_cast<std::uint64_t>(reservation.device.kind));
  sequence.add(reservation.device.uuid);
  sequence.add(reservation.device.pci_address);
  sequence.add(static_cast<std::uint64_t>(reservation.device.minor));
  sequence.add(std::uint64_t{reservation.chunk_count});
  sequence.add(static_cast<std::uint64_t>(reservation.backend));
  sequence.add(static_cast<std::uint64_t>(reservation.lifetime));
  sequence.add(reservation.offset_bytes);
  sequence.add(reservation.ticket);
  sequence.add(std::uint64_t{creator_uid});
  return with_.code(sequence.bytes());
}

wire::receipt segment_ledger::code_of_metadata(std::span<const std::byte> metadata) const {
  byte_sequence all("metadata");
  all.add(metadata);
  return with_.code(all.bytes());
}

// ---- what is handed back ----

core::lost_segment segment_ledger::check_return(const wire::reserve& offered,
                                                std::optional<std::uint32_t> uid) const {
  const auto is_valid = [&](bool as_creator) {
    return uid && offered.receipt &&
           are_equal(*offered.receipt,
                     receipt_for(offered.name, offered.generation, *uid, as_creator));
  };
  const bool is_creator = is_valid(true);
  if (!is_creator && !is_valid(false)) {
    throw error(errc::permission_denied,
                {},
                {},
                "this is not the receipt of a member of this uid for this segment",
                "hand back what this domain's broker gave to a process of this uid");
  }
  const auto place = places_.find(offered.generation);
  if (place == places_.end()) {
    throw not_missing();
  }
  if (!place->second.is_missing) {
    throw error(
        errc::already_exists, {}, {}, "another process has handed this segment back", "open it");
  }
  // A creator does not know how this process sees its uid.
  const std::uint32_t creator_uid = is_creator ? *uid : offered.creator_uid;
  const auto known = read(place->second.index);
  if (!known || known->generation != offered.generation || known->name() != offered.name ||
      !are_equal(known->facts, code_of_facts(offered, creator_uid))) {
    throw not_missing();
  }
  const bool may_be_readers =
      offered.lifetime == lifetime::persistent ||
      (offered.backend == backend::signals &&
       std::chrono::steady_clock::now() >=
           end_of(std::min<std::chrono::milliseconds>(time_of_signalers, with_.return_time / 2)));
  if (!is_creator && !may_be_readers) {
    throw error(errc::permission_denied,
                {},
                {},
                "leased memory is handed back by the process that created or shared it",
                "open it when that process has done so");
  }
  return {offered.generation, creator_uid, is_creator, known->principal()};
}

void segment_ledger::note_return(gpushm::generation generation, std::uint32_t uid) {
  attempt& last = attempts_.try_emplace(generation).first->second;
  if (last.since == core::time_point{} || last.uid != uid) {  // to begin again does not prolong it
    last = {uid, std::chrono::steady_clock::now()};
  }
}

bool segment_ledger::is_overdue(gpushm::generation generation, std::uint32_t uid) const noexcept {
  const auto place = attempts_.find(generation);
  return place != attempts_.end() && place->second.uid != uid &&
         std::chrono::steady_clock::now() - place->second.since >= time_to_return;
}

void segment_ledger::check_name(std::string_view name, const core::peer& peer) const {
  const auto missing = missing_.find(name);
  if (missing == missing_.end()) {
    return;
  }
  const auto left = end_of(std::min<std::chrono::milliseconds>(time_of_names, with_.return_time)) -
                    std::chrono::steady_clock::now();
  if (left <= core::time_point::duration::zero()) {
    return;
  }
  const auto known = read(places_.at(missing->second).index);
  if (known && known->has_creator != 0 &&
      core::is_same_member({0, known->creator_uid, true, known->principal()}, peer)) {
    return;  // it could also remove the segment
  }
  throw error(errc::writer_ending,
              {},
              {},
              "the segment of this name was lost with the broker and its keeper, and members may "
              "hand it back for another " +
                  std::to_string(std::chrono::ceil<std::chrono::seconds>(left).count()) + " s",
              "try again then; an open with a timeout waits for the segment");
}

bool segment_ledger::is_missing(gpushm::generation generation) const noexcept {
  const auto place = places_.find(generation);
  return place != places_.end() && place->second.is_missing && place->second.is_published;
}

void segment_ledger::check_publication(gpushm::generation generation,
                                       std::span<const std::byte> metadata) const {
  if (!is_missing(generation)) {
    return;
  }
  const auto known = read(places_.at(generation).index);
  if (!known || !are_equal(known->metadata, code_of_metadata(metadata))) {
    throw error(errc::permission_denied,
                {},
                {},
                "the segment that is handed back was published with other metadata",
                "publish the metadata that it had");
  }
}

/// Records that it is no longer missing.
void segment_ledger::found(places::iterator place, const std::string& name) noexcept {
  place->second.is_missing = false;
  missing_.erase(name);
  attempts_.erase(place->first);
  if (is_continuing_) {
    return;
  }
  ++returned_;
  if (missing_.empty()) {
    report_returned("none is missing");
  }
}

/// A member may hand the last one back again and again.
void segment_ledger::report_returned(const char* more) noexcept {
  if (returned_ == 0 || std::exchange(has_reported_returned_, true)) {
    return;
  }
  try {
    log_about_broker(log_level::info,
                     "domain " + with_.domain + ": clients have handed back " +
                         std::to_string(returned_) +
                         (returned_ == 1 ? " segment, " : " segments, ") + more);
  } catch (const std::bad_alloc&) {
    failed("the number of segments that clients have handed back cannot be logged");
  }
}

// ---- what exists ----

segment_ledger::row segment_ledger::row_of(const core::segment& segment,
                                           const page_identity& page) const {
  row result;
  result.page = page;
  result.has_creator = 1;
  result.creator_uid = segment.creator.uid;
  if (const core::principal& of = segment.creator.principal;
      of.vouched_for && of.key.size() <= result.principal_text.size()) {
    result.principal_bytes = static_cast<std::uint8_t>(of.key.size());
    std::copy(of.key.begin(), of.key.end(), result.principal_text.begin());
  }
  result.generation = segment.generation;
  result.allocated_bytes = segment.allocated_bytes;
  result.facts = code_of_facts(segment, segment.creator.uid);
  if (segment.published) {
    result.metadata = code_of_metadata(segment.metadata ? std::span(segment.metadata->bytes)
                                                        : std::span<const std::byte>());
    result.is_published = 1;
  }
  result.replaces = segment.replaces;
  result.is_persistent = segment.lifetime == lifetime::persistent ? 1 : 0;
  result.name_bytes = static_cast<std::uint16_t>(segment.name.size());
  std::copy_n(segment.name.begin(),
              std::min(segment.name.size(), result.name_text.size()),
              result.name_text.begin());
  return result;
}

void segment_ledger::note(const core::segment& segment, const page_identity& page) noexcept {
  const auto entry = places_.find(segment.generation);
  if (segment.removed) {
    if (entry != places_.end()) {
      if (entry->second.is_missing) {
        missing_.erase(segment.name);
      }
      drop(entry);
    }
    return;
  }
  try {
    if (entry == places_.end()) {
      add(segment, page);
      return;
    }
    place& known = entry->second;
    if (known.is_missing && (segment.published || !known.is_published)) {
      found(entry, segment.name);
    }
    const bool is_published_now = segment.published && !known.is_published;
    const bool is_page_now = page.is_known() && !known.has_page && !known.is_missing;
    if (is_published_now || is_page_now) {
      write(known.index, row_of(segment, page));
      known.is_published = segment.published;
      known.has_page = page.is_known();
    }
  } catch (const std::exception& why) {
    failed(why.what());
  }
}

void segment_ledger::add(const core::segment& segment, const page_identity& page) {
  if (!segment.creator.uid_known) {  // nobody could have a receipt
    return;
  }
  if (const auto same_name = missing_.find(segment.name); same_name != missing_.end()) {
    if (!is_continuing_) {  // otherwise the last broker could not write its end
      log_about_members(log_level::warning,
                        "segment " + segment.name + " of domain " + with_.domain +
                            " is lost: another one was created before it was handed back");
      lost_ += 1;
    }
    const auto replaced = places_.find(same_name->second);
    missing_.erase(same_name);
    drop(replaced);
  }
  std::uint32_t index = next_index_;
  if (!free_.empty()) {
    index = free_.back();
  }
  if (free_.capacity() <= next_index_) {  // `drop` must not fail
    free_.reserve(std::size_t{next_index_} * 2 + 16);
  }
  const auto entry = places_.emplace(segment.generation,
                                     place{index,
                                           segment.published,
                                           segment.lifetime == lifetime::persistent,
                                           false,
                                           page.is_known()});
  try {
    write(index, row_of(segment, page));
  } catch (...) {
    places_.erase(entry.first);
    throw;
  }
  if (index == next_index_) {
    ++next_index_;
  } else {
    free_.pop_back();
  }
}

void segment_ledger::erase(gpushm::generation generation) noexcept {
  if (const auto place = places_.find(generation);
      place != places_.end() && !place->second.is_missing) {
    drop(place);
  }
}

void segment_ledger::erase_others(const std::unordered_set<gpushm::generation>& existing) noexcept {
  for (auto place = places_.begin(); place != places_.end();) {
    const auto one = place++;
    if (!one->second.is_missing && existing.count(one->first) == 0) {
      drop(one);
    }
  }
}

void segment_ledger::drop(places::iterator place) noexcept {
  const std::uint32_t index = place->second.index;
  attempts_.erase(place->first);
  places_.erase(place);
  try {
    write(index, {});
    free_.push_back(index);
  } catch (const std::exception& why) {
    failed(why.what());
  }
}

void segment_ledger::end_continuing() noexcept {
  std::erase_if(missing_, [&](const auto& each) {
    const bool has_ended = each.second >= first_generation_;
    if (has_ended) {
      drop(places_.find(each.second));
    }
    return has_ended;
  });
  is_continuing_ = false;
}

void segment_ledger::give_up() noexcept {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::string names;
  attempts_.clear();
  for (const auto& [name, generation] : std::exchange(missing_, {})) {
    const auto one = places_.find(generation);
    try {
      const auto known = one->second.is_persistent ? read(one->second.index) : std::nullopt;
      if (known) {
        bytes += known->allocated_bytes;
        if (++count <= names_in_report) {
          names.append(names.empty() ? "" : ", ").append(name);
        }
      }
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): only a name is missing
    }
    drop(one);
  }
  lost_ += count;
  report_returned(count == 0 ? "none is missing" : "others are lost");
  if (count == 0) {
    return;
  }
  try {
    log_about_broker(log_level::error,
                     "domain " + with_.domain + ": " + std::to_string(count) +
                         " persistent segments of " + base::size_text(bytes) +
                         " were lost with the broker and its keeper, no process had them open: " +
                         names + (count > names_in_report ? ", …" : ""));
  } catch (const std::bad_alloc&) {
    failed("persistent segments were lost with the broker and its keeper");
  }
}

void segment_ledger::end() noexcept {
  if (file_) {
    ::unlink(with_.path.c_str());
    file_.reset();
  }
}

}  // namespace gpushm::succession
