// SPDX-License-Identifier: Apache-2.0
// The steps of an open: use a mapping that this process has, else request the segment from the
// broker, accept the grant, map the memory, and cache the mapping for the next open.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/segments/exporter_bound.hpp"
#include "base/segments/versioned_names.hpp"
#include "client/lease/chunk_stream.hpp"
#include "client/segment/client_impl.hpp"
#include "client/segment/offers.hpp"
#include "client/segment/remote_ticket.hpp"
#include "client/segment/segment_impl.hpp"
#include "client/session/reply_check.hpp"
#include "gpu/memory/backends/backend.hpp"

namespace gpushm::client_detail {

namespace {

/// Upper bound of the timeout in a request: 49 days.
constexpr std::chrono::milliseconds max_request_wait{std::numeric_limits<std::uint32_t>::max()};

std::uint32_t milliseconds_on_wire(std::chrono::milliseconds timeout) {
  return static_cast<std::uint32_t>(
      std::clamp(timeout, std::chrono::milliseconds(0), max_request_wait).count());
}

}  // namespace

/// The contents of one `Opened`.
struct granted {
  std::shared_ptr<segment_lease> lease;
  chunk_stream chunks;
};

namespace {

/// Maps memory that is shared as descriptors.
std::shared_ptr<mapping> map_chunks(granted& grant, const open_options& options) {
  const wire::segment& info = grant.lease->info();
  const auto backend = memory::backend_for_open(info.backend, info.device, options.device);
  const device_id& user = backend->device();
  return grant.lease->find_or_map(user.text(), options.access, [&] {
    return std::make_shared<mapping>(
        grant.lease,
        backend->import({info.name, info.allocated_bytes, options.access, info.offset_bytes},
                        grant.chunks),
        options.access,
        user);
  });
}

/// Returns the mapping prepared from the offer, else has the driver map it now.
std::shared_ptr<memory::region> map_remote(granted& grant,
                                           const memory::remote_memory& memory,
                                           const driver::gpu& user,
                                           offers& offered,
                                           steady_time deadline) {
  for (;;) {
    try {
      if (auto ready = offered.take(*grant.lease, user)) {
        return ready;
      }
      auto pool = grant.chunks.next();  // the descriptor of a pool
      return memory::open_remote(grant.lease->info().name,
                                 memory,
                                 pool ? std::move(pool->file) : base::guarded_fd(),
                                 user);
    } catch (const error& why) {
      const bool may_pass =
          why.code() == errc::gone_or_replaced && memory.kind == backend::cuda_ipc;
      if (!may_pass || !offers::wait_for_others(deadline)) {
        throw;
      }
    }
  }
}

/// Maps memory bound to its exporter; the broker has had the exporter confirm it.
std::shared_ptr<mapping> map_exporters(granted& grant,
                                       const open_options& options,
                                       offers& offered,
                                       steady_time deadline) {
  const auto& lease = grant.lease;
  const wire::segment& info = lease->info();
  const auto memory = remote_for(info, lease->ticket());
  if (memory::is_own(memory)) {
    return lease->find_or_map("own", options.access, [&] {
      return std::make_shared<mapping>(
          lease, memory::open_own(info.name, memory), options.access, info.device);
    });
  }
  const driver::gpu& user = memory::gpu_for_open(memory.device, options.device);
  return lease->find_or_map(user.id.text(), options.access, [&] {
    return std::make_shared<mapping>(
        lease, map_remote(grant, memory, user, offered, deadline), options.access, user.id);
  });
}

}  // namespace

namespace {

/// `backend`: a timeline page or a timeline; nothing: a segment.
void check_kind(backend is, std::optional<backend> backend, std::string_view name) {
  const bool is_registered = is == backend::descriptor;
  const bool is_segment = is != backend::timeline && is != backend::signals && !is_registered;
  if (backend ? is == *backend : is_segment) {
    return;
  }
  throw error(errc::invalid_argument,
              "open",
              name,
              is_segment                ? "it is a segment, not a timeline"
              : is == backend::timeline ? "it is a timeline"
              : is_registered           ? "it is a registered descriptor"
                                        : "it is a timeline page",
              is_segment      ? "open it as a segment (gpushm_client_open)"
              : is_registered ? "fetch it by its number (gpushm_client_resolve_descriptor)"
                              : "open a timeline by its name (gpushm_timeline_open)");
}

}  // namespace

// ---- find ----

/// Opens used or cached mappings without the broker, as long as the state table shows no change.
segment_ptr client_impl::find(std::string_view name, const open_options& options) {
  auto found = leases_->find(name, options.device, options.access, options.expected_size_bytes);
  return found ? user_of(std::move(found)) : nullptr;
}

// ---- request ----

client_impl::open_reply client_impl::request_open(std::string_view name,
                                                  gpushm::generation generation,
                                                  const open_options& options,
                                                  offers& offered) {
  base::check_segment_name("open", name);
  const auto name_deadline = base::deadline_after(options.timeout);
  for (;;) {
    auto connected = broker(options.stop);
    if (base::is_versioned_name(name)) {
      check_knows(*connected, "open", name);
    }
    const auto timeout = options.timeout <= std::chrono::milliseconds(0)
                             ? std::chrono::milliseconds(0)
                             : std::min(time_left(name_deadline), max_request_wait);
    reply got = connected->open(wire::open{std::string(name),
                                           options.expected_size_bytes,
                                           static_cast<std::uint32_t>(timeout.count()),
                                           generation},
                                {"open", name},
                                base::later(request_deadline(), timeout),
                                options.stop,
                                [&](reply offer) { offered.map(std::move(offer), name); });
    const auto* opened = std::get_if<wire::opened>(&got.body);
    offered.settle(opened == nullptr ? std::vector<gpushm::generation>()
                                     : std::vector{opened->segment.generation});
    const auto* failure = std::get_if<wire::failure>(&got.body);
    if (failure != nullptr && failure->code == errc::no_such_segment &&
        timeout == max_request_wait) {
      continue;  // the caller's timeout exceeds that of a request
    }
    return {std::move(connected), std::move(got)};
  }
}

// ---- accept, map, cache ----

std::shared_ptr<segment_lease> client_impl::accept(open_reply& received,
                                                   std::string_view name,
                                                   std::uint64_t expected_size_bytes,
                                                   std::optional<backend> kind) {
  reply& got = received.got;
  if (const auto* failure = std::get_if<wire::failure>(&got.body)) {
    throw from_wire(*failure, {"open", name});
  }
  auto* const opened = std::get_if<wire::opened>(&got.body);
  if (opened == nullptr) {
    throw unexpected_reply({"open", name});
  }
  check_opened(*opened, got.descriptors.size(), name, expected_size_bytes);
  check_kind(opened->segment.backend, kind, name);
  return leases_->take(received.broker,
                       {std::move(opened->segment),
                        std::move(opened->metadata),
                        std::move(opened->ticket),
                        opened->receipt},
                       got.granted,
                       "open");
}

segment_ptr client_impl::use(open_reply received,
                             std::string_view name,
                             const open_options& options,
                             offers& offered,
                             steady_time begin) {
  const auto lease = accept(received, name, options.expected_size_bytes, std::nullopt);
  auto& opened = std::get<wire::opened>(received.got.body);
  granted what{lease,
               {lease,
                {std::move(opened.chunk_bytes), std::move(received.got.descriptors)},
                options_.request_limit}};
  std::optional<lease_table::alias> alias;
  if (opened.alias_generation != 0) {
    alias = {name, {opened.alias_slot, opened.alias_generation}};
  }
  return map_and_keep(what, options, offered, begin, alias);
}

segment_ptr client_impl::map_and_keep(granted& grant,
                                      const open_options& options,
                                      offers& offered,
                                      steady_time begin,
                                      const std::optional<lease_table::alias>& alias) {
  const auto& lease = grant.lease;
  const auto received = std::chrono::steady_clock::now();
  try {
    std::shared_ptr<mapping> mapped;
    if (base::is_exporter_bound(lease->info().backend)) {
      mapped = map_exporters(grant, options, offered, request_deadline());
      leases_->use(mapped);  // not cached: each open needs the exporter's confirmation
    } else {
      mapped = map_chunks(grant, options);
      leases_->keep(mapped, options.device, alias);
    }
    auto user = user_of(std::move(mapped));
    const auto end = std::chrono::steady_clock::now();
    lease->broker()->opened_in(end - begin, end - received);
    return user;
  } catch (const error& why) {
    lease->broker()->open_failed(why.code());
    throw why.in("open", lease->info().name);
  }
}

segment_ptr client_impl::use_prefetched(std::string_view name,
                                        gpushm::generation generation,
                                        const open_options& options) {
  auto ready = leases_->take_prefetched(name, options.expected_size_bytes, generation);
  if (!ready) {
    return nullptr;
  }
  const auto begin = std::chrono::steady_clock::now();
  granted what{
      ready->lease,
      {ready->lease, {std::move(ready->bytes), std::move(ready->files)}, options_.request_limit}};
  offers none(options);
  return map_and_keep(what, options, none, begin, std::nullopt);
}

// ---- open, try_open, open_generation ----

segment_ptr client_impl::open(std::string_view name, const open_options& options) {
  return open_generation(name, 0, options);
}

segment_ptr client_impl::try_open(std::string_view name, const open_options& options) {
  check_usable("open", name);
  if (auto found = find(name, options)) {
    return found;
  }
  if (auto ready = use_prefetched(name, 0, options)) {
    return ready;
  }
  const auto begin = std::chrono::steady_clock::now();
  offers offered(options);
  open_reply received = request_open(name, 0, options, offered);
  if (const auto* failure = std::get_if<wire::failure>(&received.got.body);
      failure != nullptr &&
      (failure->code == errc::no_such_segment || failure->code == errc::peer_died ||
       failure->code == errc::writer_ending)) {
    return nullptr;
  }
  return use(std::move(received), name, options, offered, begin);
}

segment_ptr client_impl::open_generation(std::string_view name,
                                         gpushm::generation generation,
                                         const open_options& options) {
  check_usable("open", name);
  auto opened = find(name, options);
  if (!opened) {
    opened = use_prefetched(name, generation, options);
  }
  if (!opened) {
    const auto begin = std::chrono::steady_clock::now();
    offers offered(options);
    opened = use(request_open(name, generation, options, offered), name, options, offered, begin);
  }
  // Older brokers ignore that field of `Open` and answer with any segment of the name.
  if (generation != 0 && opened->mapped().generation() != generation) {
    throw error(errc::gone_or_replaced,
                "open",
                name,
                "the exporter now shares other memory under this name",
                "use the exporter's newest ticket");
  }
  return opened;
}

// ---- open_many ----

std::vector<client_impl::open_outcome> client_impl::open_many(std::span<const std::string> names,
                                                              const open_options& options) {
  check_usable("open", {});
  for (const std::string& name : names) {
    base::check_segment_name("open", name);
  }
  std::vector<open_outcome> results(names.size());
  if (std::none_of(names.begin(), names.end(), base::is_versioned_name)) {
    return open_all(names, options, std::move(results));
  }
  const auto name_deadline = base::deadline_after(options.timeout);
  const same_versions same = open_same_versions(names, options, results);
  open_options rest = options;
  rest.timeout = time_left(name_deadline);
  results = open_all(same.names, rest, std::move(results));
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (results[i].opened && same.aliases[i]) {
      leases_->add_name(results[i].opened->mapped(), options.device, {names[i], *same.aliases[i]});
    }
  }
  return results;
}

/// Those without a result.
std::vector<client_impl::open_outcome> client_impl::open_all(std::span<const std::string> names,
                                                             const open_options& options,
                                                             std::vector<open_outcome> results) {
  const auto begin = std::chrono::steady_clock::now();
  const auto name_deadline = base::later(begin, options.timeout);
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (results[i].opened || results[i].failure) {
      continue;
    }
    try {
      results[i].opened = find(names[i], options);
      if (!results[i].opened) {
        results[i].opened = use_prefetched(names[i], 0, options);
      }
      if (!results[i].opened) {
        missing.push_back(i);
      }
    } catch (const error& why) {
      results[i].failure = why;
    }
  }
  for (std::size_t first = 0; first < missing.size(); first += names_per_batch) {
    const std::size_t count = std::min(names_per_batch, missing.size() - first);
    open_options batch = options;
    batch.timeout = time_left(name_deadline);
    open_batch(names, std::span(missing).subspan(first, count), batch, begin, results);
  }
  return results;
}

/// Opens those of `names` whose indices are in `indexes`. Receives all replies before it maps the
/// first: mapping may need to request chunks, and to wait for other threads that do.
void client_impl::open_batch(std::span<const std::string> names,
                             std::span<const std::size_t> indexes,
                             const open_options& options,
                             steady_time begin,
                             std::span<open_outcome> results) {
  wire::open_many request{{}, options.expected_size_bytes, milliseconds_on_wire(options.timeout)};
  for (const std::size_t index : indexes) {
    request.names.push_back(names[index]);
  }
  const auto connected = broker(options.stop);
  const auto versioned =
      std::find_if(request.names.begin(), request.names.end(), base::is_versioned_name);
  if (versioned != request.names.end()) {
    check_knows(*connected, "open", *versioned);
  }
  const auto deadline =
      base::later(request_deadline(), std::clamp(options.timeout, {}, max_request_wait));
  offers offered(options);
  std::vector<reply> replies = connected->open_many(
      std::move(request), {"open", {}}, deadline, options.stop, [&](reply offer) {
        const std::uint32_t index = std::get<wire::waiting>(offer.body).index;
        if (index < indexes.size()) {
          offered.map(std::move(offer), names[indexes[index]]);
        }
      });
  std::vector<gpushm::generation> granted_generations;
  for (const reply& got : replies) {
    if (const auto* opened = std::get_if<wire::opened>(&got.body)) {
      granted_generations.push_back(opened->segment.generation);
    }
  }
  offered.settle(granted_generations);
  std::vector<bool> received(indexes.size());
  for (reply& got : replies) {
    const auto* failure = std::get_if<wire::failure>(&got.body);
    const auto* opened = std::get_if<wire::opened>(&got.body);
    const std::uint32_t index = failure != nullptr  ? failure->index
                                : opened != nullptr ? opened->index
                                                    : static_cast<std::uint32_t>(indexes.size());
    if (index >= indexes.size() || received[index]) {
      throw unexpected_reply({"open", {}});
    }
    received[index] = true;
    open_outcome& result = results[indexes[index]];
    const std::string& name = names[indexes[index]];
    try {
      result.opened = use({connected, std::move(got)}, name, options, offered, begin);
    } catch (const error& why) {
      result.failure = why;
    }
  }
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    if (!received[i]) {
      results[indexes[i]].failure = cancelled({"open", names[indexes[i]]});
    }
  }
}

}  // namespace gpushm::client_detail
