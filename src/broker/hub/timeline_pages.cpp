// SPDX-License-Identifier: Apache-2.0
#include "broker/hub/timeline_pages.hpp"

#include <new>
#include <string>
#include <utility>

#include "broker/descriptors/chunk_kinds.hpp"
#include "broker/hub/reopen.hpp"
#include "sync/timeline_page.hpp"
#include "sync/timeline_page_file.hpp"

namespace gpushm::broker_detail {

void timeline_pages::check_size(std::uint64_t bytes) {
  if (!sync::is_timeline_page_size(bytes)) {
    throw error(errc::size_mismatch,
                {},
                {},
                "a timeline page has " + std::to_string(sync::timeline_page_bytes) + " to " +
                    std::to_string(sync::max_timeline_page_bytes) + " bytes, a multiple of 4,096",
                "reserve such a size");
  }
}

void timeline_pages::make(const core::segment& segment, segment_files& files) {
  files.chunks.reserve(2);
  files.chunks.push_back(record_.keep(sync::make_timeline_page(segment.allocated_bytes)));
  // The keeper may have no room for this one: the first one is then removed with `files`.
  succession::kept_fd readable =
      record_.keep(reopen_for_reading("make a timeline page", files.chunks.back().get()));
  files.chunks.push_back(std::move(readable));
  std::swap(files.chunks.front(), files.chunks.back());
  files.chunk_bytes = {segment.allocated_bytes};
}

succession::kept_fd timeline_pages::take_handed_back(const core::segment& segment,
                                                     succession::kept_fd& given) {
  constexpr const char* operation = "hand back a timeline page";
  check_return(segment, given);
  // Openers get one for reading, and the broker keeps the other one.
  if (sync::is_open_for_writing(given.get())) {
    return std::exchange(given, record_.keep(reopen_for_reading(operation, given.get())));
  }
  return record_.keep(reopen_for_writing(operation, given.get()));
}

/// Throws wrong_descriptor_kind. A page is handed back as itself: its readers have it mapped. What
/// its words are is up to the member that can write them, and so cannot show which page it is.
void timeline_pages::check_return(const core::segment& segment,
                                  const succession::kept_fd& given) const {
  const succession::page_identity lost = record_.page_of(segment.generation);
  const std::optional<bool> is_by_creator = files_of(segment).is_by_creator;
  const bool is_that_page = lost.is_known() ? succession::page_identity_of(given.get()) == lost
                                            : is_by_creator.value_or(false);
  // Only the creator was given a descriptor that is open for writing.
  const bool is_anothers = !is_by_creator.value_or(true) && sync::is_open_for_writing(given.get());
  if (!is_that_page || is_anothers) {
    throw_wrong_chunk_kind(segment.backend);
  }
}

void timeline_pages::end(gpushm::generation generation) noexcept {
  const core::segment* const segment = domain_.find_segment(generation);
  if (segment == nullptr || segment->backend != backend::signals || !segment->payload) {
    return;
  }
  if (const succession::kept_fd* const writable = files_of(*segment).writable()) {
    const bool is_paid = !sync::has_holes(writable->get()) || charge_for_end(*segment);
    sync::end_signals(writable->get(), is_paid ? sync::holes::fill : sync::holes::leave);
  }
}

/// The member has not filled the page, or has punched holes: what the broker must write there is
/// memory of its own control group, as long as any process has the page mapped, which no broker
/// sees. So that is charged for good. Members that use this library never pay that.
bool timeline_pages::charge_for_end(const core::segment& segment) noexcept {
  try {
    core::charges price = domain_.new_charges(segment);
    const auto at = for_ended_.try_emplace(price.who().get(), std::move(price)).first;
    return at->second.try_take(core::resource::memory_bytes, sync::ended_bytes);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace gpushm::broker_detail
