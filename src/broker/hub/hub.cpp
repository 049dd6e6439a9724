// SPDX-License-Identifier: Apache-2.0
#include "broker/hub/hub.hpp"

#include <chrono>
#include <new>
#include <utility>
#include <variant>

#include "protocol/wire/codec.hpp"

namespace gpushm::broker_detail {

hub::hub(config options, outbox& out, slot_listener listener, void* listener_context)
    : closer_(std::move(options.closer)),
      out_(out),
      domain_(
          options.from == nullptr
              ? core::domain(
                    options.rules.domain, options.rules.owner_uid, options.limits, options.process)
              : core::domain(options.rules.domain,
                             options.rules.owner_uid,
                             options.limits,
                             options.process,
                             *options.from)),
      record_(options.records, options.ledger, domain_, out_, counters_),
      pages_(domain_, record_),
      effects_(domain_, out_, record_, pages_, counters_, listener, listener_context),
      requests_(
          std::move(options.rules), closer_, domain_, effects_, record_, pages_, out_, counters_) {
  if (options.from != nullptr) {
    record_.end_continuing(*options.from);
  }
  counters_.state_of(domain_);
}

/// The charges that the closer has are those of this domain.
hub::~hub() {
  if (closer_) {
    closer_->end_charges();
  }
}

void hub::accept(const std::shared_ptr<session>& created, const core::peer& peer) {
  domain_.connect(created->number, peer, created);
  out_.record(*created);
  effects_.settle();
  finish();
}

void hub::restore(std::shared_ptr<session> created) {
  const core::session_id number = created->number;
  created->resumes = domain_.is_resuming(number);
  domain_.set_session_payload(number, std::move(created));
}

void hub::restore(gpushm::generation generation, std::shared_ptr<segment_files> files) {
  files->generation = generation;
  const core::segment& segment = domain_.segment_of(generation);
  files->charge_to(segment, segment.held);
  files->closed_by = closer_;
  const bool is_page = files->writable() != nullptr;
  domain_.set_payload(generation, std::move(files));
  if (is_page) {
    record_.note(generation, true);  // an earlier version did not say which page it is
  }
}

std::shared_ptr<segment_files> hub::restore_freed(gpushm::generation generation,
                                                  const core::saved_segment& segment,
                                                  std::vector<succession::kept_fd> chunks) {
  auto files = std::make_shared<segment_files>();
  files->generation = generation;
  files->closed_by = closer_;
  files->charge_to(segment, domain_.charges_of_existing(segment, segment.creator));
  if (chunks.empty()) {
    record_.is_closed(generation);
  } else {
    record_.continue_freeing(generation);
  }
  files->chunks = std::move(chunks);
  return files;
}

void hub::lose_memory(gpushm::generation generation) {
  domain_.lose_memory(generation);
  effects_.settle();
  finish();
}

bool hub::remove_unheld(gpushm::generation generation) {
  const bool is_removed = domain_.remove_unheld(generation);
  effects_.settle();
  finish();
  return is_removed;
}

void hub::lose_device(core::lost_device device, std::function<void()> done) {
  when_devices_are_lost_.push_back(std::move(done));
  try {
    domain_.lose_device(std::move(device));
  } catch (...) {
    when_devices_are_lost_.pop_back();
    throw;
  }
}

bool hub::stop_some(session& gone) {
  gone.dropped = true;
  gone.rest.reset();
  const bool more = domain_.stop_some(gone.number);
  effects_.settle();
  finish();
  return more;
}

bool hub::lose(session& gone, core::time_point now) {
  gone.dropped = true;
  gone.rest.reset();
  gone.resumes = false;
  bool is_ending = false;
  if (gone.sent_bye) {
    disconnect(gone.number);
  } else {
    is_ending = domain_.at(now).lose(gone.number);
    if (is_ending) {
      out_.record(gone);
    }
    effects_.settle();
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
  effects_.settle();
}

void hub::work() {
  effects_.send_events();
  if (effects_.caught_up() >= work_waits_for_events_ && domain_.has_work()) {
    domain_.work();
    effects_.settle();
    work_waits_for_events_ = effects_.put_off();
  }
  finish();
}

void hub::send_events() noexcept {
  effects_.send_events();
  finish();
}

void hub::wait_for_events(session& session, std::uint64_t put_off_before) const noexcept {
  if (effects_.put_off() != put_off_before) {
    session.waits_for_events = effects_.put_off();
  }
}

void hub::tick(core::time_point now) {
  domain_.at(now).tick();
  effects_.settle();
  finish();
}

void hub::close(std::vector<succession::kept_fd> files) noexcept {
  if (closer_) {
    closer_->close(std::move(files));
  }
}

bool hub::receive(session& session,
                  std::span<const std::byte> packet,
                  std::vector<succession::kept_fd>&& descriptors,
                  core::time_point now,
                  std::size_t foreign,
                  lane_kind lane_kind) {
  const auto begin = std::chrono::steady_clock::now();  // `now` may be a test's
  domain_.at(now);
  const std::uint64_t put_off = effects_.put_off();
  request_kind kind = request_kind::other;
  const bool is_handled = receive_one(session, packet, descriptors, foreign, lane_kind, kind);
  wait_for_events(session, put_off);
  if (!is_handled) {
    record_.is_not_handled(session.number, lane_kind);
  }
  finish();
  if (is_handled) {
    counters_.requests().handled(kind, std::chrono::steady_clock::now() - begin);
  }
  return is_handled;
}

bool hub::receive_one(session& session,
                      std::span<const std::byte> packet,
                      std::vector<succession::kept_fd>& descriptors,
                      std::size_t foreign,
                      lane_kind lane_kind,
                      request_kind& kind) {
  if (session.dropped) {
    close(std::move(descriptors));
    return true;
  }
  std::optional<wire::message> message;
  try {
    message = wire::decode(packet);
  } catch (const std::bad_alloc&) {
    counters_.requests().refused(kind, errc::out_of_memory);
    close(std::move(descriptors));
    if (const std::uint64_t id = wire::id_of(packet); id != 0) {  // without an id: no reply
      effects_.fail(&session, id, 0, nullptr);
    }
    if (lane_kind == lane_kind::events) {
      domain_.resend_questions(session.number);  // the lost packet may have been its replies
      effects_.settle();
    }
    return true;
  }
  if (!message) {
    close(std::move(descriptors));
    effects_.reject(session, 0, "the packet is not a message of this protocol");
    return true;
  }
  if ((lane_kind == lane_kind::events) != wire::is_sent_on_event_lane(message->body)) {
    close(std::move(descriptors));
    effects_.reject(session, message->id, "message received on the wrong lane");
    return true;
  }
  kind = kind_of(message->body);
  const requests::context request{
      session, session.number, message->id, descriptors, domain_.now(), foreign};
  prepared reply;
  std::optional<error> refused;
  bool failed = false;
  try {
    reply = requests_.handle(request, message->body);
  } catch (const succession::retry_later&) {
    effects_.settle(&session, {});
    return false;
  } catch (const error& why) {
    failed = true;
    refused = why;
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  effects_.settle(&session, std::move(reply));
  if (failed) {
    counters_.requests().refused(kind, refused ? refused->code() : errc::out_of_memory);
    effects_.fail(&session, message->id, 0, refused ? &*refused : nullptr);
  }
  close(std::move(descriptors));  // those not moved from
  return true;
}

std::size_t hub::descriptors_taken(const session& session,
                                   std::span<const std::byte> packet) const {
  return requests_.descriptors_taken(session, packet);
}

void hub::catch_up() noexcept {
  record_.catch_up();
  finish();
}

void hub::resume(session& session) {
  const std::uint64_t put_off = effects_.put_off();
  if (session.waits_for_events != 0) {
    effects_.send_events();
    session.waits_for_events =
        effects_.caught_up() < session.waits_for_events ? session.waits_for_events : 0;
  } else if (session.resumes) {
    session.resumes = domain_.resume_some(session.number);
    effects_.settle();
  } else {
    requests_.open_some(session);
  }
  wait_for_events(session, put_off);
  finish();
}

void hub::end_returns() noexcept {
  record_.end_returns();
}

/// The packet counts as handled: it must get a reply even without memory.
void hub::receive_without_descriptors(session& session,
                                      std::span<const std::byte> packet,
                                      bool is_keeper_behind) noexcept {
  std::uint64_t id = wire::id_of(packet);
  request_kind kind = request_kind::other;
  try {
    const std::optional<wire::message> message = wire::decode(packet);
    if (!message) {
      violate(session, 0, "the packet is not a message of this protocol");
      return;
    }
    id = message->id;
    kind = kind_of(message->body);
    const error why = is_keeper_behind
                          ? succession::keeper_is_behind()
                          : error(errc::too_many_descriptors,
                                  {},
                                  {},
                                  "the broker has no room for the descriptors of this message",
                                  "raise the broker's open file limit, or remove segments");
    counters_.requests().refused(kind, why.code());
    effects_.fail(&session, id, 0, &why);
  } catch (const std::bad_alloc&) {
    counters_.requests().refused(kind, errc::out_of_memory);
    effects_.fail(&session, id, 0, nullptr);
  }
  finish();
}

void hub::collect_freed() noexcept {
  if (!closer_) {
    return;
  }
  const bool any = record_.collect(*closer_);
  if (any) {
    counters_.state_of(domain_);
  }
  if (any || closer_->has_to_flush()) {  // also of packets that are dropped
    finish();
  }
}

void hub::discard(std::vector<succession::kept_fd> descriptors) noexcept {
  close(std::move(descriptors));
  finish();
}

void hub::receive_truncated(session& session) {
  violate(session, 0, "a packet or its descriptors exceed the broker's limits");
}

void hub::violate(session& session, std::uint64_t id, std::string_view cause) {
  effects_.reject(session, id, cause);
  finish();
}

void hub::finish() noexcept {
  effects_.end_turn();
  if (!record_.commit()) {
    out_.retry_recording();
    return;
  }
  if (closer_) {
    closer_->flush();
    counters_.freeing(closer_->freeing_bytes());
  }
  out_.deliver();
  if (!when_devices_are_lost_.empty() && !domain_.is_losing_devices()) {
    for (const auto& done : std::exchange(when_devices_are_lost_, {})) {
      done();
    }
  }
}

}  // namespace gpushm::broker_detail
