// SPDX-License-Identifier: Apache-2.0
#include "gpushm/client.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.hpp"
#include "base/names.hpp"
#include "client/client_impl.hpp"
#include "client/segment_impl.hpp"
#include "client/subscription_impl.hpp"

namespace gpushm {

namespace {

/// A broker's number beyond that is no time: 10,000 days.
constexpr std::uint64_t longest_ms = 10'000ULL * 24 * 3'600 * 1'000;

segment_info info_of(const wire::segment& from) {
  segment_info info;
  info.name = from.name;
  info.generation = from.generation;
  info.size_bytes = from.size_bytes;
  info.allocated_bytes = from.allocated_bytes;
  info.chunks = from.chunk_count;
  info.backend = from.backend;
  info.lifetime = from.lifetime;
  info.device = from.device;
  info.published = from.published;
  info.state = from.removed ? segment_state::removed : segment_state::live;
  info.leases = from.leases;
  info.creator_uid = from.creator_uid;
  info.creator_pid = from.creator_pid;
  info.creator_alive = from.creator_alive;
  info.metadata_bytes = from.metadata_bytes;
  info.ending = from.ending;
  info.ending_pid = from.ending_pid;
  info.ending_for = std::chrono::milliseconds(
      static_cast<std::int64_t>(std::min<std::uint64_t>(from.ending_ms, longest_ms)));
  info.ending_waits = from.ending_waits;
  return info;
}

/// The one check before everything else: no lock is taken in a forked child.
detail::client_impl& usable(const std::shared_ptr<detail::client_impl>& impl,
                            std::string_view operation,
                            std::string_view object = {}) {
  if (!impl) {
    throw error(errc::invalid_argument,
                "client",
                {},
                "this client object is empty",
                "connect first; a moved-from object is empty");
  }
  impl->check_usable(operation, object);
  return *impl;
}

wire::listing listing_of(detail::answer got, std::string_view operation, std::string_view object) {
  auto* page = std::get_if<wire::listing>(&got.body);
  if (page == nullptr) {
    throw detail::unexpected_answer({operation, object});
  }
  return std::move(*page);
}

}  // namespace

client::client(std::shared_ptr<detail::client_impl> impl) noexcept : impl_(std::move(impl)) {}
client::client(client&&) noexcept = default;
client& client::operator=(client&& other) noexcept {
  base::held_log_lines lines;
  impl_ = std::move(other.impl_);
  return *this;
}
client::~client() {
  base::held_log_lines lines;
  if (impl_ && impl_->forked()) {
    detail::keep_for_ever(impl_);
  }
  impl_.reset();
}

client client::connect(const connect_options& options) {
  base::held_log_lines lines;
  return client(std::make_shared<detail::client_impl>(options));
}

segment client::create(std::string_view name, const create_options& options) {
  base::held_log_lines lines;
  return segment(usable(impl_, "create", name).create(name, options));
}

segment client::share(std::string_view name,
                      void* pointer,
                      std::uint64_t size_bytes,
                      const share_options& options) {
  base::held_log_lines lines;
  return segment(usable(impl_, "share", name).share(name, pointer, size_bytes, options));
}

segment client::open(std::string_view name, const open_options& options) {
  base::held_log_lines lines;
  return segment(usable(impl_, "open", name).open(name, options));
}

std::optional<segment> client::try_open(std::string_view name, const open_options& options) {
  base::held_log_lines lines;
  auto opened = usable(impl_, "open", name).try_open(name, options);
  return opened ? std::optional(segment(std::move(opened))) : std::nullopt;
}

std::vector<open_result> client::open_many(std::span<const std::string> names,
                                           const open_options& options) {
  base::held_log_lines lines;
  std::vector<open_result> results;
  for (auto& outcome : usable(impl_, "open").open_many(names, options)) {
    results.push_back(outcome.failure ? open_result(*outcome.failure)
                                      : open_result(segment(std::move(outcome.opened))));
  }
  return results;
}

std::vector<segment_info> client::list(std::string_view prefix) {
  base::held_log_lines lines;
  const auto broker = usable(impl_, "list", prefix).broker();
  std::vector<segment_info> all;
  for (std::string after;;) {
    const wire::listing page = listing_of(
        broker->request(
            wire::list{std::string(prefix), after}, {"list", prefix}, impl_->request_deadline()),
        "list",
        prefix);
    for (const wire::segment& entry : page.segments) {
      all.push_back(info_of(entry));
    }
    if (!page.more || page.segments.empty()) {
      return all;
    }
    if (page.segments.back().name <= after) {  // it would never end
      throw detail::unexpected_answer({"list", prefix});
    }
    after = page.segments.back().name;
  }
}

segment_info client::stat(std::string_view name) {
  base::held_log_lines lines;
  static_cast<void>(usable(impl_, "stat", name));
  base::check_name("stat", name);
  const wire::listing page =
      listing_of(impl_->broker()->request(
                     wire::stat{std::string(name)}, {"stat", name}, impl_->request_deadline()),
                 "stat",
                 name);
  if (page.segments.size() != 1) {
    throw detail::unexpected_answer({"stat", name});
  }
  return info_of(page.segments.front());
}

void client::remove(std::string_view name) {
  base::held_log_lines lines;
  static_cast<void>(usable(impl_, "remove", name));
  base::check_name("remove", name);
  static_cast<void>(impl_->broker()->request(
      wire::remove{std::string(name), 0}, {"remove", name}, impl_->request_deadline()));
}

void client::unfence(std::string_view name) {
  base::held_log_lines lines;
  static_cast<void>(usable(impl_, "unfence", name));
  base::check_name("unfence", name);
  static_cast<void>(impl_->broker()->request(
      wire::unfence{std::string(name)}, {"unfence", name}, impl_->request_deadline()));
}

subscription client::subscribe(std::string_view prefix) {
  base::held_log_lines lines;
  static_cast<void>(usable(impl_, "subscribe", prefix));
  return subscription(std::make_shared<detail::subscription_impl>(impl_, std::string(prefix)));
}

broker_info client::broker() const {
  base::held_log_lines lines;
  return usable(impl_, "broker").broker()->broker();
}

gpushm::cache_stats client::cache_stats() const {
  return usable(impl_, "cache_stats").leases().stats();
}

void client::trim() {
  base::held_log_lines lines;
  usable(impl_, "trim").leases().trim();
}

}  // namespace gpushm
