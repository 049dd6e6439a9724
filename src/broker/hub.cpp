// SPDX-License-Identifier: Apache-2.0
#include "broker/hub.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/file.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "broker/chunk_kinds.hpp"
#include "broker/control_page_file.hpp"
#include "wire/codec.hpp"

namespace gpushm::broker_detail {

namespace {

/// Room that the fields of a segment's description take in a packet, names at their longest: a page
/// of a list ends before the packet is full.
constexpr std::size_t description_bytes = 512;
constexpr std::size_t listing_bytes = wire::max_packet_bytes / 2;
/// Names of one open_many that are worked on before others have their turn.
constexpr std::size_t opens_a_turn = 32;

wire::segment fields_of(const core::segment& what) {
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
          what.creator_session != 0,
          what.metadata_bytes(),
          what.offset_bytes};
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

segment_files::~segment_files() {
  if (closed_by) {
    closed_by->close(std::move(chunks));
  }
}

std::vector<std::byte> outgoing::encode() const {
  if (!packet.empty()) {
    return packet;
  }
  if (const auto* answer = std::get_if<wire::opened>(&late.body); answer != nullptr && metadata) {
    wire::opened whole = *answer;
    whole.metadata = metadata->bytes;
    return wire::encode({late.id, std::move(whole)});
  }
  return wire::encode(late);
}

std::uint64_t outgoing::cost() const noexcept {
  constexpr std::uint64_t bytes_a_descriptor = 16;
  std::uint64_t text = packet.size();
  if (const auto* answer = std::get_if<wire::opened>(&late.body);
      packet.empty() && answer != nullptr) {
    text += sizeof(wire::opened) + answer->segment.name.size() + answer->descriptor.size();
  }
  return core::cost::packet + text + descriptors.size() * bytes_a_descriptor;
}

struct hub::context {
  core::session_id session = 0;
  std::uint64_t id = 0;
  session_state& state;
  std::vector<base::guarded_fd>& descriptors;
  core::time_point now;
  std::size_t foreign = 0;

  [[nodiscard]] std::size_t came() const noexcept { return descriptors.size() + foreign; }
};

hub::hub(config options, outbox& out, slot_listener listener, void* listener_context)
    : config_(std::move(options)),
      out_(out),
      listener_(listener),
      listener_context_(listener_context),
      domain_(config_.domain, config_.owner_uid, config_.limits, *this, config_.process) {}

void hub::accept(core::session_id session, const core::peer& who) {
  domain_.connect(session, who);
  try {
    sessions_[session].who = who;
  } catch (...) {
    domain_.disconnect(session, true);
    throw;
  }
  counters_.state_of(domain_);
}

bool hub::is_silent(core::session_id session) const {
  const auto at = sessions_.find(session);
  return at != sessions_.end() && !at->second.greeted;
}

bool hub::lose(core::session_id session, core::time_point now) {
  const auto at = sessions_.find(session);
  if (at == sessions_.end()) {
    return domain_.is_ending(session);  // it was dropped
  }
  if (at->second.said_bye) {
    hang_up(session);
    return false;
  }
  const wire::session_token token = at->second.token;
  const bool is_ending = domain_.lose(session, now);
  sessions_.erase(at);
  if (is_ending && token != wire::session_token{}) {
    lost_.emplace(token, session);
    lost_tokens_.emplace(session, token);
  }
  counters_.state_of(domain_);
  return is_ending;
}

void hub::hang_up(core::session_id session) {
  bool clean = false;
  if (const auto at = sessions_.find(session); at != sessions_.end()) {
    clean = at->second.said_bye;
    sessions_.erase(at);
  } else {
    if (const auto lost = lost_tokens_.extract(session)) {
      lost_.erase(lost.mapped());
    }
  }
  domain_.disconnect(session, clean);
  counters_.state_of(domain_);
}

void hub::work() {
  domain_.work();
  counters_.state_of(domain_);
}

void hub::close(std::vector<base::guarded_fd> files) noexcept {
  if (config_.closer) {
    config_.closer->close(std::move(files));
  }
}

void hub::receive(core::session_id session,
                  std::span<const std::byte> packet,
                  std::vector<base::guarded_fd> descriptors,
                  core::time_point now,
                  std::size_t foreign) {
  now_ = now;
  const auto at = sessions_.find(session);
  if (at == sessions_.end()) {
    close(std::move(descriptors));
    return;
  }
  const std::optional<wire::message> message = wire::decode(packet);
  if (!message) {
    close(std::move(descriptors));
    violate(session, 0, "the packet is not a message of this protocol");
    return;
  }
  const context request{session, message->id, at->second, descriptors, now, foreign};
  try {
    const bool may_carry = std::holds_alternative<wire::attach>(message->body) ||
                           std::holds_alternative<wire::hello>(message->body);
    if (!may_carry && request.came() != 0) {
      throw wrong_count(request.came(), 0);
    }
    const bool is_hello = std::holds_alternative<wire::hello>(message->body);
    if (is_hello == request.state.greeted) {
      close(std::move(descriptors));
      violate(
          session, message->id, is_hello ? "a second hello" : "a request came before the hello");
      return;
    }
    std::visit([&](const auto& body) { handle(request, body); }, message->body);
  } catch (const error& why) {
    fail(session, message->id, 0, why);
  } catch (const std::bad_alloc&) {
    fail(session, message->id, 0, core::broker_out_of_memory());
  }
  close(std::move(descriptors));  // what was not kept
  counters_.state_of(domain_);
}

void hub::receive_without_descriptors(core::session_id session, std::span<const std::byte> packet) {
  const std::optional<wire::message> message = wire::decode(packet);
  if (!message) {
    violate(session, 0, "the packet is not a message of this protocol");
    return;
  }
  fail(session,
       message->id,
       0,
       error(errc::too_many_descriptors,
             {},
             {},
             "the broker has no room for the descriptors of this message",
             "raise the broker's open file limit, or remove segments"));
}

void hub::receive_truncated(core::session_id session) {
  violate(session, 0, "a packet or its descriptors did not fit into the broker's limits");
}

void hub::violate(core::session_id session, std::uint64_t id, std::string_view cause) {
  fail(session,
       id,
       0,
       error(errc::protocol_error, {}, {}, cause, "use a client of protocol version 1"));
  static_cast<void>(lose(session, now_));
  out_.drop(session, cause);
}

void hub::reply(core::session_id to, std::uint64_t id, wire::body body, outgoing packet) {
  counters_.state_of(domain_);  // a client that has its answer finds it counted
  const bool is_late = packet.metadata || packet.subscription;
  packet.late = {id, std::move(body)};
  if (!is_late) {
    packet.packet = wire::encode(packet.late);
    packet.late = {};
  }
  out_.send(to, std::move(packet));
}

void hub::fail(core::session_id to, std::uint64_t id, std::uint32_t index, const error& why) {
  reply(to, id, wire::failure{index, why.code(), why.cause(), why.next_step()});
}

// ---- requests ----

void hub::handle(const context& at, const wire::hello& message) {
  if (message.version == 0) {
    constexpr std::string_view cause = "protocol version 0 does not exist";
    fail(
        at.session, at.id, 0, error(errc::unsupported_version, {}, {}, cause, "update the client"));
    const core::session_id session = at.session;
    static_cast<void>(lose(session, now_));
    out_.drop(session, cause);
    return;
  }
  take_fence(at, message);
  at.state.greeted = true;
  base::random_bytes(at.state.token);
  const bool resumed = resume_lost(at.session, message.resume);
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
                      true,
                      message.fence,
                      static_cast<std::uint32_t>(config_.fence_delay.count()),
                      at.state.token,
                      resumed},
        std::move(packet));
}

void hub::take_fence(const context& at, const wire::hello& message) {
  const std::size_t announced = message.fence == fence::none ? 0 : 2;
  if (at.came() != announced) {
    throw wrong_count(at.came(), announced);
  }
  if (announced == 0) {
    return;
  }
  if (at.foreign != 0 || !is_pidfd(at.descriptors[0].get()) || !is_pipe(at.descriptors[1].get())) {
    throw error(errc::wrong_descriptor_kind,
                {},
                {},
                "the descriptors of a hello are not a pidfd and a pipe",
                "send a pidfd of the client and the read end of its life pipe");
  }
  out_.fence_of(
      at.session, message.fence, std::move(at.descriptors[0]), std::move(at.descriptors[1]));
  at.descriptors.clear();
}

bool hub::resume_lost(core::session_id session, const wire::session_token& token) {
  const auto at = lost_.find(token);
  if (at == lost_.end() || !domain_.resume(at->second, session)) {
    return false;
  }
  out_.resumed(at->second);
  lost_tokens_.erase(at->second);
  lost_.erase(at);
  return true;
}

wire::segment hub::describe(const core::segment& what) const {
  wire::segment result = fields_of(what);
  if (const auto ending = domain_.ending_of(what)) {
    result.creator_alive = result.creator_alive && !domain_.is_ending(what.creator_session);
    result.ending = ending->count;
    result.ending_pid = ending->pid;
    result.ending_ms = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(now_ - ending->since).count());
    result.ending_waits = ending->waits_for;
  }
  return result;
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
    files->held = made.held;
    files->closed_by = config_.closer;
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
  if (at.came() != message.chunk_bytes.size()) {
    throw wrong_count(at.came(), message.chunk_bytes.size());
  }
  const core::segment& what =
      domain_.check_attach(at.session, message.generation, message.first_chunk, at.came());
  if (at.foreign != 0) {
    throw_wrong_chunk_kind(what.backend);
  }
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
  at.descriptors.clear();
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
                at.now,
                message.generation});
}

void hub::handle(const context& at, const wire::open_many& message) {
  at.state.rest = open_rest{at.id, message, 0, deadline_of(message.timeout_ms, at.now), at.now};
  resume(at.session);
}

bool hub::has_rest(core::session_id session) const {
  const auto at = sessions_.find(session);
  return at != sessions_.end() && at->second.rest;
}

void hub::resume(core::session_id session) {
  const auto at = sessions_.find(session);
  if (at == sessions_.end() || !at->second.rest) {
    return;
  }
  open_rest& rest = *at->second.rest;
  const std::vector<std::string>& names = rest.request.names;
  for (std::size_t left = opens_a_turn; left != 0 && rest.next < names.size(); --left) {
    const std::uint32_t index = rest.next++;
    try {
      domain_.open(session,
                   {rest.id,
                    index,
                    names[index],
                    rest.request.expected_size_bytes,
                    rest.deadline,
                    rest.asked});
    } catch (const std::bad_alloc&) {
      fail(session, rest.id, index, core::broker_out_of_memory());
    }
  }
  if (rest.next >= names.size()) {
    at->second.rest.reset();
  }
  counters_.state_of(domain_);
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
  domain_.release(at.session, message.generation, message.count, message.never_mapped);
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

void hub::handle(const context& at, const wire::unfence& message) {
  domain_.unfence(at.session, message.name);
  counters_.unfenced();
  base::log(log_level::warning,
            "domain " + config_.domain + ": pid " + std::to_string(at.state.who.pid) +
                (at.state.who.uid_known ? ", uid " + std::to_string(at.state.who.uid) : "") +
                " gave up what waited for a fence on segment \"" + base::printable(message.name) +
                "\"");
  reply(at.session, at.id, wire::done{});
}

void hub::handle(const context& at, const wire::keep& message) {
  domain_.keep(at.session, message.generations, message.counts, message.more);
  reply(at.session, at.id, wire::done{});
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
  packet.is_answer = false;
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
  packet.metadata = found.metadata;
  packet.descriptors.push_back(files->control_page.get());
  auto sizes = carry_chunks(*files, 0, wire::max_batch - 1, packet.descriptors);
  reply(session,
        request.request,
        wire::opened{request.index, fields_of(found), {}, std::move(sizes), found.descriptor},
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
  outgoing packet;
  packet.is_answer = false;
  reply(exporter, confirmation, wire::confirm{generation}, std::move(packet));
}

void hub::lost(core::session_id holder, const core::change& what) {
  notify(holder, 0, what);
}

}  // namespace gpushm::broker_detail
