// SPDX-License-Identifier: Apache-2.0
// Creation of segments: of new memory, or of existing memory.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/segments/exporter_bound.hpp"
#include "base/segments/versioned_names.hpp"
#include "client/segment/client_impl.hpp"
#include "client/segment/creation.hpp"
#include "client/segment/remote_ticket.hpp"
#include "client/segment/segment_impl.hpp"
#include "gpu/memory/sources/source.hpp"

namespace gpushm::client_detail {

namespace {

/// Limit, in addition to the broker's delay, of the wait for a name of a dead process that may
/// still write: a program that is restarted immediately waits for its previous name. No event
/// reports when the name is free.
constexpr std::chrono::seconds name_retry_limit{5};
constexpr std::chrono::milliseconds name_poll{5};

}  // namespace

reply reserve_name(connection& broker,
                   const wire::reserve& reserve,
                   const subject& about,
                   steady_time deadline,
                   const std::stop_token& stop) {
  const auto retry_deadline =
      std::min(deadline, base::deadline_after(broker.broker().fence_delay + name_retry_limit));
  std::optional<error> last_failure;
  for (;;) {
    try {
      return broker.request(reserve, about, deadline);
    } catch (const error& why) {
      if (why.code() == errc::timed_out && last_failure) {
        throw error(*last_failure);  // the cause of the timeout
      }
      if (why.code() != errc::writer_ending || time_left(retry_deadline) < name_poll) {
        throw;
      }
      last_failure = why;
    }
    base::pause_before_retry(name_poll);
    if (stop.stop_requested()) {
      throw cancelled(about);
    }
  }
}

std::pair<std::shared_ptr<segment_lease>, base::guarded_fd> client_impl::reserve_with(
    wire::reserve reserve,
    std::string_view operation,
    steady_time deadline,
    const std::stop_token& stop) {
  const auto connected = broker(stop);
  reply got = reserve_name(*connected, reserve, {operation, reserve.name}, deadline, stop);
  const auto* reserved = std::get_if<wire::reserved>(&got.body);
  if (reserved == nullptr ||
      got.descriptors.size() != (reserve.backend == backend::signals ? 1U : 0U) ||
      reserved->generation == 0 || reserved->generation > max_generation) {
    throw unexpected_reply({operation, reserve.name});
  }
  wire::segment info{std::move(static_cast<base::segment_facts&>(reserve))};
  info.generation = reserved->generation;
  info.slot = reserved->slot;
  auto lease =
      leases_->take(connected,
                    {std::move(info), {}, std::move(reserve.ticket), reserved->receipt, true},
                    got.granted,
                    operation);
  return {std::move(lease),
          got.descriptors.empty() ? base::guarded_fd() : std::move(got.descriptors.front())};
}

segment_ptr client_impl::create(std::string_view name, const create_options& options) {
  check_usable("create", name);
  base::check_segment_name("create", name);
  const auto backend = memory::backend_for_create(options.device, options.huge_pages);
  const auto plan =
      memory::plan_chunks(options.size_bytes, options.chunk_bytes, backend->granularity());
  const auto deadline = request_deadline();
  // From here on an exception releases the lease, which ends the reservation.
  const auto lease = reserve({{{std::string(name),
                                options.size_bytes,
                                plan.total_bytes(),
                                backend->device(),
                                plan.count,
                                backend->kind(),
                                options.lifetime},
                               {},
                               options.replaces}},
                             "create",
                             deadline);
  auto memory = backend->allocate(name, plan, deadline);
  attach_chunks(
      *lease,
      *memory,
      plan.count,
      [&](std::uint32_t index) { return plan.size_of(index); },
      "create",
      deadline);
  memory->finish_exports();
  return first_user(lease, std::move(memory), backend->device());
}

segment_ptr client_impl::first_user(const std::shared_ptr<segment_lease>& lease,
                                    std::shared_ptr<memory::region> memory,
                                    const device_id& device) {
  auto mapped = std::make_shared<mapping>(lease, std::move(memory), access::read_write, device);
  lease->put(mapped);
  leases_->use(mapped);
  return user_of(std::move(mapped));
}

// ---- existing memory ----

segment_ptr client_impl::share(std::string_view name,
                               void* pointer,
                               std::uint64_t size_bytes,
                               const share_options& options) {
  check_usable("share", name);
  base::check_segment_name("share", name);
  const std::shared_ptr<memory::source> source = memory::find_source(name, pointer, size_bytes);
  const bool bound = base::is_exporter_bound(source->kind());
  if (bound && options.lifetime == lifetime::persistent) {
    throw error(errc::invalid_argument,
                "share",
                name,
                "cudaMalloc and pool memory is bound to its process and cannot be persistent",
                "share it as leased, or create a persistent segment and copy");
  }
  const auto deadline = request_deadline();
  const auto lease =
      reserve({{{std::string(name),
                 size_bytes,
                 source->allocated_bytes(),
                 source->device(),
                 static_cast<std::uint32_t>(source->chunk_bytes().size()),
                 source->kind(),
                 options.lifetime,
                 source->offset_bytes()},
                bound ? wire::encode_ticket(describe(*source)) : std::vector<std::byte>()}},
              "share",
              deadline);
  attach_chunks(
      *lease,
      *source,
      lease->info().chunk_count,
      [&](std::uint32_t index) { return source->chunk_bytes().at(index); },
      "share",
      deadline);
  lease->share(source);
  auto shared =
      first_user(lease,
                 memory::own_memory(name, source->address(), size_bytes, source->device()),
                 source->device());
  if (options.publish) {
    lease->publish(std::as_bytes(std::span(options.metadata)), "share", deadline);
  }
  return shared;
}

}  // namespace gpushm::client_detail
