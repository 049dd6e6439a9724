// SPDX-License-Identifier: Apache-2.0
// Requests about segments that do not open them.
#include <string>
#include <utility>

#include "base/segments/versioned_names.hpp"
#include "client/segment/client_impl.hpp"

namespace gpushm::client_detail {

namespace {

wire::listing listing_of(reply reply, std::string_view operation, std::string_view object) {
  auto* page = std::get_if<wire::listing>(&reply.body);
  if (page == nullptr) {
    throw unexpected_reply({operation, object});
  }
  return std::move(*page);
}

}  // namespace

std::vector<wire::segment> client_impl::list(std::string_view prefix) {
  check_usable("list", prefix);
  std::vector<wire::segment> all;
  list_after(*broker(), prefix, all);
  return all;
}

void client_impl::list_after(connection& connection,
                             std::string_view prefix,
                             std::vector<wire::segment>& segments) const {
  for (;;) {
    const std::string after = segments.empty() ? std::string() : segments.back().name;
    wire::listing page = listing_of(
        connection.request(
            wire::list{std::string(prefix), after}, {"list", prefix}, request_deadline()),
        "list",
        prefix);
    if (!page.segments.empty() && page.segments.back().name <= after) {  // would loop forever
      throw unexpected_reply({"list", prefix});
    }
    const bool is_last = !page.more || page.segments.empty();
    segments.insert(segments.end(),
                    std::move_iterator(page.segments.begin()),
                    std::move_iterator(page.segments.end()));
    if (is_last) {
      return;
    }
  }
}

wire::segment client_impl::stat(std::string_view name, gpushm::generation generation) {
  check_usable("stat", name);
  base::check_segment_name("stat", name);
  wire::listing page =
      listing_of(broker()->request(
                     wire::stat{std::string(name), generation}, {"stat", name}, request_deadline()),
                 "stat",
                 name);
  if (page.segments.size() != 1) {
    throw unexpected_reply({"stat", name});
  }
  if (const auto current = page.segments.front().generation;
      generation != 0 && current != generation) {
    throw error(errc::gone_or_replaced,
                "stat",
                name,
                "another segment has this name now: generation " + std::to_string(current),
                "the generation that was meant has been removed; `gpushm ls` shows the one that "
                "has the name");
  }
  return std::move(page.segments.front());
}

void client_impl::remove(std::string_view name, gpushm::generation generation) {
  check_usable("remove", name);
  base::check_segment_name("remove", name);
  static_cast<void>(broker()->request(
      wire::remove{std::string(name), generation}, {"remove", name}, request_deadline()));
}

void client_impl::unfence(std::string_view name) {
  check_usable("unfence", name);
  base::check_segment_name("unfence", name);
  static_cast<void>(
      broker()->request(wire::unfence{std::string(name)}, {"unfence", name}, request_deadline()));
}

}  // namespace gpushm::client_detail
