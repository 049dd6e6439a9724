// SPDX-License-Identifier: Apache-2.0
#include "client/timeline/timelines.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "base/segments/names.hpp"
#include "client/segment/offers.hpp"
#include "client/segment/segment_impl.hpp"
#include "client/segment/unique_name.hpp"
#include "client/timeline/timeline_impl.hpp"
#include "sync/timeline_page_file.hpp"
#include "sync/timeline_place.hpp"

namespace gpushm::client_detail {

namespace {

wire::reserve reservation(std::string name, std::uint64_t size_bytes, backend kind) {
  wire::reserve result;
  result.name = std::move(name);
  result.size_bytes = size_bytes;
  result.allocated_bytes = size_bytes;
  result.chunk_count = kind == backend::signals ? 1 : 0;
  result.backend = kind;
  return result;
}

/// Keeps the descriptors for a hand-back, after the death of this broker and its keeper.
void keep_chunks(segment_lease& lease, std::vector<base::guarded_fd> files) {
  if (auto kept = lease.begin_keeping()) {
    kept->bytes.assign(files.size(), lease.info().allocated_bytes);
    kept->files = std::move(files);
    lease.finish_keeping(std::move(*kept));
  }
}

error no_timeline(std::string_view name) {
  return {errc::protocol_error,
          "open",
          name,
          "its creator has sent a place in a page of another process",
          "report this as a bug of that program, or stop it"};
}

}  // namespace

std::shared_ptr<mapped_page> timelines::make_page(std::string name,
                                                  std::uint64_t bytes,
                                                  steady_time deadline) {
  auto [lease, file] = client_->reserve_with(
      reservation(std::move(name), bytes, backend::signals), "create", deadline);
  sync::fill_timeline_page(file.get(), bytes);  // the broker has allocated nothing
  auto result = std::make_shared<mapped_page>(lease, file.get(), true);
  lease->note_used();
  std::vector<base::guarded_fd> files;
  files.push_back(std::move(file));
  keep_chunks(*lease, std::move(files));
  lease->publish({}, "create", deadline);
  return result;
}

timeline_range timelines::take_timelines(std::uint32_t count, steady_time deadline) {
  return pages_.take(count, [&] {
    return make_page(unique_name("~signals-" + std::to_string(::getpid()) + "-"),
                     sync::timeline_page_bytes,
                     deadline);
  });
}

std::shared_ptr<segment_lease> timelines::reserve_timelines(std::string name,
                                                            const timeline_range& range,
                                                            std::uint32_t count,
                                                            steady_time deadline,
                                                            const std::stop_token& stop) {
  const wire::segment& page = range.page->lease().info();
  auto request = reservation(std::move(name), sizeof(std::uint64_t), backend::timeline);
  request.ticket = sync::encode({page.name, page.generation, range.first, count});
  auto lease = client_->reserve(std::move(request), "create", deadline, stop);
  lease->note_used();
  keep_chunks(*lease, {});
  return lease;
}

std::vector<std::unique_ptr<gpushm_timeline>> timelines::create_all(
    std::string_view name, const new_timelines& timelines) {
  const auto as = timelines.for_segment ? gpushm_timeline::role::signaler_for_segment
                                        : gpushm_timeline::role::signaler;
  const auto deadline = client_->request_deadline();
  const timeline_range range = take_timelines(timelines.count, deadline);
  std::shared_ptr<segment_lease> lease;
  try {
    for (std::uint32_t i = 0; i != timelines.count; ++i) {
      sync::timeline_writer(range.page->own_page(), range.first + i).reset(timelines.value);
    }
    while (!lease) {
      try {
        lease = reserve_timelines(std::string(name), range, timelines.count, deadline);
      } catch (const error& why) {
        if (why.code() != errc::already_exists ||
            std::chrono::steady_clock::now() >= timelines.wait_for_name_until) {
          throw;
        }
        base::pause_before_retry(std::chrono::milliseconds(1));
      }
    }
    std::vector<std::unique_ptr<gpushm_timeline>> result;
    result.reserve(timelines.count);
    for (std::uint32_t i = 0; i != timelines.count; ++i) {
      result.push_back(
          std::make_unique<gpushm_timeline>(shared_from_this(),
                                            lease,
                                            timeline_range{range.page, range.first + i},
                                            as,
                                            timelines.value));
    }
    lease->publish({}, timelines.operation, deadline);
    return result;
  } catch (...) {
    if (!lease) {
      pages_.release(range, timelines.count);
    }
    throw;
  }
}

std::unique_ptr<gpushm_timeline> timelines::create(std::string_view name) {
  client_->check_usable("create", name);
  base::check_name("create", name);
  return std::move(create_all(name, {}).front());
}

std::unique_ptr<gpushm_timeline> timelines::take_over(const std::string& name,
                                                      std::uint64_t value,
                                                      steady_time deadline) {
  new_timelines wanted;
  wanted.value = value;
  wanted.operation = "take over";
  wanted.wait_for_name_until = deadline;
  return std::move(create_all(name, wanted).front());
}

// ---- timelines of a segment: they have one name, which has the segment's generation ----

namespace {

std::string timelines_of(const segment_lease& segment) {
  return segment.info().name + "/~timelines-" + std::to_string(segment.generation());
}

}  // namespace

std::vector<std::unique_ptr<gpushm_timeline>> timelines::create_for(const gpushm_segment& segment,
                                                                    std::uint32_t count) {
  const segment_lease& lease = segment.lease("create timelines");
  if (!lease.is_creator()) {
    throw error(errc::invalid_argument,
                "create timelines",
                segment.info().name,
                "another process has created this segment",
                "create a timeline with a name of its own");
  }
  const std::string name = timelines_of(lease);
  client_->check_usable("create", name);
  base::check_name("create", name);
  new_timelines wanted;
  wanted.count = count;
  wanted.for_segment = true;
  return create_all(name, wanted);
}

std::unique_ptr<gpushm_timeline> timelines::open_for(const gpushm_segment& segment,
                                                     std::uint32_t index,
                                                     const open_options& options) {
  auto opened = open_timelines(timelines_of(segment.lease("open timeline")), 0, options);
  const wire::segment& memory = opened.lease->info();
  const wire::segment& with = segment.info();
  // Any process could have created that name.
  if (memory.creator_uid != with.creator_uid || memory.creator_pid != with.creator_pid) {
    throw no_timeline(memory.name);
  }
  if (index >= opened.count) {
    throw error(errc::invalid_argument,
                "open timeline",
                with.name,
                "timeline " + std::to_string(index) + " of " + std::to_string(opened.count),
                "pass an index from 0 to " + std::to_string(opened.count - 1));
  }
  opened.range.first += index;
  return std::make_unique<gpushm_timeline>(shared_from_this(),
                                           std::move(opened.lease),
                                           std::move(opened.range),
                                           gpushm_timeline::role::waiter_of_segment);
}

std::shared_ptr<mapped_page> timelines::open_page(const std::string& name,
                                                  gpushm::generation generation) {
  if (auto known = pages_.find(client_->broker()->broker().epoch, generation)) {
    return known;
  }
  const open_options options;
  offers none(options);
  auto received = client_->request_open(name, generation, options, none);
  const auto lease = client_->accept(received, name, 0, backend::signals);
  if (received.got.descriptors.size() != 1 || lease->info().generation != generation) {
    throw unexpected_reply({"open", name});
  }
  lease->note_used();
  auto result = std::make_shared<mapped_page>(lease, received.got.descriptors.front().get(), false);
  keep_chunks(*lease, std::move(received.got.descriptors));
  return pages_.remember(std::move(result));
}

opened_timelines timelines::open_timelines(std::string_view name,
                                           gpushm::generation generation,
                                           const open_options& options) {
  client_->check_usable("open", name);
  offers none(options);
  auto received = client_->request_open(name, generation, options, none);
  auto lease = client_->accept(received, name, 0, backend::timeline);
  lease->note_used();
  const auto place = sync::decode_place(lease->ticket());
  if (!place) {
    throw no_timeline(name);
  }
  auto page = open_page(place->page, place->generation);
  // A hostile process could name timelines of another one, whose end would not be seen.
  const wire::segment& segment = page->lease().info();
  const bool is_its_own = segment.creator_uid == lease->info().creator_uid &&
                          segment.creator_pid == lease->info().creator_pid;
  if (page->is_own() ? !lease->is_creator() : !is_its_own) {
    throw no_timeline(name);
  }
  return {std::move(lease), {std::move(page), place->first}, place->count};
}

std::unique_ptr<gpushm_timeline> timelines::open(std::string_view name,
                                                 const open_options& options,
                                                 gpushm::generation generation) {
  auto opened = open_timelines(name, generation, options);
  return std::make_unique<gpushm_timeline>(shared_from_this(),
                                           std::move(opened.lease),
                                           std::move(opened.range),
                                           gpushm_timeline::role::waiter);
}

}  // namespace gpushm::client_detail
