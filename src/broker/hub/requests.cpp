// SPDX-License-Identifier: Apache-2.0
#include "broker/hub/requests.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "base/files/file.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text.hpp"
#include "broker/descriptors/chunk_kinds.hpp"
#include "protocol/wire/codec.hpp"
#include "succession/recorder/limited_log.hpp"
#include "sync/timeline_page_file.hpp"

namespace gpushm::broker_detail {

namespace {

/// Upper bound of the bytes that a segment's description takes in a packet, without its name: a
/// page of a list ends before the packet is full.
constexpr std::size_t description_bytes = 512;
constexpr std::size_t listing_bytes = wire::max_packet_bytes / 2;
/// Leases of a page's segments, each of which is looked at; the first segment may have more.
constexpr std::size_t listed_leases = 16'384;
/// Names of one open_many that are opened in one turn.
constexpr std::size_t opens_per_turn = 32;

std::optional<core::time_point> deadline_of(std::uint32_t timeout_ms, core::time_point now) {
  if (timeout_ms == 0) {
    return std::nullopt;
  }
  return now + std::chrono::milliseconds(timeout_ms);
}

/// The session's number, used for look-up, and 16 random bytes.
wire::session_token new_token(core::session_id number) {
  wire::session_token token{};
  base::random_bytes(token);
  std::memcpy(token.data(), &number, sizeof(number));
  return token;
}

core::session_id number_in(const wire::session_token& token) {
  core::session_id number = 0;
  std::memcpy(&number, token.data(), sizeof(number));
  return number;
}

/// The descriptors of Hello: a pidfd and a life pipe.
constexpr std::size_t fence_descriptors = 2;

/// A part of what the request asks for is done; receiving it again does another one.
class more_to_do final : public succession::retry_later {
 public:
  more_to_do()
      : succession::retry_later(
            errc::timed_out, {}, {}, "the request takes several turns", "it is tried again") {}
};

error wrong_count(std::size_t descriptors, std::size_t announced) {
  return {errc::wrong_descriptor_count,
          {},
          {},
          std::to_string(descriptors) + " descriptors received with a message that announces " +
              std::to_string(announced),
          "send exactly the announced descriptors"};
}

}  // namespace

requests::requests(config options,
                   std::shared_ptr<closer> closer,
                   core::domain& domain,
                   effect_sink& effects,
                   domain_recorder& record,
                   timeline_pages& pages,
                   outbox& out,
                   counters& count)
    : config_(std::move(options)),
      closer_(std::move(closer)),
      domain_(domain),
      effects_(effects),
      record_(record),
      pages_(pages),
      out_(out),
      counters_(count) {}

std::size_t requests::descriptors_taken(const session& session,
                                        std::span<const std::byte> packet) const {
  const std::optional<wire::message> message = wire::decode(packet);
  if (!message || session.dropped) {
    return 0;
  }
  if (const auto* const hello = std::get_if<wire::hello>(&message->body)) {
    return session.greeted || hello->fence == fence::none ? 0 : fence_descriptors;
  }
  const auto* const attach = std::get_if<wire::attach>(&message->body);
  if (attach == nullptr || !session.greeted) {
    return 0;
  }
  const std::size_t count = attach->chunk_bytes.size();
  try {
    static_cast<void>(
        domain_.check_attach(session.number, attach->generation, attach->first_chunk, count));
  } catch (const error&) {
    return 0;  // the reply will say why
  }
  return count;
}

prepared requests::handle(const context& context, const wire::hello& message) {
  if (message.version < wire::protocol_version) {
    const std::string cause =
        "this broker does not support protocol version " + std::to_string(message.version);
    const error why(errc::unsupported_version, {}, {}, cause, "update the client");
    effects_.fail(&context.from, context.id, 0, &why);
    effects_.drop(context.from, cause);
    return {};
  }
  if (context.from.has_event_lane) {
    effects_.reject(context.from, context.id, "second Hello");
    return {};
  }
  take_fence(context, message);
  const wire::session_token token = new_token(context.number);
  const auto lane = std::make_shared<const succession::kept_fd>(out_.open_event_lane(context.from));
  context.from.has_event_lane = true;
  const auto welcome = [&](bool resumed) {
    outgoing packet;
    if (config_.state_table >= 0) {
      packet.descriptors = {config_.state_table};
      packet.ids = {0};
    }
    packet.descriptors.push_back(lane->get());
    packet.ids.push_back(lane->id);
    packet.own = lane;
    return prepare(context.id,
                   wire::welcome{wire::protocol_version,
                                 config_.domain,
                                 config_.epoch,
                                 domain_.bounds().max_segments,
                                 domain_.budget().capacity(core::resource::host_bytes),
                                 static_cast<std::uint32_t>(wire::max_batch),
                                 true,
                                 message.fence,
                                 static_cast<std::uint32_t>(config_.fence_delay.count()),
                                 token,
                                 resumed,
                                 wire::known_kinds,
                                 true},
                   std::move(packet));
  };
  prepared fresh = welcome(false);
  prepared again = welcome(true);
  const bool resumed = resume_lost(context.from, message.resume);
  context.from.resumes = domain_.is_resuming(context.number);
  context.from.greeted = true;
  context.from.known_kinds = std::max(message.known_kinds, wire::first_known_kinds);
  context.from.takes_tables = message.takes_tables;
  context.from.knows_versions = message.knows_versions;
  context.from.token = token;
  out_.record(context.from);
  return resumed ? std::move(again) : std::move(fresh);
}

void requests::take_fence(const context& context, const wire::hello& message) {
  const std::size_t announced = message.fence == fence::none ? 0 : fence_descriptors;
  if (context.came() != announced) {
    throw wrong_count(context.came(), announced);
  }
  if (announced == 0) {
    return;
  }
  if (context.foreign != 0 || !is_pidfd(context.descriptors[0].get()) ||
      !is_pipe(context.descriptors[1].get())) {
    throw error(errc::wrong_descriptor_kind,
                {},
                {},
                "the descriptors of Hello are not a pidfd and a pipe",
                "send a pidfd of the client and the read end of its life pipe");
  }
  out_.fence_of(context.from,
                message.fence,
                std::move(context.descriptors[0]),
                std::move(context.descriptors[1]));
  context.descriptors.clear();
}

bool requests::resume_lost(const session& successor, const wire::session_token& token) {
  const session* const lost = session_of(domain_, number_in(token));
  return lost != nullptr && lost->greeted && lost->token == token &&
         domain_.resume(lost->number, successor.number);
}

wire::segment requests::describe(const core::segment& segment, core::time_point now) const {
  wire::segment result = fields_of(segment);
  if (const auto ending = domain_.ending_of(segment)) {
    result.creator_alive = result.creator_alive && !domain_.is_ending(segment.creator_session);
    result.ending = ending->count;
    result.ending_pid = ending->pid;
    result.ending_ms = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(now - ending->since).count());
    result.ending_waits = ending->waits_for;
  }
  return result;
}

prepared requests::handle(const context& context, const wire::reserve& message) {
  if (message.backend == backend::signals) {
    timeline_pages::check_size(message.allocated_bytes);
  }
  std::optional<core::lost_segment> back;
  if (message.generation != 0) {
    back = record_.check_return(message, domain_.peer_of(context.number));
    make_way(*back, domain_.peer_of(context.number));
  } else {
    check_name(context, message.name);
  }
  const core::segment& created = reserve_when_freed(context, message, back);
  const gpushm::generation generation = created.generation;
  const std::uint32_t slot = created.slot;
  try {
    auto files = std::make_shared<segment_files>();
    files->generation = generation;
    files->charge_to(created, created.held);
    files->closed_by = closer_;
    if (back) {
      files->is_by_creator = back->is_creator;
      if (!back->is_creator) {
        record_.note_return(generation, domain_.peer_of(context.number));
      }
    }
    domain_.set_payload(generation, files);
    outgoing packet;
    if (message.backend == backend::signals && !back) {
      pages_.make(created, *files);
      packet.files = files;
      const succession::kept_fd& writable = files->chunks.back();
      packet.descriptors = {writable.get()};
      packet.ids = {writable.id};
    }
    prepared reply =
        prepare(context.id,
                wire::reserved{generation, slot, record_.receipt_for(context.number, created)},
                std::move(packet));
    if (files->writable() != nullptr) {
      domain_.attach(context.number, generation, 0, 1);
      record_.record(*files);
    }
    return reply;
  } catch (...) {
    domain_.release(context.number, generation, 1);  // its only lease: undoes the reservation
    throw;
  }
}

/// A member that begins to hand a segment back and never does so must not keep it from its creator,
/// and from other readers not for long.
void requests::make_way(const core::lost_segment& segment, const core::peer& peer) {
  if (record_.gives_way(segment, peer)) {
    domain_.release(domain_.segment_of(segment.generation).creator_session, segment.generation, 1);
    effects_.settle();  // it has ended, before it begins again
  }
}

/// Memory of removed segments is charged until it is free. To create, remove and create again must
/// not fail at the quota. It waits for what was being freed when it came, not for what others free
/// meanwhile: their churn must not delay a refusal.
const core::segment& requests::reserve_when_freed(const context& context,
                                                  const wire::reserve& message,
                                                  const std::optional<core::lost_segment>& back) {
  const auto waited = std::exchange(context.from.waits_to_reserve, std::nullopt);
  if (closer_) {
    record_.collect(*closer_);
  }
  try {
    return domain_.reserve(context.number, message, back);
  } catch (const error& why) {
    const bool is_full = why.code() == errc::quota_exceeded || why.code() == errc::share_exceeded ||
                         why.code() == errc::too_many_descriptors;
    if (!is_full || !closer_) {
      throw;
    }
    const auto wait = waited.value_or(session::reserve_wait{context.now, closer_->mark()});
    if (closer_->is_freed(wait.mark)) {
      throw;
    }
    if (context.now - wait.since < freeing_patience) {
      context.from.waits_to_reserve = wait;
      throw memory_not_freed(why.code(), {}, {}, why.cause(), "it is tried again");
    }
    throw error(why.code(),
                {},
                {},
                why.cause() + "; of removed segments, " +
                    base::size_text(closer_->freeing_bytes()) + " are not free yet",
                "try again in some seconds, or " + why.next_step());
  }
}

/// The operator need not wait.
void requests::check_name(const context& context, std::string_view name) const {
  record_.check_name(name, domain_.peer_of(context.number), domain_.is_operator(context.number));
}

prepared requests::handle(const context& context, const wire::attach& message) {
  if (context.came() != message.chunk_bytes.size()) {
    throw wrong_count(context.came(), message.chunk_bytes.size());
  }
  record_.check_returner(message.generation, context.number);
  const core::segment& segment =
      domain_.check_attach(context.number, message.generation, message.first_chunk, context.came());
  if (context.foreign != 0) {
    throw_wrong_chunk_kind(segment.backend);
  }
  prepared reply = prepare(context.id, wire::done{});
  segment_files& files = files_of(segment);
  for (std::size_t i = 0; i < context.descriptors.size(); ++i) {
    check_chunk(context.descriptors[i].get(),
                segment.backend,
                message.chunk_bytes[i],
                config_.accept_fake_chunks);
  }
  // Clients only claim sizes; their sum must be what was charged to the quota.
  std::uint64_t left = segment.allocated_bytes;
  const auto take = [&](std::uint64_t bytes) {
    const bool fits = bytes != 0 && bytes <= left;
    left -= fits ? bytes : 0;
    return fits;
  };
  const bool fits = std::all_of(files.chunk_bytes.begin(), files.chunk_bytes.end(), take) &&
                    std::all_of(message.chunk_bytes.begin(), message.chunk_bytes.end(), take);
  const bool last = files.chunks.size() + context.descriptors.size() >= segment.chunk_count;
  if (!fits || (last && left != 0)) {
    throw error(errc::size_mismatch,
                {},
                {},
                "the chunks' sizes do not add up to the reserved bytes",
                "attach chunks that add up to the reserved bytes");
  }
  check_whole_pages(segment.backend, message.chunk_bytes, last);
  files.chunks.reserve(files.chunks.size() + context.descriptors.size());
  const std::size_t changed = files.chunk_bytes.size();
  files.chunk_bytes.reserve(changed + context.descriptors.size());
  succession::kept_fd writable;
  bool by_signaler = true;
  if (segment.backend == backend::signals) {
    succession::kept_fd& given = context.descriptors.front();
    by_signaler = sync::is_open_for_writing(given.get());
    writable = pages_.take_handed_back(segment, given);
    files.chunks.reserve(2);
  }
  domain_.attach(
      context.number, message.generation, message.first_chunk, context.descriptors.size());
  std::move(
      context.descriptors.begin(), context.descriptors.end(), std::back_inserter(files.chunks));
  context.descriptors.clear();
  files.chunk_bytes.insert(
      files.chunk_bytes.end(), message.chunk_bytes.begin(), message.chunk_bytes.end());
  if (writable) {
    files.chunks.push_back(std::move(writable));
  }
  record_.record(files, changed);
  if (!by_signaler) {  // it has not reconnected
    pages_.end(message.generation);
  }
  return reply;
}

prepared requests::handle(const context& context, const wire::publish& message) {
  // Waiting opens are answered first; the creator gets `done` when all can see the segment.
  prepared reply = prepare(context.id, wire::done{});
  record_.check_publication(message, context.number);
  domain_.publish(context.number, message.generation, message.metadata);
  return reply;
}

prepared requests::handle(const context& context, const wire::open& message) {
  domain_.open(context.number,
               {context.id,
                0,
                message.name,
                message.expected_size_bytes,
                deadline_of(message.timeout_ms, context.now),
                context.now,
                message.generation});
  return {};
}

prepared requests::handle(const context& context, const wire::open_many& message) {
  open_rest rest{context.id, message, 0, deadline_of(message.timeout_ms, context.now), context.now};
  const auto count = static_cast<std::uint32_t>(message.names.size());
  // The client may read no replies, and the rest stays, in the heap and in the journal.
  if (count > opens_per_turn) {
    rest.held = domain_.new_charges(context.number);
    try {
      rest.held.take(core::resource::memory_bytes, rest.memory_bytes());
    } catch (const error& why) {
      for (std::uint32_t index = 0; index < count && !context.from.dropped; ++index) {
        effects_.fail(&context.from, context.id, index, &why);
      }
      return {};
    }
  }
  context.from.rest = std::move(rest);
  open_some(context.from);
  return {};
}

void requests::open_some(session& session) {
  if (!session.rest) {
    return;
  }
  open_rest& rest = *session.rest;
  const std::vector<std::string>& names = rest.request.names;
  for (std::size_t left = opens_per_turn; left != 0 && rest.next < names.size(); --left) {
    const std::uint32_t index = rest.next++;
    try {
      domain_.open(session.number,
                   {rest.id,
                    index,
                    names[index],
                    rest.request.expected_size_bytes,
                    rest.deadline,
                    rest.asked});
    } catch (const std::bad_alloc&) {
      effects_.fail(&session, rest.id, index, nullptr);
      if (session.dropped) {
        break;
      }
    }
  }
  if (session.rest && rest.next >= names.size()) {
    session.rest.reset();
  }
  out_.record(session);
  effects_.settle();
}

prepared requests::handle(const context& context, const wire::fetch_chunks& message) {
  const core::segment& segment = domain_.held(context.number, message.generation);
  const auto files = shared_files_of(segment);
  if (files->is_lost) {
    throw error(errc::segment_removed,
                {},
                {},
                "its memory was lost when the broker was replaced: its keeper had no room for it",
                "create it again; raise the keeper's limit of descriptors");
  }
  if (message.first_chunk >= files->chunk_bytes.size()) {
    throw error(errc::invalid_argument,
                {},
                {},
                "the segment has only " + std::to_string(files->chunk_bytes.size()) + " chunks",
                "request chunks that exist");
  }
  outgoing packet;
  packet.files = files;
  auto sizes = carry_chunks(packet, message.first_chunk);
  return prepare(context.id,
                 wire::chunks{message.generation, message.first_chunk, std::move(sizes)},
                 std::move(packet));
}

prepared requests::handle(const context& context, const wire::release& message) {
  domain_.release(context.number, message.generation, message.count, message.never_mapped);
  return {};
}

prepared requests::handle(const context& context, const wire::remove& message) {
  prepared reply = prepare(context.id, wire::done{});
  domain_.remove(context.number, message.name, message.generation);
  return reply;
}

prepared requests::handle(const context& context, const wire::list& message) {
  return prepare(context.id, list_page(context, message.prefix, message.after));
}

wire::listing requests::list_page(const context& context,
                                  const std::string& prefix,
                                  const std::string& after) const {
  wire::listing page;
  std::size_t used = 0;
  std::size_t leases = 0;
  domain_.list(context.number, prefix, after, [&](const core::segment& segment) {
    if (!is_known_to(context.from, segment)) {
      return true;
    }
    used += description_bytes + segment.name.size();
    leases += segment.leases.size();
    if (used > listing_bytes || (leases > listed_leases && !page.segments.empty())) {
      page.more = true;
      return false;
    }
    page.segments.push_back(describe(segment, context.now));
    return true;
  });
  return page;
}

prepared requests::handle(const context& context, const wire::stat& message) {
  const core::segment& found = domain_.stat(context.number, message.name, message.generation);
  if (!is_known_to(context.from, found)) {
    throw unknown_kind();
  }
  return prepare(context.id, wire::listing{{describe(found, context.now)}, false});
}

prepared requests::handle(const context& context, const wire::subscribe& message) {
  wire::listing page = list_page(context, message.prefix, {});
  prepared reply = prepare(
      context.id,
      wire::subscribed{std::move(page.segments), page.more, out_.events_queued(context.from)});
  domain_.subscribe(context.number, context.id, message.prefix);
  return reply;
}

prepared requests::handle(const context& context, const wire::unsubscribe& message) {
  prepared reply = prepare(context.id, wire::done{});
  domain_.unsubscribe(context.number, message.subscription);
  return reply;
}

prepared requests::handle(const context& context, const wire::bye& /*message*/) {
  context.from.sent_bye = true;
  out_.record(context.from);
  return {};
}

prepared requests::handle(const context& context, const wire::confirmed& message) {
  for (std::size_t i = 0; i < message.questions.size() && !context.from.dropped; ++i) {
    domain_.confirmed(
        context.number, message.questions[i], static_cast<core::verdict>(message.verdicts[i]));
    effects_.settle();  // one at a time: there is capacity for the effects of one
  }
  domain_.send_questions(context.number);  // all in one packet
  return {};
}

prepared requests::handle(const context& /*context*/, const wire::report& message) {
  counters_.reported(message);
  return {};
}

/// In turns: a process may have ended with thousands of connections.
prepared requests::handle(const context& context, const wire::unfence& message) {
  prepared reply = prepare(context.id, wire::done{});
  const bool has_begun = std::exchange(context.from.goes_on, std::nullopt) == context.id;
  const core::peer& who = domain_.peer_of(context.number);
  const std::string line = "domain " + config_.domain + ": pid " + std::to_string(who.pid) +
                           (who.uid_known ? ", uid " + std::to_string(who.uid) : "") +
                           " ended leases without a fence on segment \"" +
                           base::printable(message.name) + "\"";
  bool more = false;
  try {
    more = domain_.unfence(context.number, message.name);
  } catch (const error&) {
    if (!has_begun) {
      throw;
    }  // the rest has ended meanwhile
  }
  if (more) {
    context.from.goes_on = context.id;
    throw more_to_do();
  }
  counters_.unfenced();
  succession::log_about_members(log_level::warning, line);
  return reply;
}

prepared requests::handle(const context& context, const wire::keep& message) {
  prepared reply = prepare(context.id, wire::done{});
  domain_.keep(context.number, message.generations, message.counts, message.more);
  return reply;
}

prepared requests::handle(const context& context, const wire::cancel& message) {
  prepared cancelled = prepare(context.id, wire::cancelled{});
  prepared too_late = prepare(context.id, wire::too_late{out_.events_queued(context.from)});
  // Only of a client that has used one id for several requests.
  if (domain_.cancel_some(context.number, message.request)) {
    context.from.goes_on = context.id;
    throw more_to_do();
  }
  const bool has_begun = std::exchange(context.from.goes_on, std::nullopt) == context.id;
  return domain_.cancel(context.number, message.request) || has_begun ? std::move(cancelled)
                                                                      : std::move(too_late);
}

prepared requests::handle(const context& context, const wire::create_version& message) {
  const std::uint64_t number = domain_.create_version(
      context.number,
      {message.base, message.number, message.parts, {message.keep_versions, message.keep_bytes}});
  return prepare(context.id, wire::version_created{number});
}

prepared requests::handle(const context& context, const wire::change_version& message) {
  prepared reply = prepare(context.id, wire::done{});
  switch (message.change) {
    case wire::version_change::withdraw:
      domain_.withdraw_version(context.number, message.base, message.number);
      break;
    case wire::version_change::move_alias:
      domain_.move_alias(context.number, message.base, message.alias, message.number);
      break;
    case wire::version_change::remove_alias:
      domain_.remove_alias(context.number, message.base, message.alias);
      break;
  }
  return reply;
}

prepared requests::handle(const context& context, const wire::resolve& message) {
  const core::resolved_version result = domain_.resolve(message.name);
  return prepare(context.id,
                 wire::resolved{result.number, result.alias.slot, result.alias.generation});
}

prepared requests::handle(const context& context, const wire::list_versions& message) {
  wire::versions list;
  for (core::version_facts& each : domain_.versions_of(message.base)) {
    list.versions.push_back({each.number,
                             each.state,
                             each.withdrawn,
                             each.bytes,
                             static_cast<std::uint32_t>(each.held),
                             std::move(each.aliases)});
  }
  return prepare(context.id, std::move(list));
}

template <typename Reply>
prepared requests::handle(const context& context, const Reply& /*message*/) {
  effects_.reject(context.from, context.id, "a client sent a message that only brokers send");
  return {};
}

prepared requests::handle(const context& context, const wire::body& message) {
  const bool is_hello = std::holds_alternative<wire::hello>(message);
  if (!is_hello && !std::holds_alternative<wire::attach>(message) && context.came() != 0) {
    throw wrong_count(context.came(), 0);
  }
  if (is_hello == context.from.greeted) {
    effects_.reject(context.from, context.id, is_hello ? "second Hello" : "request before Hello");
    return {};
  }
  return std::visit([&](const auto& body) { return handle(context, body); }, message);
}

}  // namespace gpushm::broker_detail
