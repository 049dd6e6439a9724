// SPDX-License-Identifier: Apache-2.0
#include "client/client_impl.hpp"

#include <algorithm>
#include <utility>

#include "base/exporter_bound.hpp"
#include "base/names.hpp"
#include "base/syscall.hpp"
#include "client/remote_descriptor.hpp"
#include "client/segment_impl.hpp"
#include "client/socket_path.hpp"
#include "memory/backend.hpp"

namespace gpushm::detail {

namespace {

/// There is no event for a socket that is not there yet.
constexpr std::chrono::milliseconds connect_poll{10};
/// Names in one OpenMany: their answers' descriptors must fit into a soft limit of 1,024.
constexpr std::size_t names_a_batch = 128;

std::uint32_t milliseconds_on_wire(std::chrono::milliseconds timeout) {
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(timeout.count(), 0, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

client_impl::client_impl(connect_options options)
    : options_(std::move(options)),
      cache_(std::make_shared<import_cache>(bounds_from(options_.cache))) {
  if (options_.socket_path.empty()) {
    options_.socket_path = default_socket_path();
  }
  connection_ = connect_until(std::chrono::steady_clock::now() + options_.timeout);
  connection_->set_lease_listener(cache_.get());
}

client_impl::~client_impl() {
  if (forked()) {
    keep_for_ever(connection_);
    keep_for_ever(cache_);
    return;
  }
  connection_->set_lease_listener(nullptr);
  cache_->close();
}

std::shared_ptr<connection> client_impl::connect_until(steady_time deadline) {
  for (;;) {
    try {
      return connection::establish(options_.socket_path, options_.request_timeout);
    } catch (const error& why) {
      if (why.code() != errc::broker_unreachable ||
          std::chrono::steady_clock::now() + connect_poll > deadline) {
        throw;
      }
    }
    base::pause_before_retry(connect_poll);
  }
}

std::shared_ptr<connection> client_impl::broker() {
  const std::lock_guard lock(connect_mutex_);
  if (!connection_->alive()) {
    auto successor = connect_until(std::chrono::steady_clock::now() + options_.timeout);
    connection_->set_lease_listener(nullptr);
    cache_->lease_lost(*connection_, 0);
    connection_ = std::move(successor);
    connection_->set_lease_listener(cache_.get());
  }
  return connection_;
}

std::unique_ptr<segment_impl> client_impl::user_of(const std::shared_ptr<mapping>& mapped) {
  cache_->use(mapped);
  return std::make_unique<segment_impl>(cache_, mapped, options_.request_timeout);
}

// ---- open ----

/// What is in use or kept is opened without the broker, as long as the state table shows that
/// nothing has changed.
std::unique_ptr<segment_impl> client_impl::find_cached(std::string_view name,
                                                       const open_options& options) {
  auto found = cache_->find(name, options.device, options.access, options.expected_size_bytes);
  if (!found) {
    return nullptr;
  }
  if (found->lease() != nullptr) {
    found->lease()->broker().opened_from_cache();
  }
  return std::make_unique<segment_impl>(cache_, std::move(found), options_.request_timeout);
}

std::unique_ptr<segment_impl> client_impl::open(std::string_view name,
                                                const open_options& options) {
  check_usable("open", name);
  if (auto cached = find_cached(name, options)) {
    return cached;
  }
  const auto begin = std::chrono::steady_clock::now();
  base::check_name("open", name);
  const auto connected = broker();
  answer got = connected->request(
      wire::open{
          std::string(name), options.expected_size_bytes, milliseconds_on_wire(options.timeout)},
      {"open", name},
      request_deadline() + options.timeout);
  return take(connected, std::move(got), options, begin);
}

std::unique_ptr<segment_impl> client_impl::open_generation(std::string_view name,
                                                           gpushm::generation generation,
                                                           const open_options& options) {
  auto opened = open(name, options);
  if (opened->info().generation != generation) {
    throw error(errc::stale,
                "open",
                name,
                "the exporter shares other memory under this name by now",
                "use the exporter's newest descriptor");
  }
  return opened;
}

std::unique_ptr<segment_impl> client_impl::take(const std::shared_ptr<connection>& broker,
                                                answer got,
                                                const open_options& options,
                                                steady_time begin) {
  auto* opened = std::get_if<wire::opened>(&got.body);
  if (opened == nullptr || got.descriptors.size() != opened->chunk_bytes.size() + 1) {
    if (opened != nullptr) {
      broker->release(opened->segment.generation, 1);
    }
    throw unexpected_answer({"open", {}});
  }
  const auto lease = attach(broker, *opened, std::move(got.descriptors.front()));
  got.descriptors.erase(got.descriptors.begin());
  try {
    std::unique_ptr<segment_impl> user;
    if (base::is_exporter_bound(lease->info().backend)) {
      user = user_of(map_exporters(lease, std::move(got.descriptors), options));
    } else {
      const auto mapped = map(lease, opened->chunk_bytes, std::move(got.descriptors), options);
      user = user_of(mapped);
      cache_->remember(mapped, options.device);
    }
    broker->opened_in(std::chrono::steady_clock::now() - begin);
    return user;
  } catch (const error& why) {
    broker->open_failed(why.code());
    throw why.in("open", lease->info().name);
  }
}

std::shared_ptr<mapping> client_impl::map(const std::shared_ptr<attachment>& lease,
                                          const std::vector<std::uint64_t>& chunk_bytes,
                                          std::vector<base::unique_fd> chunks,
                                          const open_options& options) {
  const wire::segment& info = lease->info();
  const auto backend = memory::backend_for_open(info.backend, info.device, options.device);
  const std::string device = backend->device().text();
  return lease->find_or_map(device, options.access, [&] {
    return std::make_shared<mapping>(
        lease,
        import(*lease, chunk_bytes, std::move(chunks), *backend, options.access),
        options.access,
        device);
  });
}

/// Memory that stays its exporter's; the broker has asked it whether that is still the same.
std::shared_ptr<mapping> client_impl::map_exporters(const std::shared_ptr<attachment>& lease,
                                                    std::vector<base::unique_fd> chunks,
                                                    const open_options& options) {
  const wire::segment& info = lease->info();
  const wire::descriptor described = wire::decode_descriptor(lease->descriptor());
  const auto memory = remote_of(described);
  if (!memory || memory->kind != info.backend || memory->size_bytes != info.size_bytes) {
    throw error(errc::invalid_descriptor,
                "open",
                info.name,
                "the exporter's descriptor does not fit its segment",
                "the exporter is broken or hostile; report it");
  }
  if (memory::is_own(*memory)) {
    return lease->find_or_map("own", options.access, [&] {
      return std::make_shared<mapping>(
          lease, memory::open_own(info.name, *memory), options.access, info.device.text());
    });
  }
  const driver::gpu& user = memory::gpu_for_open(memory->device, options.device);
  const std::string device = user.id.text();
  return lease->find_or_map(device, options.access, [&] {
    base::unique_fd pool = chunks.empty() ? base::unique_fd() : std::move(chunks.front());
    return std::make_shared<mapping>(lease,
                                     memory::open_remote(info.name, *memory, std::move(pool), user),
                                     options.access,
                                     device);
  });
}

std::shared_ptr<attachment> client_impl::attach(const std::shared_ptr<connection>& broker,
                                                wire::opened& opened,
                                                base::unique_fd control_page) {
  const std::pair key{static_cast<const connection*>(broker.get()), opened.segment.generation};
  const std::lock_guard lock(attachments_mutex_);
  if (const auto at = attachments_.find(key); at != attachments_.end()) {
    if (auto lease = at->second.lock()) {
      lease->add_grant();
      return lease;
    }
  }
  if (attachments_.size() >= sweep_at_) {
    std::erase_if(attachments_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = attachments_.size() * 2 + 64;
  }
  try {
    auto lease = std::make_shared<attachment>(broker,
                                              opened.segment,
                                              std::move(opened.metadata),
                                              std::move(opened.descriptor),
                                              std::move(control_page));
    attachments_[key] = lease;
    return lease;
  } catch (...) {
    broker->release(key.second, 1);
    throw;
  }
}

/// The next batch is asked for before the one at hand is imported: the broker works meanwhile.
std::unique_ptr<memory::region> client_impl::import(const attachment& lease,
                                                    std::vector<std::uint64_t> chunk_bytes,
                                                    std::vector<base::unique_fd> chunks,
                                                    const memory::backend& backend,
                                                    gpushm::access access) {
  const wire::segment& info = lease.info();
  connection& broker = lease.broker();
  const auto importer =
      backend.begin_import({info.name, info.allocated_bytes, access, info.offset_bytes});
  std::size_t arrived = chunks.size();
  for (;;) {
    std::unique_ptr<connection::call> next;
    if (arrived < info.chunk_count) {
      next = broker.start(wire::fetch_chunks{info.generation, static_cast<std::uint32_t>(arrived)},
                          {},
                          {"open", info.name},
                          request_deadline());
    }
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      importer->add(std::move(chunks[i]), chunk_bytes[i]);
    }
    if (!next) {
      return importer->finish();
    }
    answer more = next->next(request_deadline());
    auto* batch = std::get_if<wire::chunks>(&more.body);
    if (batch == nullptr || batch->first_chunk != arrived || more.descriptors.empty() ||
        more.descriptors.size() != batch->chunk_bytes.size()) {
      throw unexpected_answer({"open", info.name});
    }
    chunks = std::move(more.descriptors);
    chunk_bytes = std::move(batch->chunk_bytes);
    arrived += chunks.size();
  }
}

// ---- open_many ----

std::vector<client_impl::open_outcome> client_impl::open_many(std::span<const std::string> names,
                                                              const open_options& options) {
  check_usable("open", {});
  for (const std::string& name : names) {
    base::check_name("open", name);
  }
  std::vector<open_outcome> results(names.size());
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < names.size(); ++i) {
    results[i].opened = find_cached(names[i], options);
    if (!results[i].opened) {
      missing.push_back(i);
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto give_up = begin + options.timeout;
  for (std::size_t first = 0; first < missing.size(); first += names_a_batch) {
    const std::size_t count = std::min(names_a_batch, missing.size() - first);
    open_options batch = options;
    batch.timeout = std::max(
        std::chrono::milliseconds(0),
        std::chrono::ceil<std::chrono::milliseconds>(give_up - std::chrono::steady_clock::now()));
    open_batch(names, std::span(missing).subspan(first, count), batch, begin, results);
  }
  return results;
}

/// Opens those of `names` whose indices are in `wanted`.
void client_impl::open_batch(std::span<const std::string> names,
                             std::span<const std::size_t> wanted,
                             const open_options& options,
                             steady_time begin,
                             std::span<open_outcome> results) {
  wire::open_many request{{}, options.expected_size_bytes, milliseconds_on_wire(options.timeout)};
  for (const std::size_t index : wanted) {
    request.names.push_back(names[index]);
  }
  const auto connected = broker();
  const auto deadline = request_deadline() + options.timeout;
  const auto call = connected->start(std::move(request), {}, {"open", {}}, deadline);
  for (std::size_t left = wanted.size(); left > 0; --left) {
    answer got = call->next_raw(deadline);
    if (const auto* failure = std::get_if<wire::failure>(&got.body)) {
      if (failure->index >= wanted.size()) {
        throw unexpected_answer({"open", {}});
      }
      const std::size_t index = wanted[failure->index];
      results[index].failure =
          error(failure->code, "open", names[index], failure->cause, failure->next_step);
      continue;
    }
    const auto* opened = std::get_if<wire::opened>(&got.body);
    if (opened == nullptr || opened->index >= wanted.size()) {
      throw unexpected_answer({"open", {}});
    }
    open_outcome& result = results[wanted[opened->index]];
    try {
      result.opened = take(connected, std::move(got), options, begin);
    } catch (const error& why) {
      result.failure = why;
    }
  }
}

}  // namespace gpushm::detail
