// SPDX-License-Identifier: Apache-2.0
// Segments that this process makes: of new memory, or of memory that exists.
#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/exporter_bound.hpp"
#include "base/names.hpp"
#include "base/syscall.hpp"
#include "client/client_impl.hpp"
#include "client/remote_descriptor.hpp"
#include "client/segment_impl.hpp"
#include "memory/source.hpp"

namespace gpushm::detail {

namespace {

/// Attaches all chunks, batch by batch; each batch's descriptors are closed once it is sent, so
/// that a process with few descriptors can share many chunks. `Exporter` has `export_chunk(index)`,
/// `size_of(index)`.
template <typename Exporter, typename SizeOf>
void attach_chunks(const attachment& lease,
                   Exporter& memory,
                   std::uint32_t count,
                   SizeOf&& size_of,
                   std::string_view operation,
                   steady_time deadline) {
  for (std::uint32_t first = 0; first < count;) {
    const std::uint32_t end =
        std::min<std::uint32_t>(count, first + static_cast<std::uint32_t>(wire::max_batch));
    std::vector<base::guarded_fd> chunks;
    std::vector<int> numbers;
    wire::attach batch{lease.info().generation, first, {}};
    for (std::uint32_t i = first; i < end; ++i) {
      chunks.push_back(memory.export_chunk(i));
      numbers.push_back(chunks.back().get());
      batch.chunk_bytes.push_back(size_of(i));
    }
    static_cast<void>(lease.broker().request(
        std::move(batch), {operation, lease.info().name}, deadline, numbers));
    first = end;
  }
}

/// A name that a dead process had is free once that can write nothing any more: a program that is
/// started again at once waits for it, for the broker's delay and for so long. There is no event
/// for it.
constexpr std::chrono::seconds name_patience{5};
constexpr std::chrono::milliseconds name_poll{5};

answer ask_for_name(connection& broker,
                    const wire::reserve& wanted,
                    const subject& about,
                    steady_time deadline) {
  const auto give_up =
      std::min(deadline, base::deadline_after(broker.broker().fence_delay + name_patience));
  std::optional<error> waited_for;
  for (;;) {
    try {
      return broker.request(wanted, about, deadline);
    } catch (const error& why) {
      if (why.code() == errc::timed_out && waited_for) {
        throw error(*waited_for);  // that is what took the time
      }
      if (why.code() != errc::writer_ending || time_left(give_up) < name_poll) {
        throw;
      }
      waited_for = why;
    }
    base::pause_before_retry(name_poll);
  }
}

}  // namespace

std::shared_ptr<attachment> client_impl::reserve(const std::shared_ptr<connection>& broker,
                                                 wire::reserve wanted,
                                                 std::string_view operation,
                                                 steady_time deadline) {
  answer got = ask_for_name(*broker, wanted, {operation, wanted.name}, deadline);
  const auto* reserved = std::get_if<wire::reserved>(&got.body);
  if (reserved == nullptr || !got.descriptors.empty() || reserved->generation == 0 ||
      reserved->generation > max_generation) {
    throw unexpected_answer({operation, wanted.name});
  }
  wire::segment info{std::move(static_cast<base::segment_facts&>(wanted))};
  info.generation = reserved->generation;
  info.slot = reserved->slot;
  auto lease = std::make_shared<attachment>(
      broker, std::move(info), std::vector<std::byte>{}, std::move(wanted.descriptor));
  got.granted.keep();  // from here on it is the attachment's
  add_attachment(lease);
  return lease;
}

std::unique_ptr<segment_impl> client_impl::create(std::string_view name,
                                                  const create_options& options) {
  check_usable("create", name);
  base::check_name("create", name);
  const auto backend = memory::backend_for_create(options.device, options.huge_pages);
  const auto plan =
      memory::plan_chunks(options.size_bytes, options.chunk_bytes, backend->granularity());
  const auto deadline = request_deadline();
  const auto lease = reserve(broker(),
                             {std::string(name),
                              options.size_bytes,
                              plan.total_bytes(),
                              backend->device(),
                              plan.count,
                              backend->kind(),
                              options.lifetime,
                              0,
                              {}},
                             "create",
                             deadline);
  // From here on an exception gives the lease back, and the reservation ends with it.
  const std::string device = backend->device().text();
  return user_of(lease->find_or_map(device, access::read_write, [&] {
    auto memory = backend->allocate(name, plan, deadline);
    attach_chunks(
        *lease,
        *memory,
        plan.count,
        [&](std::uint32_t index) { return plan.size_of(index); },
        "create",
        deadline);
    memory->finish_exports();
    return std::make_shared<mapping>(lease, std::move(memory), access::read_write, device);
  }));
}

// ---- memory that exists ----

std::unique_ptr<segment_impl> client_impl::share(std::string_view name,
                                                 void* pointer,
                                                 std::uint64_t size_bytes,
                                                 const share_options& options) {
  check_usable("share", name);
  base::check_name("share", name);
  const std::shared_ptr<memory::source> found = memory::find_source(name, pointer, size_bytes);
  const bool bound = base::is_exporter_bound(found->kind());
  if (bound && options.lifetime == lifetime::persistent) {
    throw error(errc::invalid_argument,
                "share",
                name,
                "cudaMalloc and pool memory stays its process's and cannot be persistent",
                "share it as leased, or create a persistent segment and copy");
  }
  const auto deadline = request_deadline();
  const auto lease =
      reserve(broker(),
              {std::string(name),
               size_bytes,
               found->allocated_bytes(),
               found->device(),
               static_cast<std::uint32_t>(found->chunk_bytes().size()),
               found->kind(),
               options.lifetime,
               found->offset_bytes(),
               bound ? wire::encode_descriptor(describe(*found)) : std::vector<std::byte>()},
              "share",
              deadline);
  attach_chunks(
      *lease,
      *found,
      lease->info().chunk_count,
      [&](std::uint32_t index) { return found->chunk_bytes().at(index); },
      "share",
      deadline);
  lease->share(found);
  const std::string device = found->device().text();
  auto shared = user_of(lease->find_or_map(device, access::read_write, [&] {
    return std::make_shared<mapping>(
        lease,
        memory::own_memory(name, found->address(), size_bytes, found->device()),
        access::read_write,
        device);
  }));
  if (options.publish) {
    static_cast<void>(lease->broker().request(
        wire::publish{lease->info().generation, {options.metadata.begin(), options.metadata.end()}},
        {"share", name},
        deadline));
    lease->set_published({options.metadata.begin(), options.metadata.end()});
  }
  const std::lock_guard lock(attachments_mutex_);
  std::erase_if(shares_, [](const auto& entry) { return entry.second.expired(); });
  shares_[std::string(name)] = lease;
  return shared;
}

void client_impl::unshare(std::string_view name) {
  check_usable("unshare", name);
  std::shared_ptr<attachment> lease;
  {
    const std::lock_guard lock(attachments_mutex_);
    const auto at = shares_.find(name);
    if (at != shares_.end()) {
      lease = at->second.lock();
    }
  }
  if (!lease || !lease->shared_memory()) {
    throw error(errc::no_such_segment,
                "unshare",
                name,
                "this client shares nothing under this name",
                "unshare with the client that shared, once");
  }
  try {
    static_cast<void>(
        lease->broker().request(wire::remove{std::string(name), lease->info().generation},
                                {"unshare", name},
                                request_deadline()));
  } catch (const error& why) {
    // Removed by somebody, or gone with its broker: nobody new gets it, which is what was asked.
    if (why.code() != errc::no_such_segment && why.code() != errc::peer_died &&
        why.code() != errc::broker_gone) {
      throw;
    }
  }
  lease->stop_sharing();
}

}  // namespace gpushm::detail
