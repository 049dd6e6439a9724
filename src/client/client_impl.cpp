// SPDX-License-Identifier: Apache-2.0
#include "client/client_impl.hpp"

#include <algorithm>
#include <utility>

#include "base/names.hpp"
#include "base/syscall.hpp"
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

/// Attaches all chunks, batch by batch; each batch's descriptors are closed once it is sent.
void attach_chunks(connection& broker,
                   memory::allocation& memory,
                   const memory::chunk_plan& plan,
                   gpushm::generation generation,
                   std::string_view name,
                   steady_time deadline) {
  for (std::uint32_t first = 0; first < plan.count;) {
    const std::uint32_t end =
        std::min<std::uint32_t>(plan.count, first + static_cast<std::uint32_t>(wire::max_batch));
    std::vector<base::unique_fd> chunks;
    std::vector<int> numbers;
    wire::attach batch{generation, first, {}};
    for (std::uint32_t i = first; i < end; ++i) {
      chunks.push_back(memory.export_chunk(i));
      numbers.push_back(chunks.back().get());
      batch.chunk_bytes.push_back(plan.size_of(i));
    }
    static_cast<void>(broker.request(std::move(batch), {"create", name}, deadline, numbers));
    first = end;
  }
  memory.finish_exports();
}

}  // namespace

client_impl::client_impl(connect_options options) : options_(std::move(options)) {
  if (options_.socket_path.empty()) {
    options_.socket_path = default_socket_path();
  }
  connection_ = connect_until(std::chrono::steady_clock::now() + options_.timeout);
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
    connection_ = connect_until(std::chrono::steady_clock::now() + options_.timeout);
  }
  return connection_;
}

// ---- create ----

std::unique_ptr<segment_impl> client_impl::create(std::string_view name,
                                                  const create_options& options) {
  check_usable("create", name);
  base::check_name("create", name);
  const auto backend = memory::backend_for_create(options.device, options.huge_pages);
  const auto plan =
      memory::plan_chunks(options.size_bytes, options.chunk_bytes, backend->granularity());
  const auto connected = broker();
  const auto deadline = request_deadline();

  wire::reserve wanted{std::string(name),
                       options.size_bytes,
                       plan.total_bytes(),
                       plan.count,
                       backend->device(),
                       backend->kind(),
                       options.lifetime};
  answer got = connected->request(wanted, {"create", name}, deadline);
  const auto* reserved = std::get_if<wire::reserved>(&got.body);
  if (reserved == nullptr || got.descriptors.size() != 1) {
    throw unexpected_answer({"create", name});
  }
  wire::segment info;
  info.name = wanted.name;
  info.generation = reserved->generation;
  info.slot = reserved->slot;
  info.size_bytes = wanted.size_bytes;
  info.allocated_bytes = wanted.allocated_bytes;
  info.chunk_count = wanted.chunk_count;
  info.device = wanted.device;
  info.backend = wanted.backend;
  info.lifetime = wanted.lifetime;
  // From here on an exception gives the lease back, and the reservation ends with it.
  auto lease = std::make_shared<attachment>(
      connected, std::move(info), std::vector<std::byte>{}, std::move(got.descriptors.front()));
  std::shared_ptr<memory::allocation> memory = backend->allocate(name, plan);
  attach_chunks(*connected, *memory, plan, reserved->generation, name, deadline);

  lease->add_region(backend->device().text(), access::read_write, memory);
  {
    const std::lock_guard lock(attachments_mutex_);
    attachments_[{connected.get(), reserved->generation}] = lease;
  }
  return std::make_unique<segment_impl>(
      std::move(lease), std::move(memory), access::read_write, options_.request_timeout);
}

// ---- open ----

std::unique_ptr<segment_impl> client_impl::open(std::string_view name,
                                                const open_options& options) {
  check_usable("open", name);
  base::check_name("open", name);
  const auto connected = broker();
  answer got = connected->request(
      wire::open{
          std::string(name), options.expected_size_bytes, milliseconds_on_wire(options.timeout)},
      {"open", name},
      request_deadline() + options.timeout);
  return take(connected, std::move(got), options);
}

std::unique_ptr<segment_impl> client_impl::take(const std::shared_ptr<connection>& broker,
                                                answer got,
                                                const open_options& options) {
  auto* opened = std::get_if<wire::opened>(&got.body);
  if (opened == nullptr || got.descriptors.size() != opened->chunk_bytes.size() + 1) {
    if (opened != nullptr) {
      broker->release(opened->segment.generation, 1);
    }
    throw unexpected_answer({"open", {}});
  }
  const auto lease = attach(broker, *opened, std::move(got.descriptors.front()));
  got.descriptors.erase(got.descriptors.begin());

  const wire::segment& info = lease->info();
  try {
    const auto backend = memory::backend_for_open(info.backend, info.device, options.device);
    const std::string device = backend->device().text();
    std::shared_ptr<memory::region> region = lease->find_region(device, options.access);
    if (!region) {
      region = import(*broker, *opened, std::move(got.descriptors), *backend, options.access);
      lease->add_region(device, options.access, region);
    }
    return std::make_unique<segment_impl>(
        lease, std::move(region), options.access, options_.request_timeout);
  } catch (const error& why) {
    throw why.in("open", info.name);
  }
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
    auto lease = std::make_shared<attachment>(
        broker, opened.segment, std::move(opened.metadata), std::move(control_page));
    attachments_[key] = lease;
    return lease;
  } catch (...) {
    broker->release(key.second, 1);
    throw;
  }
}

std::shared_ptr<memory::region> client_impl::import(connection& broker,
                                                    const wire::opened& opened,
                                                    std::vector<base::unique_fd> chunks,
                                                    const memory::backend& backend,
                                                    gpushm::access access) {
  const wire::segment& info = opened.segment;
  const auto importer = backend.begin_import(info.name, info.allocated_bytes, access);
  std::vector<std::uint64_t> sizes = opened.chunk_bytes;
  std::size_t done = 0;
  for (;;) {
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      importer->add(std::move(chunks[i]), sizes[i]);
    }
    done += chunks.size();
    if (done >= info.chunk_count) {
      return importer->finish();
    }
    answer more =
        broker.request(wire::fetch_chunks{info.generation, static_cast<std::uint32_t>(done)},
                       {"open", info.name},
                       request_deadline());
    auto* batch = std::get_if<wire::chunks>(&more.body);
    if (batch == nullptr || batch->first_chunk != done || more.descriptors.empty() ||
        more.descriptors.size() != batch->chunk_bytes.size()) {
      throw unexpected_answer({"open", info.name});
    }
    chunks = std::move(more.descriptors);
    sizes = std::move(batch->chunk_bytes);
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
  const auto give_up = std::chrono::steady_clock::now() + options.timeout;
  for (std::size_t first = 0; first < names.size(); first += names_a_batch) {
    const std::size_t count = std::min(names_a_batch, names.size() - first);
    open_options batch = options;
    batch.timeout = std::max(
        std::chrono::milliseconds(0),
        std::chrono::ceil<std::chrono::milliseconds>(give_up - std::chrono::steady_clock::now()));
    open_batch(names.subspan(first, count), batch, std::span(results).subspan(first, count));
  }
  return results;
}

void client_impl::open_batch(std::span<const std::string> names,
                             const open_options& options,
                             std::span<open_outcome> results) {
  const auto connected = broker();
  const auto deadline = request_deadline() + options.timeout;
  const auto call = connected->start(wire::open_many{{names.begin(), names.end()},
                                                     options.expected_size_bytes,
                                                     milliseconds_on_wire(options.timeout)},
                                     {},
                                     {"open", {}},
                                     deadline);
  for (std::size_t left = names.size(); left > 0; --left) {
    answer got = call->next_raw(deadline);
    if (const auto* failure = std::get_if<wire::failure>(&got.body)) {
      if (failure->index >= names.size()) {
        throw unexpected_answer({"open", {}});
      }
      results[failure->index].failure =
          error(failure->code, "open", names[failure->index], failure->cause, failure->next_step);
      continue;
    }
    const auto* opened = std::get_if<wire::opened>(&got.body);
    if (opened == nullptr || opened->index >= names.size()) {
      throw unexpected_answer({"open", {}});
    }
    open_outcome& result = results[opened->index];
    try {
      result.opened = take(connected, std::move(got), options);
    } catch (const error& why) {
      result.failure = why;
    }
  }
}

}  // namespace gpushm::detail
