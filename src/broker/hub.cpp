// SPDX-License-Identifier: Apache-2.0
#include "broker/hub.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "base/file.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "broker/chunk_kinds.hpp"
#include "broker/reopen.hpp"
#include "sync/signal_page.hpp"
#include "sync/signal_page_file.hpp"
#include "wire/codec.hpp"

namespace gpushm::broker_detail {

namespace {

/// Upper bound of the bytes that a segment's description takes in a packet, without its name: a
/// page of a list ends before the packet is full.
constexpr std::size_t description_bytes = 512;
constexpr std::size_t listing_bytes = wire::max_packet_bytes / 2;
/// Names of one open_many that are opened in one turn.
constexpr std::size_t opens_per_turn = 32;

wire::segment fields_of(const core::segment& what) {
  wire::segment result{static_cast<const base::segment_facts&>(what)};
  result.generation = what.generation;
  result.slot = what.slot;
  result.published = what.published;
  result.removed = what.removed;
  result.leases = static_cast<std::uint32_t>(what.leases.size());
  result.creator_uid = what.creator.uid;
  result.creator_pid = what.creator.pid;
  result.creator_alive = what.creator_session != 0;
  result.metadata_bytes = what.metadata_bytes();
  return result;
}

segment_files& files_of(const core::segment& what) {
  return static_cast<segment_files&>(*what.payload);
}

std::shared_ptr<const segment_files> shared_files_of(const core::segment& what) {
  return std::static_pointer_cast<const segment_files>(what.payload);
}

/// Adds up to `wire::max_batch` chunks of `packet.files`, starting at `first`, to a packet. Returns
/// their sizes.
std::vector<std::uint64_t> carry_chunks(outgoing& packet, std::size_t first) {
  const segment_files& files = *packet.files;
  const std::size_t end = std::min(files.chunk_bytes.size(), first + wire::max_batch);
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = first; i < end; ++i) {
    packet.descriptors.push_back(files.chunks[i].get());
    packet.ids.push_back(files.chunks[i].id);
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

/// Clients of earlier versions cannot decode descriptions of later kinds.
bool is_known_to(const session& member, const core::segment& what) noexcept {
  return static_cast<std::uint32_t>(what.backend) < member.known_kinds;
}

error unknown_kind() {
  return {errc::no_such_segment,
          {},
          {},
          "this name is that of a timeline, which this version of the client does not know",
          "update the client"};
}

/// Of Hello: a pidfd and a life pipe.
constexpr std::size_t fence_descriptors = 2;

error wrong_count(std::size_t descriptors, std::size_t announced) {
  return {errc::wrong_descriptor_count,
          {},
          {},
          std::to_string(descriptors) + " descriptors received with a message that announces " +
              std::to_string(announced),
          "send exactly the announced descriptors"};
}

/// Not known if the file is none.
page_identity identity_of(int file) noexcept {
  struct stat status {};
  return ::fstat(file, &status) == 0 ? page_identity{status.st_dev, status.st_ino}
                                     : page_identity{};
}

/// Throws size_mismatch.
void check_page_size(std::uint64_t bytes) {
  if (!sync::is_signal_page_size(bytes)) {
    throw error(errc::size_mismatch,
                {},
                {},
                "a page of timelines has " + std::to_string(sync::signal_page_bytes) + " to " +
                    std::to_string(sync::max_signal_page_bytes) + " bytes, a multiple of 4,096",
                "reserve such a size");
  }
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
  constexpr std::uint64_t bytes_per_descriptor = 16;
  std::uint64_t text = packet.size();
  if (const auto* answer = std::get_if<wire::opened>(&late.body);
      packet.empty() && answer != nullptr) {
    text += sizeof(wire::opened) + answer->segment.name.size() + answer->ticket.size();
  }
  return core::cost::packet + text + descriptors.size() * bytes_per_descriptor;
}

struct hub::context {
  session& from;
  core::session_id number = 0;  ///< of `from`
  std::uint64_t id = 0;
  std::vector<kept_fd>& descriptors;
  core::time_point now;
  std::size_t foreign = 0;

  [[nodiscard]] std::size_t came() const noexcept { return descriptors.size() + foreign; }
};

hub::hub(config options, outbox& out, slot_listener listener, void* listener_context)
    : config_(std::move(options)),
      recorder_(config_.records != nullptr ? *config_.records : off_),
      out_(out),
      listener_(listener),
      listener_context_(listener_context),
      domain_(config_.from == nullptr
                  ? core::domain(config_.domain, config_.owner_uid, config_.limits, config_.process)
                  : core::domain(config_.domain,
                                 config_.owner_uid,
                                 config_.limits,
                                 config_.process,
                                 *config_.from)) {
  if (config_.ledger != nullptr && config_.from != nullptr) {
    for (const auto& [name, value] : config_.from->records) {
      if (name.kind == core::record_kind::segment) {
        note_in_ledger(name.first, true);
      }
    }
    config_.ledger->end_continuing();
  }
  config_.from = nullptr;
  counters_.state_of(domain_);
}

void hub::accept(const std::shared_ptr<session>& created, const core::peer& who) {
  domain_.connect(created->number, who, created);
  out_.record(*created);
  settle();
  finish();
}

void hub::restore(std::shared_ptr<session> created) {
  const core::session_id number = created->number;
  domain_.set_session_payload(number, std::move(created));
}

void hub::restore(gpushm::generation generation, std::shared_ptr<segment_files> files) {
  files->generation = generation;
  files->held = domain_.segment_of(generation).held;
  files->closed_by = config_.closer;
  const bool is_page = files->writable() != nullptr;
  domain_.set_payload(generation, std::move(files));
  if (is_page) {
    note_in_ledger(generation, true);  // an earlier version did not say which page it is
  }
}

void hub::lose_memory(gpushm::generation generation) {
  domain_.lose_memory(generation);
  settle();
  finish();
}

bool hub::lose(session& gone, core::time_point now) {
  gone.dropped = true;
  gone.rest.reset();
  bool is_ending = false;
  if (gone.sent_bye) {
    disconnect(gone.number);
  } else {
    is_ending = domain_.lose(gone.number, now);
    if (is_ending) {
      out_.record(gone);
    }
    settle();
  }
  finish();
  return is_ending;
}

void hub::hang_up(core::session_id number) {
  disconnect(number);
  finish();
}

void hub::disconnect(core::session_id number) {
  const session* const gone = find(number);
  domain_.disconnect(number, gone != nullptr && gone->sent_bye);
  settle();
}

void hub::work() {
  domain_.work();
  settle();
  finish();
}

void hub::tick(core::time_point now) {
  now_ = now;
  domain_.tick(now);
  settle();
  finish();
}

void hub::close(std::vector<kept_fd> files) noexcept {
  if (config_.closer) {
    config_.closer->close(std::move(files));
  }
}

void hub::receive(session& from,
                  std::span<const std::byte> packet,
                  std::vector<kept_fd> descriptors,
                  core::time_point now,
                  std::size_t foreign,
                  lane_kind on) {
  now_ = now;
  receive_one(from, packet, std::move(descriptors), foreign, on);
  finish();
}

void hub::receive_one(session& from,
                      std::span<const std::byte> packet,
                      std::vector<kept_fd> descriptors,
                      std::size_t foreign,
                      lane_kind on) {
  if (from.dropped) {
    close(std::move(descriptors));
    return;
  }
  std::optional<wire::message> message;
  try {
    message = wire::decode(packet);
  } catch (const std::bad_alloc&) {
    close(std::move(descriptors));
    if (const std::uint64_t id = wire::id_of(packet); id != 0) {  // without an id: no answer
      fail(&from, id, 0, nullptr);
    }
    if (on == lane_kind::events) {
      domain_.resend_questions(from.number);  // the lost packet may have been its answers
      settle();
    }
    return;
  }
  if (!message) {
    close(std::move(descriptors));
    reject(from, 0, "the packet is not a message of this protocol");
    return;
  }
  if ((on == lane_kind::events) != wire::is_sent_on_event_lane(message->body)) {
    close(std::move(descriptors));
    reject(from, message->id, "message received on the wrong lane");
    return;
  }
  const context request{from, from.number, message->id, descriptors, now_, foreign};
  prepared answer;
  std::optional<error> refused;
  bool failed = false;
  try {
    const bool may_carry = std::holds_alternative<wire::attach>(message->body) ||
                           std::holds_alternative<wire::hello>(message->body);
    if (!may_carry && request.came() != 0) {
      throw wrong_count(request.came(), 0);
    }
    const bool is_hello = std::holds_alternative<wire::hello>(message->body);
    if (is_hello == from.greeted) {
      close(std::move(descriptors));
      reject(from, message->id, is_hello ? "second Hello" : "request before Hello");
      return;
    }
    answer = std::visit([&](const auto& body) { return handle(request, body); }, message->body);
  } catch (const error& why) {
    failed = true;
    refused = why;
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  settle(&from, std::move(answer));
  if (failed) {
    fail(&from, message->id, 0, refused ? &*refused : nullptr);
  }
  close(std::move(descriptors));  // those not moved from
}

std::size_t hub::descriptors_taken(const session& by, std::span<const std::byte> packet) const {
  const std::optional<wire::message> message = wire::decode(packet);
  if (!message || by.dropped) {
    return 0;
  }
  if (const auto* const hello = std::get_if<wire::hello>(&message->body)) {
    return by.greeted || hello->fence == fence::none ? 0 : fence_descriptors;
  }
  const auto* const attach = std::get_if<wire::attach>(&message->body);
  if (attach == nullptr || !by.greeted) {
    return 0;
  }
  const std::size_t count = attach->chunk_bytes.size();
  try {
    static_cast<void>(
        domain_.check_attach(by.number, attach->generation, attach->first_chunk, count));
  } catch (const error&) {
    return 0;  // the answer will say why
  }
  return count;
}

void hub::receive_without_descriptors(session& from, std::span<const std::byte> packet) {
  const std::optional<wire::message> message = wire::decode(packet);
  if (!message) {
    violate(from, 0, "the packet is not a message of this protocol");
    return;
  }
  const error why(errc::too_many_descriptors,
                  {},
                  {},
                  "the broker has no room for the descriptors of this message",
                  "raise the broker's open file limit, or remove segments");
  fail(&from, message->id, 0, &why);
  finish();
}

void hub::discard(std::vector<kept_fd> descriptors) noexcept {
  close(std::move(descriptors));
  finish();
}

void hub::receive_truncated(session& from) {
  violate(from, 0, "a packet or its descriptors exceed the broker's limits");
}

void hub::violate(session& by, std::uint64_t id, std::string_view cause) {
  reject(by, id, cause);
  finish();
}

void hub::reject(session& by, std::uint64_t id, std::string_view cause) {
  const error why(errc::protocol_error, {}, {}, cause, "use a client of protocol version 2");
  fail(&by, id, 0, &why);
  drop(by, cause);
}

void hub::drop(session& of, std::string_view why) noexcept {
  if (!std::exchange(of.dropped, true)) {
    of.rest.reset();
    out_.record(of);
    out_.drop(of, why);
  }
}

void hub::send(session* to, prepared packet) noexcept {
  if (to != nullptr && !to->dropped) {
    out_.send(*to, std::move(packet));
  }
}

prepared hub::prepare(std::uint64_t id, wire::body body, outgoing packet) const {
  const bool is_late = packet.metadata || packet.subscription;
  packet.late = {id, std::move(body)};
  if (!is_late) {
    packet.packet = wire::encode(packet.late);
    packet.late = {};
  }
  prepared result;
  result.push_back(std::move(packet));
  return result;
}

void hub::fail(
    session* to, std::uint64_t id, std::uint32_t index, const error* why, lane_kind on) noexcept {
  if (to == nullptr) {
    return;
  }
  const auto attempt = [&](const error& reason) {
    outgoing packet;
    packet.on_event_lane = on == lane_kind::events;
    send(to,
         prepare(id,
                 wire::failure{index, reason.code(), reason.cause(), reason.next_step()},
                 std::move(packet)));
  };
  if (why != nullptr) {
    try {
      attempt(*why);
      return;
    } catch (const std::bad_alloc&) {  // there may be enough for a shorter one
    }
  }
  try {
    attempt(core::broker_out_of_memory());
  } catch (const std::bad_alloc&) {
    drop(*to, "no memory for an answer");
  }
}

// ---- effects of the domain ----

void hub::settle(session* from, prepared answer) noexcept {
  counters_.state_of(domain_);  // before the answer, so that its client sees it counted
  core::effects& wanted = domain_.pending();
  std::size_t slots = 0;
  std::size_t waits = 0;
  std::size_t answers = 0;
  std::size_t questions = 0;
  std::size_t changes = 0;
  // An answer that cannot be sent releases its lease, which may cause more effects.
  for (;;) {
    if (slots < wanted.slots.size()) {
      const core::slot_word word = wanted.slots[slots++];
      listener_(listener_context_, word.slot, word.generation, word.state);
      if (word.state == segment_state::exporter_gone) {
        end_page(word.generation);
      }
    } else if (waits < wanted.waits.size()) {
      send_waiting(core::open_waits(wanted.waits[waits++]));
    } else if (answers < wanted.answers.size()) {
      deliver(std::move(wanted.answers[answers++]));
    } else if (!answer.empty()) {
      send(from, std::exchange(answer, {}));
    } else if (questions < wanted.questions.size()) {
      questions += send_questions(std::span(wanted.questions).subspan(questions));
    } else if (changes < wanted.changes.size()) {
      send_event(core::change(wanted.changes[changes++]));
    } else {
      break;
    }
  }
  record_changes(wanted);
  wanted.clear();
  counters_.state_of(domain_);
}

void hub::finish() noexcept {
  recorder_.commit();
  if (recorder_.is_behind()) {
    out_.retry_recording();
    return;
  }
  if (config_.closer) {
    config_.closer->flush();
  }
  out_.deliver();
}

void hub::record_changes(core::effects& of) noexcept {
  if (!recorder_.is_on()) {
    return;
  }
  if (of.too_many_records) {
    recorder_.fall_behind();
    return;
  }
  std::sort(of.records.begin(), of.records.end());
  const auto end = std::unique(of.records.begin(), of.records.end());
  for (auto at = of.records.begin(); at != end; ++at) {
    try {
      const core::saved_value value = domain_.saved(*at);
      recorder_.put(*at, value);
      if (at->kind == core::record_kind::segment) {
        const bool exists = value.index() != 0;
        if (!exists) {
          recorder_.erase(records::key_of(records::kind::files, at->first));
        }
        note_in_ledger(at->first, exists);
      }
    } catch (const std::bad_alloc&) {
      recorder_.fall_behind();
    }
  }
}

void hub::note_in_ledger(gpushm::generation generation, bool exists) noexcept {
  if (config_.ledger == nullptr) {
    return;
  }
  if (exists) {
    const core::segment& what = domain_.segment_of(generation);
    const kept_fd* const page =
        what.backend == backend::signals && what.payload ? files_of(what).writable() : nullptr;
    config_.ledger->note(what, page != nullptr ? identity_of(page->get()) : page_identity{});
  } else {
    config_.ledger->erase(generation);
  }
  counters_.set({config_.ledger->returned(), config_.ledger->lost()});
}

void hub::end_returns() noexcept {
  config_.ledger->give_up();
  counters_.set({config_.ledger->returned(), config_.ledger->lost()});
}

/// Nothing if the member's uid is not known, or the segment cannot be handed back.
std::optional<wire::receipt> hub::receipt_for(core::session_id member,
                                              const core::segment& what) const {
  if (config_.ledger == nullptr || !what.creator.uid_known) {
    return std::nullopt;
  }
  const core::peer& who = domain_.peer_of(member);
  if (!who.uid_known) {
    return std::nullopt;
  }
  // Another member that has handed it back is not its creator.
  const bool is_by_another = what.payload && !files_of(what).is_by_creator.value_or(true);
  const bool is_creator =
      what.creator_session == member && what.creator.uid == who.uid && !is_by_another;
  return config_.ledger->receipt_for(what.name, what.generation, who.uid, is_creator);
}

void hub::record_files(const segment_files& of) noexcept {
  if (!recorder_.is_on()) {
    return;
  }
  try {
    records::files_record record{{}, of.chunk_bytes};
    std::transform(of.chunks.begin(),
                   of.chunks.begin() + static_cast<std::ptrdiff_t>(of.chunk_bytes.size()),
                   std::back_inserter(record.chunks),
                   [](const kept_fd& each) { return each.id; });
    if (const kept_fd* const writable = of.writable()) {
      record.writable = writable->id;
    }
    recorder_.put(records::key_of(records::kind::files, of.generation), std::move(record));
  } catch (const std::bad_alloc&) {
    recorder_.fall_behind();
  }
}

void hub::catch_up() noexcept {
  recorder_.catch_up([this] {
    try {
      std::unordered_set<gpushm::generation> existing;
      domain_.visit_saved([&](const core::record_name& name, const core::saved_value& value) {
        recorder_.put(name, value);
        if (name.kind == core::record_kind::segment) {
          existing.insert(name.first);
          note_in_ledger(name.first, true);
          const core::segment& of = domain_.segment_of(name.first);
          if (of.payload && !files_of(of).chunks.empty()) {
            record_files(files_of(of));
          }
        }
      });
      if (config_.ledger != nullptr) {
        config_.ledger->erase_others(existing);
      }
    } catch (const std::bad_alloc&) {
      recorder_.fall_behind();
    }
    for_each_session([this](session& each) { out_.record_all(each); });
  });
  finish();
}

/// Sends the first questions, as many as one packet can carry. Returns their number. If memory is
/// short, refuses their opens instead.
std::size_t hub::send_questions(std::span<const core::question> questions) noexcept {
  const core::session_id exporter = questions.front().exporter;
  const auto end = std::find_if(questions.begin(), questions.end(), [&](const auto& each) {
    return each.exporter != exporter;
  });
  const auto now = questions.first(
      std::min<std::size_t>(static_cast<std::size_t>(end - questions.begin()), wire::max_batch));
  try {
    wire::confirm list;
    for (const core::question& each : now) {
      list.questions.push_back(each.confirmation);
      list.generations.push_back(each.generation);
    }
    outgoing packet;
    packet.is_answer = false;
    packet.on_event_lane = true;
    send(find(exporter), prepare(0, std::move(list), std::move(packet)));
  } catch (const std::bad_alloc&) {
    for (const core::question& each : now) {
      domain_.question_not_sent(each);
    }
  }
  return now.size();
}

/// If memory is short, cancels the open and answers with the failure.
void hub::send_waiting(const core::open_waits& what) noexcept {
  session* const to = find(what.session);
  try {
    wire::waiting message{what.index};
    outgoing packet;
    if (what.offered) {
      packet.files = shared_files_of(*what.offered);
      message.segment = fields_of(*what.offered);
      message.chunk_bytes = carry_chunks(packet, 0);
      message.ticket = what.offered->ticket;
    }
    send(to, prepare(what.request, std::move(message), std::move(packet)));
  } catch (const std::bad_alloc&) {
    if (domain_.cancel(what.session, what.request, what.index)) {
      counters_.open_failed(errc::out_of_memory);
    }
    fail(to, what.request, what.index, nullptr);
  }
}

void hub::deliver(core::open_answer answer) noexcept {
  session* const to = find(answer.session);
  if (answer.found && to != nullptr && !is_known_to(*to, *answer.found)) {
    domain_.release(answer.session, answer.found->generation, 1, true);
    answer.found = nullptr;
    answer.why.reset();
    try {
      answer.why = unknown_kind();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): refused without a text
    }
  }
  if (answer.found) {
    try {
      prepared packet = opened(answer);
      counters_.opened();
      send(to, std::move(packet));
      return;
    } catch (const std::bad_alloc&) {  // without an answer there is no lease
      domain_.release(answer.session, answer.found->generation, 1, true);
      answer.why.reset();
    }
  }
  counters_.open_failed(answer.why ? answer.why->code() : errc::out_of_memory);
  fail(to,
       answer.request,
       answer.index,
       answer.why ? &*answer.why : nullptr,
       answer.late ? lane_kind::events : lane_kind::requests);
}

prepared hub::opened(const core::open_answer& answer) const {
  const core::segment& found = *answer.found;
  outgoing packet;
  packet.files = shared_files_of(found);
  packet.metadata = found.metadata;
  packet.on_event_lane = answer.late;
  auto sizes = carry_chunks(packet, 0);
  return prepare(answer.request,
                 wire::opened{answer.index,
                              fields_of(found),
                              {},
                              std::move(sizes),
                              found.ticket,
                              receipt_for(answer.session, found)},
                 std::move(packet));
}

void hub::send_event(const core::change& what) noexcept {
  if (what.holder != 0) {
    send_event(find(what.holder), 0, what);
    return;
  }
  domain_.for_each_subscriber(what.of->name,
                              [&](core::session_id subscriber, std::uint64_t subscription) {
                                send_event(find(subscriber), subscription, what);
                              });
}

void hub::send_event(session* to, std::uint64_t subscription, const core::change& what) noexcept {
  if (to == nullptr || to->dropped) {
    return;
  }
  try {
    outgoing packet;
    packet.subscription = subscription;
    packet.is_answer = false;
    packet.on_event_lane = true;
    out_.send(
        *to,
        prepare(
            subscription,
            wire::event{what.kind, what.of->name, what.of->generation, what.leases, what.peer_pid},
            std::move(packet)));
  } catch (const std::bad_alloc&) {
    out_.lose_event(*to, subscription);
  }
}

// ---- requests ----

prepared hub::handle(const context& at, const wire::hello& message) {
  if (message.version < wire::protocol_version) {
    const std::string cause =
        "this broker does not support protocol version " + std::to_string(message.version);
    const error why(errc::unsupported_version, {}, {}, cause, "update the client");
    fail(&at.from, at.id, 0, &why);
    drop(at.from, cause);
    return {};
  }
  if (at.from.has_event_lane) {
    reject(at.from, at.id, "second Hello");
    return {};
  }
  take_fence(at, message);
  const wire::session_token token = new_token(at.number);
  const auto lane = std::make_shared<const kept_fd>(out_.open_event_lane(at.from));
  at.from.has_event_lane = true;
  const auto welcome = [&](bool resumed) {
    outgoing packet;
    if (config_.state_table >= 0) {
      packet.descriptors = {config_.state_table};
      packet.ids = {0};
    }
    packet.descriptors.push_back(lane->get());
    packet.ids.push_back(lane->id);
    packet.own = lane;
    return prepare(at.id,
                   wire::welcome{wire::protocol_version,
                                 config_.domain,
                                 config_.epoch,
                                 domain_.bounds().max_segments,
                                 domain_.bounds().quota_bytes,
                                 static_cast<std::uint32_t>(wire::max_batch),
                                 true,
                                 message.fence,
                                 static_cast<std::uint32_t>(config_.fence_delay.count()),
                                 token,
                                 resumed},
                   std::move(packet));
  };
  prepared fresh = welcome(false);
  prepared again = welcome(true);
  const bool resumed = resume_lost(at.from, message.resume);
  at.from.greeted = true;
  at.from.known_kinds = std::max(message.known_kinds, wire::first_known_kinds);
  at.from.token = token;
  out_.record(at.from);
  return resumed ? std::move(again) : std::move(fresh);
}

void hub::take_fence(const context& at, const wire::hello& message) {
  const std::size_t announced = message.fence == fence::none ? 0 : fence_descriptors;
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
                "the descriptors of Hello are not a pidfd and a pipe",
                "send a pidfd of the client and the read end of its life pipe");
  }
  out_.fence_of(at.from, message.fence, std::move(at.descriptors[0]), std::move(at.descriptors[1]));
  at.descriptors.clear();
}

bool hub::resume_lost(const session& successor, const wire::session_token& token) {
  const session* const lost = find(number_in(token));
  return lost != nullptr && lost->greeted && lost->token == token &&
         domain_.resume(lost->number, successor.number);
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

prepared hub::handle(const context& at, const wire::reserve& message) {
  if (message.backend == backend::signals) {
    check_page_size(message.allocated_bytes);
  }
  std::optional<core::lost_segment> back;
  if (message.generation != 0) {
    back = check_return(at, message);
  } else if (config_.ledger != nullptr) {
    check_name(at, message.name);
  }
  const core::segment& created = domain_.reserve(at.number, message, back);
  const gpushm::generation generation = created.generation;
  const std::uint32_t slot = created.slot;
  try {
    auto files = std::make_shared<segment_files>();
    files->generation = generation;
    files->held = created.held;
    files->closed_by = config_.closer;
    if (back) {
      files->is_by_creator = back->is_creator;
    }
    domain_.set_payload(generation, files);
    outgoing packet;
    if (message.backend == backend::signals && !back) {
      make_page(created, *files);
      packet.files = files;
      const kept_fd& writable = files->chunks.back();
      packet.descriptors = {writable.get()};
      packet.ids = {writable.id};
    }
    prepared answer = prepare(at.id,
                              wire::reserved{generation, slot, receipt_for(at.number, created)},
                              std::move(packet));
    if (files->writable() != nullptr) {
      domain_.attach(at.number, generation, 0, 1);
      record_files(*files);
    }
    return answer;
  } catch (...) {
    domain_.release(at.number, generation, 1);  // its only lease: undoes the reservation
    throw;
  }
}

/// The keeper gets a copy. Throws as `recorder::keep`.
kept_fd hub::keep(base::guarded_fd file) {
  const records::descriptor_id id = recorder_.keep(file.get());
  return {std::move(file), id};
}

/// Its memory is the only kind that a broker makes.
void hub::make_page(const core::segment& what, segment_files& files) {
  files.chunks.reserve(2);
  kept_fd writable = keep(sync::make_signal_page(what.allocated_bytes));
  files.chunks.push_back(keep(reopen_for_reading("make a page of timelines", writable.get())));
  files.chunks.push_back(std::move(writable));
  files.chunk_bytes = {what.allocated_bytes};
}

/// The process that signals has ended.
void hub::end_page(gpushm::generation generation) noexcept {
  const core::segment* const what = domain_.find_segment(generation);
  if (what == nullptr || what->backend != backend::signals || !what->payload) {
    return;
  }
  if (const kept_fd* const writable = files_of(*what).writable()) {
    const bool is_paid = !sync::has_holes(writable->get()) || charge_for_end(*what);
    sync::end_signals(writable->get(), is_paid ? sync::holes::fill : sync::holes::leave);
  }
}

/// The member has not filled the page, or has punched holes: what the broker must write there is
/// memory of its own control group, as long as any process has the page mapped, which no broker
/// sees. So that is charged for good. Members that use this library never pay that.
bool hub::charge_for_end(const core::segment& of) noexcept {
  try {
    core::charges price = domain_.new_charges(of);
    const auto at = for_ended_pages_.try_emplace(price.who().get(), std::move(price)).first;
    return at->second.try_take(core::resource::memory_bytes, sync::ended_bytes);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

/// Throws wrong_descriptor_kind. A page is handed back as itself: its readers have it mapped. What
/// its words are is up to the member that can write them, and so cannot show which page it is.
void hub::check_page_of_return(const core::segment& what, const kept_fd& given) const {
  const page_identity lost =
      config_.ledger != nullptr ? config_.ledger->page_of(what.generation) : page_identity{};
  const std::optional<bool> is_by_creator = files_of(what).is_by_creator;
  const bool is_that_page =
      lost.is_known() ? identity_of(given.get()) == lost : is_by_creator.value_or(false);
  // Only the creator was given a descriptor that is open for writing.
  const bool is_anothers = !is_by_creator.value_or(true) && sync::is_open_for_writing(given.get());
  if (!is_that_page || is_anothers) {
    throw_wrong_chunk_kind(what.backend);
  }
}

/// Names of what was lost wait for those that have it.
void hub::check_name(const context& at, std::string_view name) const {
  const core::peer& who = domain_.peer_of(at.number);
  if (!who.uid_known || who.uid != config_.owner_uid) {
    config_.ledger->check_name(name, who);
  }
}

core::lost_segment hub::check_return(const context& at, const wire::reserve& message) const {
  if (config_.ledger == nullptr) {
    throw error(errc::gone_or_replaced,
                {},
                {},
                "this broker does not take back what an earlier one has lost",
                "create it again");
  }
  const core::peer& who = domain_.peer_of(at.number);
  return config_.ledger->check_return(message,
                                      who.uid_known ? std::optional(who.uid) : std::nullopt);
}

prepared hub::handle(const context& at, const wire::attach& message) {
  if (at.came() != message.chunk_bytes.size()) {
    throw wrong_count(at.came(), message.chunk_bytes.size());
  }
  const core::segment& what =
      domain_.check_attach(at.number, message.generation, message.first_chunk, at.came());
  if (at.foreign != 0) {
    throw_wrong_chunk_kind(what.backend);
  }
  prepared answer = prepare(at.id, wire::done{});
  segment_files& files = files_of(what);
  for (std::size_t i = 0; i < at.descriptors.size(); ++i) {
    check_chunk(
        at.descriptors[i].get(), what.backend, message.chunk_bytes[i], config_.accept_fake_chunks);
  }
  // Clients only claim sizes; their sum must be what was charged to the quota.
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
                "attach chunks that add up to the reserved bytes");
  }
  check_whole_pages(what.backend, message.chunk_bytes, last);
  files.chunks.reserve(files.chunks.size() + at.descriptors.size());
  files.chunk_bytes.reserve(files.chunk_bytes.size() + at.descriptors.size());
  kept_fd writable;
  bool by_signaler = true;
  if (what.backend == backend::signals) {
    constexpr const char* operation = "hand back a page of timelines";
    kept_fd& given = at.descriptors.front();
    check_page_of_return(what, given);
    by_signaler = sync::is_open_for_writing(given.get());
    // Openers get one for reading, and the broker keeps the other one.
    writable = by_signaler ? std::exchange(given, keep(reopen_for_reading(operation, given.get())))
                           : keep(reopen_for_writing(operation, given.get()));
    files.chunks.reserve(2);
  }
  domain_.attach(at.number, message.generation, message.first_chunk, at.descriptors.size());
  std::move(at.descriptors.begin(), at.descriptors.end(), std::back_inserter(files.chunks));
  at.descriptors.clear();
  files.chunk_bytes.insert(
      files.chunk_bytes.end(), message.chunk_bytes.begin(), message.chunk_bytes.end());
  if (writable) {
    files.chunks.push_back(std::move(writable));
  }
  record_files(files);
  if (!by_signaler) {  // it has not come back
    end_page(message.generation);
  }
  return answer;
}

prepared hub::handle(const context& at, const wire::publish& message) {
  // Waiting opens are answered first; the creator gets `done` when all can see the segment.
  prepared answer = prepare(at.id, wire::done{});
  if (config_.ledger != nullptr) {
    config_.ledger->check_publication(message.generation, message.metadata);
  }
  domain_.publish(at.number, message.generation, message.metadata);
  return answer;
}

prepared hub::handle(const context& at, const wire::open& message) {
  domain_.open(at.number,
               {at.id,
                0,
                message.name,
                message.expected_size_bytes,
                deadline_of(message.timeout_ms, at.now),
                at.now,
                message.generation});
  return {};
}

prepared hub::handle(const context& at, const wire::open_many& message) {
  open_rest rest{at.id, message, 0, deadline_of(message.timeout_ms, at.now), at.now};
  const auto count = static_cast<std::uint32_t>(message.names.size());
  // The client may read no answers, and the rest stays, in the heap and in the journal.
  if (count > opens_per_turn) {
    rest.held = domain_.new_charges(at.number);
    try {
      rest.held.take(core::resource::memory_bytes, rest.memory_bytes());
    } catch (const error& why) {
      for (std::uint32_t index = 0; index < count && !at.from.dropped; ++index) {
        fail(&at.from, at.id, index, &why);
      }
      return {};
    }
  }
  at.from.rest = std::move(rest);
  open_some(at.from);
  return {};
}

void hub::resume(session& of) {
  open_some(of);
  finish();
}

void hub::open_some(session& of) {
  if (!of.rest) {
    return;
  }
  open_rest& rest = *of.rest;
  const std::vector<std::string>& names = rest.request.names;
  for (std::size_t left = opens_per_turn; left != 0 && rest.next < names.size(); --left) {
    const std::uint32_t index = rest.next++;
    try {
      domain_.open(of.number,
                   {rest.id,
                    index,
                    names[index],
                    rest.request.expected_size_bytes,
                    rest.deadline,
                    rest.asked});
    } catch (const std::bad_alloc&) {
      fail(&of, rest.id, index, nullptr);
      if (of.dropped) {
        break;
      }
    }
  }
  if (of.rest && rest.next >= names.size()) {
    of.rest.reset();
  }
  out_.record(of);
  settle();
}

prepared hub::handle(const context& at, const wire::fetch_chunks& message) {
  const core::segment& what = domain_.held(at.number, message.generation);
  const auto files = shared_files_of(what);
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
  return prepare(at.id,
                 wire::chunks{message.generation, message.first_chunk, std::move(sizes)},
                 std::move(packet));
}

prepared hub::handle(const context& at, const wire::release& message) {
  domain_.release(at.number, message.generation, message.count, message.never_mapped);
  return {};
}

prepared hub::handle(const context& at, const wire::remove& message) {
  prepared answer = prepare(at.id, wire::done{});
  domain_.remove(at.number, message.name, message.generation);
  return answer;
}

prepared hub::handle(const context& at, const wire::list& message) {
  return prepare(at.id, list_page(at.from, message.prefix, message.after));
}

wire::listing hub::list_page(const session& member,
                             const std::string& prefix,
                             const std::string& after) const {
  wire::listing page;
  std::size_t used = 0;
  domain_.list(member.number, prefix, after, [&](const core::segment& what) {
    if (!is_known_to(member, what)) {
      return true;
    }
    used += description_bytes + what.name.size();
    if (used > listing_bytes) {
      page.more = true;
      return false;
    }
    page.segments.push_back(describe(what));
    return true;
  });
  return page;
}

prepared hub::handle(const context& at, const wire::stat& message) {
  const core::segment& found = domain_.stat(at.number, message.name);
  if (!is_known_to(at.from, found)) {
    throw unknown_kind();
  }
  return prepare(at.id, wire::listing{{describe(found)}, false});
}

prepared hub::handle(const context& at, const wire::subscribe& message) {
  wire::listing page = list_page(at.from, message.prefix, {});
  prepared answer = prepare(
      at.id, wire::subscribed{std::move(page.segments), page.more, out_.events_queued(at.from)});
  domain_.subscribe(at.number, at.id, message.prefix);
  return answer;
}

prepared hub::handle(const context& at, const wire::unsubscribe& message) {
  prepared answer = prepare(at.id, wire::done{});
  domain_.unsubscribe(at.number, message.subscription);
  return answer;
}

prepared hub::handle(const context& at, const wire::bye& /*message*/) {
  at.from.sent_bye = true;
  out_.record(at.from);
  return {};
}

prepared hub::handle(const context& at, const wire::confirmed& message) {
  for (std::size_t i = 0; i < message.questions.size() && !at.from.dropped; ++i) {
    domain_.confirmed(
        at.number, message.questions[i], static_cast<core::verdict>(message.verdicts[i]));
    settle();  // one at a time: there is capacity for the effects of one
  }
  domain_.send_questions(at.number);  // all in one packet
  return {};
}

prepared hub::handle(const context& /*at*/, const wire::report& message) {
  counters_.reported(message);
  return {};
}

prepared hub::handle(const context& at, const wire::unfence& message) {
  prepared answer = prepare(at.id, wire::done{});
  const core::peer& who = domain_.peer_of(at.number);
  const std::string line = "domain " + config_.domain + ": pid " + std::to_string(who.pid) +
                           (who.uid_known ? ", uid " + std::to_string(who.uid) : "") +
                           " ended leases without a fence on segment \"" +
                           base::printable(message.name) + "\"";
  domain_.unfence(at.number, message.name);
  counters_.unfenced();
  base::log(log_level::warning, line);
  return answer;
}

prepared hub::handle(const context& at, const wire::keep& message) {
  prepared answer = prepare(at.id, wire::done{});
  domain_.keep(at.number, message.generations, message.counts, message.more);
  return answer;
}

prepared hub::handle(const context& at, const wire::cancel& message) {
  prepared cancelled = prepare(at.id, wire::cancelled{});
  prepared too_late = prepare(at.id, wire::too_late{out_.events_queued(at.from)});
  return domain_.cancel(at.number, message.request) ? std::move(cancelled) : std::move(too_late);
}

template <typename Answer>
prepared hub::handle(const context& at, const Answer& /*message*/) {
  reject(at.from, at.id, "a client sent a message that only brokers send");
  return {};
}

}  // namespace gpushm::broker_detail
