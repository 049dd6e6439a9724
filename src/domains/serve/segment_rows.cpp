// SPDX-License-Identifier: Apache-2.0
#include "domains/serve/segment_rows.hpp"

#include <algorithm>
#include <chrono>

namespace gpushm::domains {

segment_page page_of_segments(const core::domain& domain, std::uint32_t slot) {
  constexpr std::size_t slots_per_turn = 1'024;
  const auto now = std::chrono::steady_clock::now();
  segment_page result;
  const auto add = [&](const core::segment& each) -> std::size_t {
    segment_row row;
    row.name = each.name;
    row.generation = each.generation;
    row.principal = each.held ? each.held->who()->name() : each.creator.principal.key;
    row.creator_uid = each.creator.uid;
    row.creator_alive = each.creator_session != 0;
    row.size_bytes = each.size_bytes;
    row.allocated_bytes = each.allocated_bytes;
    row.device = each.device.text();
    row.lifetime = each.lifetime;
    row.state = each.state();
    row.published = each.published;
    row.leases = static_cast<std::uint32_t>(each.leases.size());
    row.holders = domain.holders_of(each, max_holders);
    const auto created = domain.creation_of(each.generation);
    row.age_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(now - created.at).count(), 0));
    row.is_age_known = created.is_known;
    result.all.push_back(std::move(row));
    return result.all.size() < max_segment_rows ? 0 : slots_per_turn;
  };
  const auto next = domain.visit_segments(slot, slots_per_turn, add);
  result.more = next.has_value();
  result.next_slot = next.value_or(0);
  return result;
}

}  // namespace gpushm::domains
