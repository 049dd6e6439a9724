// SPDX-License-Identifier: Apache-2.0
#include "broker/hub.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "broker/chunk_kinds.hpp"
#include "broker/control_page_file.hpp"
#include "wire/codec.hpp"

namespace gpushm::broker_detail {

namespace {

/// Room that the fields of a segment's description take in a packet, names at their longest: a page
/// of a list ends before the packet is full.
constexpr std::size_t description_bytes = 512;
constexpr std::size_t listing_bytes = wire::max_packet_bytes / 2;

wire::segment describe(const core::segment& what, bool creator_alive) {
  return {what.name,
          what.generation,
          what.slot,
          what.size_bytes,
          what.allocated_bytes,
          what.chunk_count,
          what.device,
          what.backend,
          what.lifetime,
          what.published,
          what.removed,
          static_cast<std::uint32_t>(what.leases.size()),
          what.creator.uid,
          what.creator.pid,
          creator_alive,
          what.metadata.size(),
          what.offset_bytes};
}

wire::segment describe(const core::segment& what) {
  return describe(what, what.creator_session != 0);
}

/// Puts up to `room` chunks from `first` on into a packet; their sizes are the result.
std::vector<std::uint64_t> carry_chunks(const segment_files& files,
                                        std::size_t first,
                                        std::size_t room,
                                        std::vector<int>& descriptors) {
  const std::size_t end = std::min(files.chunks.size(), first + room);
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = first; i < end; ++i) {
    descriptors.push_back(files.chunks[i].get());
    sizes.push_back(files.chunk_bytes[i]);
  }
  return sizes;
}

std::optional<core::time_point> deadline_of(std::uint32_t timeout_ms, core::time_point now) {
  if (timeout_ms == 0) {
    return std::nullopt;
  }
  return now + std::chrono::milliseconds(timeout_ms);
}

error wrong_count(std::size_t descriptors, std::size_t announced) {
  return {errc::wrong_descriptor_count,
          {},
          {},
          std::to_string(descriptors) + " descriptors came with a message that announces " +
              std::to_string(announced),
          "send exactly the announced descriptors"};
}

}  // namespace

struct hub::context {
  core::session_id session = 0;
  std::uint64_t id = 0;
  session_state& state;
  std::vector<base::unique_fd>& descriptors;
  core::time_point now;
};

hub::hub(config options, outbox& out, slot_listener listener, void* listener_context)
    : config_(std::move(options)),
      out_(out),
      listener_(listener),
      listener_context_(listener_context),
      domain_(config_.domain, config_.owner_uid, config_.limits, *this) {}

void hub::accept(core::session_id session, const core::peer& who) {
  sessions_[session].who = who;
}

bool hub::is_silent(core::session_id session) const {
  const auto at = sessions_.find(session);
  return at != sessions_.end() && !at->second.greeted;
}

void hub::hang_up(core::session_id session) {
  const auto at = sessions_.find(session);
  if (at == sessions_.end()) {
    return;
  }
  const bool clean = at->second.said_bye;
  sessions_.erase(at);
  domain_.disconnect(session, clean);
  counters_.state_of(domain_);
}

void hub::receive(core::session_id session,
                  std::span<const std::byte> packet,
                  std::vector<base::unique_fd> descriptors,
                  core::time_point now) {
  const auto at = sessions_.find(session);
  if (at == sessions_.end()) {
    return;
  }
  const std::optional<wire::message> message = wire::decode(packet);
  if (!message) {
    violate(session, 0, "the packet is not a message of this protocol");
    return;
  }
  const context request{session, message->id, at->second, descriptors, now};
  try {
    const bool may_carry = std::holds_alternative<wire::attach>(message->body);
    if (!may_carry && !descriptors.empty()) {
      throw wrong_count(descriptors.size(), 0);
    }
    const bool is_hello = std::holds_alternative<wire::hello>(message->body);
    if (is_hello == request.state.greeted) {
      violate(
          session, message->id, is_hello ? "a second hello" : "a request came before the hello");
      return;
    }
    std::visit([&](const auto& body) { handle(request, body); }, message->body);
  } catch (const error& why) {
    fail(session, message->id, 0, why);
  } catch (const std::bad_alloc&) {
    fail(session,
         message->id,
         0,
         error(errc::out_of_memory,
               {},
               {},
               "the broker is out of memory",
               "give the broker more memory"));
  }
  counters_.state_of(domain_);
}

void hub::receive_truncated(core::session_id session) {
  violate(session, 0, "a packet or its descriptors did not fit into the broker's limits");
}

void hub::violate(core::session_id session, std::uint64_t id, std::string_view cause) {
  fail(session,
       id,
       0,
       error(errc::protocol_error, {}, {}, cause, "use a client of protocol version 1"));
  hang_up(session);
  out_.drop(session);
}

void hub::reply(core::session_id to, std::uint64_t id, wire::body body, outgoing packet) {
  counters_.state_of(domain_);  // who has an answer finds it counted
  packet.packet = wire::encode({id, std::move(body)});
  out_.send(to, std::move(packet));
}

void hub::fail(core::session_id to, std::uint64_t id, std::uint32_t index, const error& why) {
  reply(to, id, wire::failure{index, why.code(), why.cause(), why.next_step()});
}

// ---- requests ----

void hub::handle(const context& at, const wire::hello& message) {
  if (message.version == 0) {
    fail(at.session,
         at.id,
         0,
         error(errc::unsupported_version,
               {},
               {},
               "protocol version 0 does not exist",
               "update the client"));
    hang_up(at.session);
    out_.drop(at.session);
    return;
  }
  try {
    domain_.connect(at.session, at.state.who);
  } catch (const error& why) {
    fail(at.session, at.id, 0, why);
    hang_up(at.session);
    out_.drop(at.session);
    return;
  }
  at.state.greeted = true;
  outgoing packet;
  if (config_.state_table >= 0) {
    packet.descriptors = {config_.state_table};
  }
  reply(at.session,
        at.id,
        wire::welcome{std::min(message.version, wire::protocol_version),
                      config_.domain,
                      config_.epoch,
                      domain_.bounds().max_segments,
                      domain_.bounds().quota_bytes,
                      static_cast<std::uint32_t>(wire::max_batch),
                      true},
        std::move(packet));
}

void hub::handle(const context& at, const wire::reserve& message) {
  const core::segment& made = domain_.reserve(at.session,
                                              {message.name,
                                               message.size_bytes,
                                               message.allocated_bytes,
                                               message.chunk_count,
                                               message.device,
                                               message.backend,
                                               message.lifetime,
                                               message.offset_bytes,
                                               message.descriptor});
  const gpushm::generation generation = made.generation;
  const std::uint32_t slot = made.slot;
  try {
    auto files = std::make_shared<segment_files>();
    files->control_page = make_control_page(config_.epoch, generation);
    outgoing packet;
    packet.descriptors = {files->control_page.get()};
    packet.files = files;
    files_.emplace(generation, std::move(files));
    reply(at.session, at.id, wire::reserved{generation, slot}, std::move(packet));
  } catch (...) {
    domain_.release(at.session, generation, 1);  // its only lease: the reservation is undone
    throw;
  }
}

void hub::handle(const context& at, const wire::attach& message) {
  if (at.descriptors.size() != message.chunk_bytes.size()) {
    throw wrong_count(at.descriptors.size(), message.chunk_bytes.size());
  }
  const core::segment& what = domain_.check_attach(
      at.session, message.generation, message.first_chunk, at.descriptors.size());
  segment_files& files = *files_.at(message.generation);
  for (std::size_t i = 0; i < at.descriptors.size(); ++i) {
    check_chunk(
        at.descriptors[i].get(), what.backend, message.chunk_bytes[i], config_.accept_fake_chunks);
  }
  // Sizes are what clients claim; together they must be what the quota was asked for.
  std::uint64_t left = what.allocated_bytes;
  const auto take = [&](std::uint64_t bytes) {
    const bool fits = bytes != 0 && bytes <= left;
    left -= fits ? bytes : 0;
    return fits;
  };
  const bool fits = std::all_of(files.chunk_bytes.begin(), files.chunk_bytes.end(), take) &&
                    std::all_of(message.chunk_bytes.begin(), message.chunk_bytes.end(), take);
  const bool last = files.chunks.size() + at.descriptors.size() >= what.chunk_count;
  if (!fits || (last && left != 0)) {
    throw error(errc::size_mismatch,
                {},
                {},
                "the chunks' sizes do not add up to the reserved bytes",
                "attach what was reserved");
  }
  files.chunks.reserve(files.chunks.size() + at.descriptors.size());
  files.chunk_bytes.reserve(files.chunk_bytes.size() + at.descriptors.size());
  domain_.attach(at.session, message.generation, message.first_chunk, at.descriptors.size());
  std::move(at.descriptors.begin(), at.descriptors.end(), std::back_inserter(files.chunks));
  files.chunk_bytes.insert(
      files.chunk_bytes.end(), message.chunk_bytes.begin(), message.chunk_bytes.end());
  reply(at.session, at.id, wire::done{});
}

void hub::handle(const context& at, const wire::publish& message) {
  // Those who wait are answered first; the creator hears "done" when they can all see it.
  domain_.publish(at.session, message.generation, message.metadata);
  reply(at.session, at.id, wire::done{});
}

void hub::handle(const context& at, const wire::open& message) {
  domain_.open(at.session,
               {at.id,
                0,
                message.name,
                message.expected_size_bytes,
                deadline_of(message.timeout_ms, at.now),
                at.now});
}

void hub::handle(const context& at, const wire::open_many& message) {
  const auto deadline = deadline_of(message.timeout_ms, at.now);
  for (std::uint32_t index = 0; index < message.names.size(); ++index) {
    domain_.open(
        at.session,
        {at.id, index, message.names[index], message.expected_size_bytes, deadline, at.now});
  }
}

void hub::handle(const context& at, const wire::fetch_chunks& message) {
  const core::segment& what = domain_.held(at.session, message.generation);
  const auto& files = files_.at(what.generation);
  if (message.first_chunk >= files->chunks.size()) {
    throw error(errc::invalid_argument,
                {},
                {},
                "the segment has only " + std::to_string(files->chunks.size()) + " chunks",
                "ask for chunks that exist");
  }
  outgoing packet;
  packet.files = files;
  auto sizes = carry_chunks(*files, message.first_chunk, wire::max_batch, packet.descriptors);
  reply(at.session,
        at.id,
        wire::chunks{message.generation, message.first_chunk, std::move(sizes)},
        std::move(packet));
}

void hub::handle(const context& at, const wire::release& message) {
  domain_.release(at.session, message.generation, message.count);
}

void hub::handle(const context& at, const wire::remove& message) {
  domain_.remove(at.session, message.name, message.generation);
  reply(at.session, at.id, wire::done{});
}

void hub::handle(const context& at, const wire::list& message) {
  wire::listing page;
  std::size_t used = 0;
  domain_.list(at.session, message.prefix, message.after, [&](const core::segment& what) {
    used += description_bytes + what.name.size();
    if (used > listing_bytes) {
      page.more = true;
      return false;
    }
    page.segments.push_back(describe(what));
    return true;
  });
  reply(at.session, at.id, std::move(page));
}

void hub::handle(const context& at, const wire::stat& message) {
  reply(
      at.session, at.id, wire::listing{{describe(domain_.stat(at.session, message.name))}, false});
}

void hub::handle(const context& at, const wire::subscribe& message) {
  domain_.subscribe(at.session, at.id, message.prefix);
  reply(at.session, at.id, wire::done{});
}

void hub::handle(const context& at, const wire::unsubscribe& message) {
  domain_.unsubscribe(at.session, message.subscription);
  reply(at.session, at.id, wire::done{});
}

void hub::handle(const context& at, const wire::bye& /*message*/) {
  at.state.said_bye = true;
}

void hub::handle(const context& at, const wire::confirmed& message) {
  domain_.confirmed(at.session, at.id, static_cast<core::verdict>(message.verdict));
}

void hub::handle(const context& /*at*/, const wire::report& message) {
  counters_.reported(message);
}

template <typename Answer>
void hub::handle(const context& at, const Answer& /*message*/) {
  violate(at.session, at.id, "a client sent a broker's message");
}

// ---- what the domain says ----

void hub::slot_changed(std::uint32_t slot,
                       gpushm::generation generation,
                       std::optional<segment_state> state) {
  listener_(listener_context_, slot, generation, state);
}

void hub::freed(const core::segment& gone) {
  files_.erase(gone.generation);
}

void hub::notify(core::session_id session, std::uint64_t subscription, const core::change& what) {
  outgoing packet;
  packet.subscription = subscription;
  reply(session,
        subscription,
        wire::event{what.kind, std::string(what.name), what.generation, what.leases, what.peer_pid},
        std::move(packet));
}

void hub::opened(core::session_id session,
                 const core::open_request& request,
                 const core::segment& found) {
  counters_.opened();
  const auto& files = files_.at(found.generation);
  outgoing packet;
  packet.files = files;
  packet.descriptors.push_back(files->control_page.get());
  auto sizes = carry_chunks(*files, 0, wire::max_batch - 1, packet.descriptors);
  reply(session,
        request.request,
        wire::opened{
            request.index, describe(found), found.metadata, std::move(sizes), found.descriptor},
        std::move(packet));
}

void hub::open_failed(core::session_id session,
                      const core::open_request& request,
                      const error& why) {
  counters_.open_failed(why.code());
  fail(session, request.request, request.index, why);
}

void hub::confirm(core::session_id exporter,
                  std::uint64_t confirmation,
                  gpushm::generation generation) {
  reply(exporter, confirmation, wire::confirm{generation});
}

void hub::lost(core::session_id holder, const core::change& what) {
  notify(holder, 0, what);
}

}  // namespace gpushm::broker_detail
