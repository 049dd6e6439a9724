// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "broker/hub/domain_recorder.hpp"
#include "broker/hub/segment_files.hpp"
#include "core/domain.hpp"

namespace gpushm::broker_detail {

/// The timeline pages of a domain, the only memory that a broker makes (docs/adr/0032).
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class timeline_pages {
 public:
  /// Both must outlive this object.
  timeline_pages(core::domain& domain, domain_recorder& record)
      : domain_(domain), record_(record) {}
  timeline_pages(const timeline_pages&) = delete;
  timeline_pages& operator=(const timeline_pages&) = delete;
  ~timeline_pages() = default;

  /// Throws size_mismatch.
  static void check_size(std::uint64_t bytes);
  /// Gives the files of a new segment its page: one descriptor for reading, one for writing. Throws
  /// as `domain_recorder::keep`, and system_error.
  void make(const core::segment& segment, segment_files& files);
  /// Takes the page that `given` is, of a segment that is handed back: `given` is open for reading
  /// then. Returns the descriptor that is open for writing. Throws wrong_descriptor_kind if it is
  /// not the page that this segment was, and as `make`.
  [[nodiscard]] succession::kept_fd take_handed_back(const core::segment& segment,
                                                     succession::kept_fd& given);
  /// The process that signals has ended: ends the words of the page, for all that wait for them. No
  /// effect on other segments.
  void end(gpushm::generation generation) noexcept;

 private:
  void check_return(const core::segment& segment, const succession::kept_fd& given) const;
  [[nodiscard]] bool charge_for_end(const core::segment& segment) noexcept;

  core::domain& domain_;
  domain_recorder& record_;
  /// Charges that are never returned, by their accounts.
  std::map<const core::account*, core::charges> for_ended_;
};

}  // namespace gpushm::broker_detail
