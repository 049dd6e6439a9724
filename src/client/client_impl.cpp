// SPDX-License-Identifier: Apache-2.0
#include "client/client_impl.hpp"

#include <algorithm>
#include <utility>

#include "base/exporter_bound.hpp"
#include "base/names.hpp"
#include "base/syscall.hpp"
#include "client/answer_check.hpp"
#include "client/remote_descriptor.hpp"
#include "client/segment_impl.hpp"
#include "client/socket_path.hpp"
#include "memory/backend.hpp"

namespace gpushm::detail {

namespace {

/// There is no event for a socket that is not there yet.
constexpr std::chrono::milliseconds connect_poll{10};
/// Names in one OpenMany. Each has descriptors of chunks until it is imported, and those
/// must fit into a soft limit of 1,024.
constexpr std::size_t names_a_batch = 128;

/// What a request can say: 49 days.
constexpr std::chrono::milliseconds longest_wait{std::numeric_limits<std::uint32_t>::max()};

std::uint32_t milliseconds_on_wire(std::chrono::milliseconds timeout) {
  return static_cast<std::uint32_t>(
      std::clamp(timeout, std::chrono::milliseconds(0), longest_wait).count());
}

}  // namespace

client_impl::client_impl(connect_options options)
    : options_(std::move(options)),
      cache_(std::make_shared<import_cache>(bounds_from(options_.cache))) {
  if (options_.socket_path.empty()) {
    options_.socket_path = default_socket_path();
  }
  connection_ = connect_until(base::deadline_after(options_.timeout));
  connection_->worker().set_listener(cache_.get());
}

client_impl::~client_impl() {
  if (forked()) {
    keep_for_ever(connection_);
    keep_for_ever(cache_);
    return;
  }
  connection_->worker().set_listener(nullptr);
  cache_->close();
}

/// A caller that has named a time to wait has it kept by the handshake too: a stopped broker's
/// socket takes connections as long as its backlog has room.
std::shared_ptr<connection> client_impl::connect_until(steady_time deadline,
                                                       const connection* predecessor) {
  for (;;) {
    const auto handshake = options_.timeout > std::chrono::milliseconds(0)
                               ? std::min(time_left(deadline), options_.request_timeout)
                               : options_.request_timeout;
    try {
      return connection::establish(options_.socket_path, handshake, predecessor);
    } catch (const error& why) {
      if (why.code() != errc::broker_unreachable || time_left(deadline) < connect_poll) {
        throw;
      }
    }
    base::pause_before_retry(connect_poll);
  }
}

std::shared_ptr<connection> client_impl::broker() {
  const auto connect_deadline = base::deadline_after(options_.timeout);
  const auto deadline = request_deadline();
  std::unique_lock lock(connect_mutex_);
  while (!connection_->alive()) {
    if (connecting_) {
      if (!connected_.wait_until(lock, deadline, [&] { return !connecting_; })) {
        throw error(errc::timed_out,
                    "connect",
                    options_.socket_path,
                    "another thread of this client was still connecting",
                    "see whether the broker is stopped or overloaded");
      }
      continue;
    }
    connecting_ = true;
    lock.unlock();
    std::shared_ptr<connection> successor;
    try {
      successor = connect_until(connect_deadline, connection_.get());
      connection_->worker().set_listener(nullptr);
      if (successor->resumed()) {
        hand_over(connection_, successor);
      }
      cache_->lease_lost(connection_->current(), 0);
      successor->worker().set_listener(cache_.get());
    } catch (...) {
      lock.lock();
      if (connection_->has_successor()) {  // which did not hear what is kept: that stays too
        connection_ = std::move(successor);
      }
      connecting_ = false;
      connected_.notify_all();
      throw;
    }
    lock.lock();
    connection_ = std::move(successor);
    connecting_ = false;
    connected_.notify_all();
  }
  return connection_;
}

/// The broker had ended the connection, and this process's leases are its successor's: what is
/// still in use is kept, with as many answers as were taken into account. Those that were under way
/// are lost with the connection (see `attach`).
void client_impl::hand_over(const std::shared_ptr<connection>& from,
                            const std::shared_ptr<connection>& to) {
  std::vector<std::shared_ptr<attachment>> kept;  // none ends before the broker knows
  {
    const std::lock_guard lock(attachments_mutex_);
    for (auto at = attachments_.lower_bound({from.get(), 0});
         at != attachments_.end() && at->first.first == from.get();) {
      if (auto lease = at->second.lock()) {
        attachments_.emplace(std::pair{static_cast<const connection*>(to.get()), at->first.second},
                             at->second);
        kept.push_back(std::move(lease));
      }
      at = attachments_.erase(at);
    }
    from->set_successor(to);
  }
  std::vector<std::pair<gpushm::generation, std::uint32_t>> counts;
  for (const auto& lease : kept) {
    counts.emplace_back(lease->info().generation, lease->grants());
    lease->answer_again();
  }
  to->keep(counts, request_deadline());
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

client_impl::asked client_impl::ask_to_open(std::string_view name,
                                            gpushm::generation generation,
                                            const open_options& options) {
  base::check_name("open", name);
  const auto give_up = base::deadline_after(options.timeout);
  for (;;) {
    auto connected = broker();
    const auto timeout = options.timeout <= std::chrono::milliseconds(0)
                             ? std::chrono::milliseconds(0)
                             : std::min(time_left(give_up), longest_wait);
    answer got = connected->open(wire::open{std::string(name),
                                            options.expected_size_bytes,
                                            static_cast<std::uint32_t>(timeout.count()),
                                            generation},
                                 {"open", name},
                                 base::later(request_deadline(), timeout));
    const auto* failure = std::get_if<wire::failure>(&got.body);
    if (failure != nullptr && failure->code == errc::no_such_segment && timeout == longest_wait) {
      continue;  // the caller waits longer than one request can
    }
    return {std::move(connected), std::move(got)};
  }
}

std::unique_ptr<segment_impl> client_impl::open(std::string_view name,
                                                const open_options& options) {
  return open_generation(name, 0, options);
}

std::unique_ptr<segment_impl> client_impl::try_open(std::string_view name,
                                                    const open_options& options) {
  check_usable("open", name);
  if (auto cached = find_cached(name, options)) {
    return cached;
  }
  const auto begin = std::chrono::steady_clock::now();
  asked answered = ask_to_open(name, 0, options);
  if (const auto* failure = std::get_if<wire::failure>(&answered.got.body)) {
    if (failure->code == errc::no_such_segment || failure->code == errc::peer_died ||
        failure->code == errc::writer_ending) {
      return nullptr;
    }
    throw from_wire(*failure, {"open", name});
  }
  return use(take(answered.broker, std::move(answered.got), name, options), options, begin);
}

std::unique_ptr<segment_impl> client_impl::open_generation(std::string_view name,
                                                           gpushm::generation generation,
                                                           const open_options& options) {
  check_usable("open", name);
  auto opened = find_cached(name, options);
  if (!opened) {
    const auto begin = std::chrono::steady_clock::now();
    asked answered = ask_to_open(name, generation, options);
    if (const auto* failure = std::get_if<wire::failure>(&answered.got.body)) {
      throw from_wire(*failure, {"open", name});
    }
    opened = use(take(answered.broker, std::move(answered.got), name, options), options, begin);
  }
  // A broker that does not know the field of `Open` answers with whatever has the name.
  if (generation != 0 && opened->info().generation != generation) {
    throw error(errc::stale,
                "open",
                name,
                "the exporter shares other memory under this name by now",
                "use the exporter's newest descriptor");
  }
  return opened;
}

client_impl::granted client_impl::take(const std::shared_ptr<connection>& broker,
                                       answer got,
                                       std::string_view name,
                                       const open_options& options) {
  auto* opened = std::get_if<wire::opened>(&got.body);
  if (opened == nullptr) {
    throw unexpected_answer({"open", name});
  }
  check_opened(*opened, got.descriptors.size(), name, options.expected_size_bytes);
  granted result;
  result.lease = attach(broker, *opened, got.granted);
  result.first = {std::move(opened->chunk_bytes), std::move(got.descriptors)};
  return result;
}

std::unique_ptr<segment_impl> client_impl::use(granted taken,
                                               const open_options& options,
                                               steady_time begin) {
  const auto lease = std::move(taken.lease);
  try {
    std::unique_ptr<segment_impl> user;
    if (base::is_exporter_bound(lease->info().backend)) {
      user = user_of(map_exporters(lease, std::move(taken.first), options));
    } else {
      const auto mapped = map(lease, std::move(taken.first), options);
      user = user_of(mapped);
      cache_->remember(mapped, options.device);
    }
    lease->broker().opened_in(std::chrono::steady_clock::now() - begin);
    return user;
  } catch (const error& why) {
    lease->broker().open_failed(why.code());
    throw why.in("open", lease->info().name);
  }
}

std::shared_ptr<mapping> client_impl::map(const std::shared_ptr<attachment>& lease,
                                          chunk_batch first,
                                          const open_options& options) {
  const wire::segment& info = lease->info();
  const auto backend = memory::backend_for_open(info.backend, info.device, options.device);
  const std::string device = backend->device().text();
  return lease->find_or_map(device, options.access, [&] {
    return std::make_shared<mapping>(
        lease, import(*lease, std::move(first), *backend, options.access), options.access, device);
  });
}

/// Memory that stays its exporter's; the broker has asked it whether that is still the same.
std::shared_ptr<mapping> client_impl::map_exporters(const std::shared_ptr<attachment>& lease,
                                                    chunk_batch first,
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
    if (first.files.empty() && info.chunk_count != 0) {
      first = fetch_chunks(*lease, 0);
    }
    base::guarded_fd pool =
        first.files.empty() ? base::guarded_fd() : std::move(first.files.front());
    return std::make_shared<mapping>(lease,
                                     memory::open_remote(info.name, *memory, std::move(pool), user),
                                     options.access,
                                     device);
  });
}

std::shared_ptr<attachment> client_impl::attach(const std::shared_ptr<connection>& broker,
                                                wire::opened& opened,
                                                grant& granted) {
  const std::pair key{static_cast<const connection*>(broker.get()), opened.segment.generation};
  const std::lock_guard lock(attachments_mutex_);
  if (broker->has_successor()) {  // what was granted by then is kept already, and this is not
    throw error(errc::broker_gone,
                "open",
                opened.segment.name,
                "the broker has ended the connection that asked for it",
                "open it again: this process has connected again");
  }
  if (const auto at = attachments_.find(key); at != attachments_.end()) {
    if (auto lease = at->second.lock()) {
      lease->add_grant();
      granted.keep();
      lease->set_published(std::move(opened.metadata));
      return lease;
    }
  }
  auto lease = std::make_shared<attachment>(
      broker, opened.segment, std::move(opened.metadata), std::move(opened.descriptor));
  granted.keep();  // from here on it is the attachment's
  insert_attachment(lease);
  return lease;
}

void client_impl::add_attachment(const std::shared_ptr<attachment>& lease) {
  const std::lock_guard lock(attachments_mutex_);
  insert_attachment(lease);
}

/// With `attachments_mutex_` held. Weak pointers keep the memory of what they pointed to: those of
/// ended leases are swept now and then.
void client_impl::insert_attachment(const std::shared_ptr<attachment>& lease) {
  if (attachments_.size() >= sweep_at_) {
    std::erase_if(attachments_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = attachments_.size() * 2 + 64;
  }
  attachments_[{&lease->broker(), lease->info().generation}] = lease;
}

/// Chunks from `first` on, which did not come with the answer.
client_impl::chunk_batch client_impl::fetch_chunks(const attachment& lease, std::uint32_t first) {
  const wire::segment& info = lease.info();
  answer more = lease.broker().request(
      wire::fetch_chunks{info.generation, first}, {"open", info.name}, request_deadline());
  auto* batch = std::get_if<wire::chunks>(&more.body);
  if (batch == nullptr || batch->generation != info.generation || batch->first_chunk != first ||
      more.descriptors.empty() || more.descriptors.size() != batch->chunk_bytes.size()) {
    throw unexpected_answer({"open", info.name});
  }
  return {std::move(batch->chunk_bytes), std::move(more.descriptors)};
}

std::unique_ptr<memory::region> client_impl::import(const attachment& lease,
                                                    chunk_batch first,
                                                    const memory::backend& backend,
                                                    gpushm::access access) {
  const wire::segment& info = lease.info();
  const auto importer =
      backend.begin_import({info.name, info.allocated_bytes, access, info.offset_bytes});
  std::size_t arrived = 0;
  chunk_batch batch = std::move(first);
  for (;;) {
    for (std::size_t i = 0; i < batch.files.size(); ++i) {
      importer->add(std::move(batch.files[i]), batch.bytes[i]);
    }
    arrived += batch.files.size();
    if (arrived >= info.chunk_count) {
      return importer->finish();
    }
    batch = fetch_chunks(lease, static_cast<std::uint32_t>(arrived));
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
  const auto give_up = base::later(begin, options.timeout);
  for (std::size_t first = 0; first < missing.size(); first += names_a_batch) {
    const std::size_t count = std::min(names_a_batch, missing.size() - first);
    open_options batch = options;
    batch.timeout = time_left(give_up);
    open_batch(names, std::span(missing).subspan(first, count), batch, begin, results);
  }
  return results;
}

/// Opens those of `names` whose indices are in `wanted`. All answers are there before the first is
/// mapped: whoever maps may have to ask for chunks, and to wait for others who do.
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
  const auto deadline =
      base::later(request_deadline(), std::clamp(options.timeout, {}, longest_wait));
  std::vector<answer> answers = connected->open_many(std::move(request), {"open", {}}, deadline);
  std::vector<bool> answered(wanted.size());
  for (answer& got : answers) {
    const auto* failure = std::get_if<wire::failure>(&got.body);
    const auto* opened = std::get_if<wire::opened>(&got.body);
    const std::uint32_t index = failure != nullptr  ? failure->index
                                : opened != nullptr ? opened->index
                                                    : static_cast<std::uint32_t>(wanted.size());
    if (index >= wanted.size() || answered[index]) {
      throw unexpected_answer({"open", {}});
    }
    answered[index] = true;
    open_outcome& result = results[wanted[index]];
    const std::string& name = names[wanted[index]];
    try {
      if (failure != nullptr) {
        throw from_wire(*failure, {"open", name});
      }
      result.opened = use(take(connected, std::move(got), name, options), options, begin);
    } catch (const error& why) {
      result.failure = why;
    }
  }
}

}  // namespace gpushm::detail
