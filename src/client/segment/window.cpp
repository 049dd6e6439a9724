// SPDX-License-Identifier: Apache-2.0
#include "client/segment/window.hpp"

#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/report/log.hpp"
#include "client/segment/remapping.hpp"
#include "client/session/fork_guard.hpp"
#include "gpushm/error.hpp"

namespace gpushm::client_detail {

namespace {

constexpr std::string_view no_host_memory = "there is not enough host memory";

void check_kind(const gpushm_segment& segment, std::string_view operation) {
  if (!segment.region().can_be_suspended()) {
    throw error(errc::not_supported,
                operation,
                segment.info().name,
                "memory of this kind cannot be unmapped and mapped again at an address",
                "make windows of segments of the backends cuda-vmm and host only");
  }
  static_cast<void>(segment.lease(operation));  // throws if there is none
}

/// A use of `segment`, so that `suspend` does not free its memory.
segment_ptr use_mapped(const gpushm_segment& segment, std::string_view operation) {
  const std::lock_guard lock(segment.mapped().suspended_as().mutex);
  if (segment.region().suspended()) {
    throw error(errc::invalid_argument,
                operation,
                segment.info().name,
                "the segment is suspended: its memory may be freed",
                "resume it first");
  }
  return use_again(segment);
}

std::unique_ptr<memory::region> map_at_new_addresses(const gpushm_segment& segment,
                                                     const segment_lease::kept_chunks& own) {
  const wire::segment& info = segment.info();
  const auto backend =
      memory::backend_for_open(info.backend, info.device, segment.mapped().device());
  leased_chunks chunks(segment.mapped().shared_lease(), own, segment.request_limit());
  return backend->import(
      {info.name, info.allocated_bytes, segment.mapped().access(), info.offset_bytes}, chunks);
}

}  // namespace

// ---- create, end ----

window_impl::window_impl(const gpushm_segment& segment)
    : size_bytes_(segment.info().size_bytes),
      access_(segment.mapped().access()),
      ordinal_(segment.mapped().ordinal()) {
  const std::string& name = segment.info().name;
  check_not_forked(segment.forks(), "window", name);
  try {
    check_kind(segment, "window");
    shown_ = take(segment, "window");
    region_ = map_at_new_addresses(*shown_->segment, shown_->chunks);
  } catch (const error& why) {
    throw why.in("window", name);
  }
}

window_impl::~window_impl() {
  if (forks_ != fork_count()) {
    leak(shown_);
    static_cast<void>(region_.release());
    return;
  }
  const base::held_log_lines lines;
  region_.reset();
  shown_.reset();
}

window_impl::source_ptr window_impl::take(const gpushm_segment& segment,
                                          std::string_view operation) {
  auto result = std::make_shared<source>();
  result->segment = use_mapped(segment, operation);
  result->chunks = copy_chunks(segment.mapped().shared_lease(), segment.request_limit());
  if (result->chunks.files.empty()) {
    throw error(errc::too_many_descriptors,
                operation,
                segment.info().name,
                "there is no room for the descriptors of its " +
                    std::to_string(segment.info().chunk_count) + " chunks",
                "raise the limit of open files, or create the segment with larger chunks");
  }
  return result;
}

// ---- show ----

void window_impl::check_layout(const gpushm_segment& segment) const {
  const wire::segment& next = segment.info();
  const source_ptr shown = this->shown();
  const wire::segment& now = shown->segment->info();
  const auto refuse = [&](errc code, const std::string& cause, std::string_view next_step) {
    throw error(code, "show", next.name, cause, next_step);
  };
  if (segment.mapped().device() != shown->segment->mapped().device() ||
      next.device.text() != now.device.text()) {
    refuse(errc::invalid_argument,
           "it is in memory of " + next.device.text() + " for " + segment.mapped().device() +
               ", and the window in memory of " + now.device.text() + " for " +
               shown->segment->mapped().device(),
           "show a segment of the window's device, opened for the same device");
  }
  if (segment.mapped().access() != access_) {
    refuse(errc::invalid_argument,
           "it is mapped for " + std::string(to_string(segment.mapped().access())) +
               ", and the window for " + std::string(to_string(access_)),
           "open it with the window's access");
  }
  const auto compare = [&](std::uint64_t has, std::uint64_t needs, const char* unit) {
    if (has != needs) {
      refuse(errc::size_mismatch,
             "it has " + std::to_string(has) + unit + ", and the window " + std::to_string(needs),
             "show a segment of the window's layout, or make another window");
    }
  };
  compare(next.size_bytes, size_bytes_, " bytes");
  compare(next.allocated_bytes, now.allocated_bytes, " allocated bytes");
  compare(next.offset_bytes, now.offset_bytes, " bytes before its first");
  compare(next.chunk_count, now.chunk_count, " chunks");
}

void window_impl::map(const source& memory) {
  leased_chunks chunks(
      memory.segment->mapped().shared_lease(), memory.chunks, memory.segment->request_limit());
  region_->resume(chunks);
}

void window_impl::map_again_after(const error& why) {
  if (!region_->suspended()) {
    throw why;
  }
  std::string cause;
  try {
    map(*shown_);
  } catch (const error& other) {
    cause = other.cause();
  } catch (const std::bad_alloc&) {
    cause = no_host_memory;
  }
  if (cause.empty()) {
    throw why;
  }
  throw error(why.code(),
              "show",
              {},
              why.cause() + "; and the former memory could not be mapped again: " + cause,
              "nothing is mapped now: show a segment again",
              why.details());
}

void window_impl::change_to(const source& next) {
  try {
    region_->suspend();
    map(next);
  } catch (const error& why) {
    map_again_after(why);
  } catch (const std::bad_alloc&) {
    map_again_after({errc::out_of_memory, "show", {}, no_host_memory, "free memory, and repeat"});
  }
}

void window_impl::show(const gpushm_segment& segment) {
  const std::string& name = segment.info().name;
  check_not_forked(forks_, "show", name);
  check_not_forked(segment.forks(), "show", name);
  source_ptr former;  // ends without a lock
  const std::lock_guard changing(change_mutex_);
  try {
    check_kind(segment, "show");
    check_layout(segment);
    const bool is_shown = segment.mapped().lease() == shown_->segment->mapped().lease();
    if (is_shown && !region_->suspended()) {
      return;
    }
    former = take(segment, "show");
    if (former->chunks.bytes != shown_->chunks.bytes) {
      throw error(errc::size_mismatch,
                  "show",
                  name,
                  "its chunks have other sizes than those of the window",
                  "create segments for one window with the same chunk size");
    }
    check_idle(ordinal_, "show", name);
    change_to(*former);
  } catch (const error& why) {
    throw why.in("show", name);
  }
  const std::lock_guard lock(shown_mutex_);
  shown_.swap(former);
}

// ---- what is shown ----

window_impl::source_ptr window_impl::shown() const {
  const std::lock_guard lock(shown_mutex_);
  return shown_;
}

segment_ptr window_impl::segment() const {
  check_not_forked(forks_, "window", {});
  return use_again(*shown()->segment);
}

segment_state window_impl::state() const noexcept {
  if (is_forked_child_of(forks_)) {
    return segment_state::unknown;
  }
  const segment_state of_segment = shown()->segment->mapped().lease()->state();
  return region_->suspended() && of_segment != segment_state::device_lost ? segment_state::suspended
                                                                          : of_segment;
}

}  // namespace gpushm::client_detail
