// SPDX-License-Identifier: Apache-2.0
#include "gpushm/client.hpp"

#include <utility>

#include "base/names.hpp"
#include "client/client_impl.hpp"
#include "client/segment_impl.hpp"
#include "client/subscription_impl.hpp"

namespace gpushm {

namespace {

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
  return info;
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
client& client::operator=(client&&) noexcept = default;
client::~client() {
  if (impl_ && impl_->forked()) {
    detail::keep_for_ever(impl_);
  }
}

client client::connect(const connect_options& options) {
  return client(std::make_shared<detail::client_impl>(options));
}

segment client::create(std::string_view name, const create_options& options) {
  return segment(impl_->create(name, options));
}

segment client::share(std::string_view name,
                      void* pointer,
                      std::uint64_t size_bytes,
                      const share_options& options) {
  return segment(impl_->share(name, pointer, size_bytes, options));
}

void client::unshare(std::string_view name) {
  impl_->unshare(name);
}

segment client::open(std::string_view name, const open_options& options) {
  return segment(impl_->open(name, options));
}

std::optional<segment> client::try_open(std::string_view name, const open_options& options) {
  try {
    return open(name, options);
  } catch (const error& why) {
    if (why.code() == errc::no_such_segment) {
      return std::nullopt;
    }
    throw;
  }
}

std::vector<open_result> client::open_many(std::span<const std::string> names,
                                           const open_options& options) {
  std::vector<open_result> results;
  for (auto& outcome : impl_->open_many(names, options)) {
    results.push_back({segment(std::move(outcome.opened)), std::move(outcome.failure)});
  }
  return results;
}

std::vector<segment_info> client::list(std::string_view prefix) {
  impl_->check_usable("list", prefix);
  const auto broker = impl_->broker();
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
    after = page.segments.back().name;
  }
}

segment_info client::stat(std::string_view name) {
  impl_->check_usable("stat", name);
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
  impl_->check_usable("remove", name);
  base::check_name("remove", name);
  static_cast<void>(impl_->broker()->request(
      wire::remove{std::string(name), 0}, {"remove", name}, impl_->request_deadline()));
}

subscription client::subscribe(std::string_view prefix) {
  impl_->check_usable("subscribe", prefix);
  return subscription(std::make_shared<detail::subscription_impl>(impl_, std::string(prefix)));
}

broker_info client::broker() const {
  return impl_->broker()->broker();
}

gpushm::cache_stats client::cache_stats() const {
  return impl_->cache().stats();
}

void client::trim() {
  impl_->check_usable("trim", {});
  impl_->cache().trim();
}

}  // namespace gpushm
