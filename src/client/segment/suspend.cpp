// SPDX-License-Identifier: Apache-2.0
// Segments that are unmapped for a time (docs/adr/0047-step-aside.md).
#include "client/segment/suspend.hpp"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/process/deadline.hpp"
#include "client/segment/creation.hpp"
#include "client/segment/remapping.hpp"
#include "client/segment/segment_impl.hpp"
#include "client/session/fork_guard.hpp"
#include "client/session/reply_check.hpp"
#include "gpushm/error.hpp"

namespace gpushm::client_detail {

namespace {

// ---- keep ----

void unmap(const gpushm_segment& segment, mapping::suspension& suspension) {
  try {
    segment.region().suspend();
  } catch (const error&) {
    if (!segment.region().suspended()) {
      suspension.chunks = {};
    }
    throw;
  }
}

void map(const gpushm_segment& segment, const segment_lease::kept_chunks& own) {
  leased_chunks chunks(segment.mapped().shared_lease(), own, segment.request_limit());
  segment.region().resume(chunks);
}

// ---- host, discard ----

/// Throws unless this client has created the segment, and nobody else has it.
void check_sole_user(const gpushm_segment& segment, segment_lease& lease) {
  const std::string& name = segment.info().name;
  if (!lease.is_creator()) {
    throw error(errc::invalid_argument,
                "suspend",
                name,
                "another client has created this segment",
                "suspend it with keep, or have its creator suspend it");
  }
  if (segment.mapped().access() == access::read) {
    throw error(errc::invalid_argument,
                "suspend",
                name,
                "the segment is mapped for reading only",
                "use the object that created it");
  }
  const auto busy = [&](const std::string& cause, std::string_view next_step) {
    return error(errc::segment_busy, "suspend", name, cause, next_step);
  };
  lease_table& leases = segment.link().leases();
  if (leases.users(segment.mapped()) > 1) {
    throw busy("this process has also opened the segment",
               "close what it has opened, or suspend it with keep");
  }
  leases.end_unused(lease);
  if (lease.has_other_mappings(segment.mapped())) {
    throw busy("this process has the segment mapped for another access or device",
               "close what it has opened, or suspend it with keep");
  }
  reply got = lease.broker()->request(wire::stat{name, lease.generation()},
                                      {"suspend", name},
                                      base::deadline_after(segment.request_limit()));
  const auto* const page = std::get_if<wire::listing>(&got.body);
  if (page == nullptr || page->segments.size() != 1) {
    throw unexpected_reply({"suspend", name});
  }
  if (const std::uint32_t all = page->segments.front().leases; all > 1) {
    throw busy(std::to_string(all - 1) + " other connections have a lease",
               "have them close the segment, or suspend it with keep");
  }
}

/// How to allocate such memory again: with chunks of the same sizes. Throws not_supported.
memory::chunk_plan plan_of(const wire::segment& info, std::uint64_t granularity) {
  const std::uint64_t rest = info.allocated_bytes % info.chunk_count;
  const memory::chunk_plan plan =
      memory::plan_chunks(info.allocated_bytes,
                          info.allocated_bytes / info.chunk_count + (rest == 0 ? 0 : 1),
                          granularity);
  if (info.offset_bytes != 0 || plan.total_bytes() != info.allocated_bytes ||
      plan.count != info.chunk_count) {
    throw error(errc::not_supported,
                "suspend",
                info.name,
                "its memory was not allocated by gpushm",
                "suspend it with keep, or create a segment and copy");
  }
  return plan;
}

bool has_huge_pages(int chunk) {
  struct statfs about {};
  return ::fstatfs(chunk, &about) == 0 && about.f_type == HUGETLBFS_MAGIC;
}

/// Copies the contents to new host memory. Throws out_of_memory, driver_error, timed_out.
std::unique_ptr<memory::region> copy_contents(const gpushm_segment& segment, steady_time deadline) {
  const auto host = memory::backend_for_create("host", false);
  const std::uint64_t size_bytes = segment.info().size_bytes;
  auto copy = host->allocate(
      segment.info().name, memory::plan_chunks(size_bytes, 0, host->granularity()), deadline);
  copy->finish_exports();
  segment.region().read(0, {static_cast<std::byte*>(copy->data()), size_bytes});
  return copy;
}

/// Frees the memory, whose chunks `suspension` has. After a failure it is mapped again.
void step_aside(const gpushm_segment& segment, mapping::suspension& suspension) {
  const std::string& name = segment.info().name;
  const auto& lease = segment.mapped().shared_lease();
  unmap(segment, suspension);
  try {
    static_cast<void>(lease->broker()->request(wire::remove{name, lease->generation()},
                                               {"suspend", name},
                                               base::deadline_after(segment.request_limit())));
  } catch (const error&) {
    map(segment, suspension.chunks);
    suspension.chunks = {};
    throw;
  }
  segment.link().leases().set_aside(lease);
  suspension.chunks = {};
}

/// Exports each chunk, and keeps a copy of it.
struct copied_exports {
  memory::allocation& memory;
  const memory::chunk_plan& plan;
  segment_lease::kept_chunks& copies;
  std::string_view name;

  [[nodiscard]] base::guarded_fd export_chunk(std::uint32_t index) const {
    copies.files.push_back(memory.export_chunk(index));
    copies.bytes.push_back(plan.size_of(index));
    return copies.copy(index, name).file;
  }
};

/// Allocates memory for the lease, which has been granted, and maps it at the old address.
void fill_lease(const gpushm_segment& segment,
                const mapping::suspension& suspension,
                steady_time deadline) {
  const std::string& name = segment.info().name;
  segment_lease& lease = *segment.mapped().lease();
  segment_lease::kept_chunks chunks;
  {
    const auto memory = suspension.home->allocate(name, suspension.plan, deadline);
    copied_exports exports{*memory, suspension.plan, chunks, name};
    attach_chunks(
        lease,
        exports,
        suspension.plan.count,
        [&](std::uint32_t index) { return suspension.plan.size_of(index); },
        "resume",
        deadline);
  }
  map(segment, chunks);
  try {
    if (suspension.contents) {
      segment.region().write(
          0,
          {static_cast<const std::byte*>(suspension.contents->data()), segment.info().size_bytes});
    }
    if (lease.published()) {
      lease.publish(lease.metadata(), "resume", base::deadline_after(segment.request_limit()));
    }
  } catch (const error&) {
    segment.region().suspend();
    throw;
  }
}

/// Makes a new segment of the same name for the lease. After a failure there is none.
void come_back(const gpushm_segment& segment, const mapping::suspension& suspension) {
  const std::string& name = segment.info().name;
  const auto& lease = segment.mapped().shared_lease();
  const auto deadline = base::deadline_after(segment.request_limit());
  const auto connected = segment.link().get();
  reply got = reserve_name(*connected,
                           {{static_cast<const base::segment_facts&>(segment.info())}},
                           {"resume", name},
                           deadline,
                           {});
  const auto* const reserved = std::get_if<wire::reserved>(&got.body);
  if (reserved == nullptr || !got.descriptors.empty() || reserved->generation == 0 ||
      reserved->generation > max_generation) {
    throw unexpected_reply({"resume", name});
  }
  lease_table& leases = segment.link().leases();
  leases.restart(lease, connected, {reserved->slot, reserved->receipt, reserved->generation});
  got.granted.keep();
  try {
    fill_lease(segment, suspension, deadline);
  } catch (...) {
    leases.set_aside(lease);
    throw;
  }
}

/// Gathers in `suspension` what a resume needs. Changes nothing else.
void prepare(const gpushm_segment& segment, suspend_mode mode, mapping::suspension& suspension) {
  const wire::segment& info = segment.info();
  segment_lease& lease = segment.lease("suspend");
  if (mode != suspend_mode::keep) {
    check_sole_user(segment, lease);
  }
  check_idle(segment.mapped().ordinal(), "suspend", info.name);
  auto chunks = copy_chunks(segment.mapped().shared_lease(), segment.request_limit());
  if (mode == suspend_mode::keep) {
    suspension.chunks = std::move(chunks);
    return;
  }
  if (chunks.files.empty()) {
    throw error(errc::too_many_descriptors,
                "suspend",
                info.name,
                "there is no room for the descriptors of its " + std::to_string(info.chunk_count) +
                    " chunks",
                "raise the limit of open files, or create it with larger chunks");
  }
  auto home =
      memory::backend_for_create(info.device.text(), has_huge_pages(chunks.files.front().get()));
  suspension.plan = plan_of(info, home->granularity());
  suspension.contents = mode == suspend_mode::host
                            ? copy_contents(segment, base::deadline_after(segment.request_limit()))
                            : nullptr;
  suspension.home = std::move(home);
  suspension.chunks = std::move(chunks);
}

}  // namespace

void suspend(const gpushm_segment& segment, suspend_mode mode) {
  const std::string& name = segment.info().name;
  check_not_forked(segment.forks(), "suspend", name);
  mapping::suspension& suspension = segment.mapped().suspended_as();
  const std::lock_guard lock(suspension.mutex);
  memory::region& region = segment.region();
  try {
    if (region.suspended()) {
      if (suspension.mode != mode) {
        throw error(errc::invalid_argument,
                    "suspend",
                    name,
                    "the segment is suspended with " + std::string(to_string(suspension.mode)),
                    "resume it first");
      }
      return;
    }
    if (!region.can_be_suspended()) {
      region.suspend();  // throws
    }
    prepare(segment, mode, suspension);
    suspension.mode = suspend_mode::keep;
    if (mode == suspend_mode::keep) {
      unmap(segment, suspension);
    } else {
      step_aside(segment, suspension);
      suspension.mode = mode;
      if (mode == suspend_mode::discard) {
        segment.mapped().lease()->unpublish();  // until it has contents again
      }
    }
  } catch (const error& why) {
    suspension.contents = nullptr;
    throw why.in("suspend", name);
  }
}

void resume(const gpushm_segment& segment) {
  const std::string& name = segment.info().name;
  check_not_forked(segment.forks(), "resume", name);
  mapping::suspension& suspension = segment.mapped().suspended_as();
  const std::lock_guard lock(suspension.mutex);
  try {
    if (segment.region().suspended() && suspension.mode != suspend_mode::keep) {
      come_back(segment, suspension);
    } else {
      map(segment, suspension.chunks);
    }
  } catch (const error& why) {
    throw why.in("resume", name);
  }
  suspension.chunks = {};
  suspension.contents = nullptr;
  suspension.home = nullptr;
  suspension.mode = suspend_mode::keep;
}

}  // namespace gpushm::client_detail
