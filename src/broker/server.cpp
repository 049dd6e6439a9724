// SPDX-License-Identifier: Apache-2.0
#include "broker/server.hpp"

#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/cpu_limit.hpp"
#include "base/file.hpp"
#include "base/memory_limit.hpp"
#include "base/syscall.hpp"
#include "broker/adaptive_poll.hpp"
#include "broker/admission.hpp"
#include "broker/closer.hpp"
#include "broker/connection.hpp"
#include "broker/deadlines.hpp"
#include "broker/descriptor_limit.hpp"
#include "broker/descriptor_receiver.hpp"
#include "broker/hub.hpp"
#include "broker/hub_driver.hpp"
#include "broker/inheritance.hpp"
#include "broker/member_log.hpp"
#include "broker/receiver.hpp"
#include "broker/recorder.hpp"
#include "broker/retry_poll.hpp"
#include "broker/sender.hpp"
#include "broker/session_ender.hpp"
#include "broker/state_table_file.hpp"
#include "broker/turn_loop.hpp"
#include "transport/credentials.hpp"
#include "transport/listener.hpp"
#include "transport/packet_socket.hpp"
#include "wire/codec.hpp"

namespace gpushm::broker_detail {

namespace {

using std::chrono::milliseconds;

/// Pause before the event loop continues after a handler that ran out of memory.
constexpr milliseconds pause_without_memory{10};

/// With fewer CPUs, polling for requests would take CPU time from the clients.
constexpr double min_cpus_to_poll = 2;

gpushm::epoch random_epoch() {
  gpushm::epoch value;
  base::random_bytes(value);
  return value;
}

/// Half of this process's memory limit, for data kept on behalf of members; the other half is for
/// the program itself and for overhead of the kernel and the allocator.
std::uint64_t default_memory_limit() {
  constexpr std::uint64_t most = 1024ULL * 1024 * 1024;
  constexpr std::uint64_t least = 16ULL * 1024 * 1024;
  return std::clamp(base::memory_limit_bytes() / 2, least, most);
}

core::limits core_limits(const broker_limits& limits, std::uint64_t available) {
  const std::uint64_t descriptors =
      limits.max_descriptors == 0 ? available : std::min(limits.max_descriptors, available);
  core::limits result;
  result.max_segments = limits.max_segments;
  result.quota_bytes = limits.quota_bytes;
  result.quota_bytes_per_principal = limits.quota_bytes_per_principal;
  result.max_descriptors = descriptors;
  result.max_memory_bytes = limits.memory_bytes == 0 ? default_memory_limit() : limits.memory_bytes;
  result.max_connections = limits.max_connections;
  result.max_pending_opens = limits.max_pending_opens;
  return result;
}

}  // namespace

class server::impl final : public outbox {
 public:
  impl(const broker_options& options,
       std::shared_ptr<core::process_budget> shared,
       std::optional<succession> successors)
      : options_(options),
        shared_(std::move(shared)),
        log_(options.domain),
        is_resumable_(successors.has_value()),
        from_(is_resumable_ ? std::move(successors->from) : std::nullopt),
        listener_(from_ ? inherited_listener(*from_)
                        : transport::listener(
                              options.socket_path, options.mode, options.group, options.lock_path)),
        table_(from_
                   ? state_table_file(from_->take(from_->broker.table).file)
                   : state_table_file(options.limits.max_segments, random_epoch(), is_resumable_)),
        recorder_(is_resumable_ ? make_recorder(successors->short_name) : recorder()),
        closer_(std::make_shared<closer>(recorder_.another_shelf())),
        descriptor_receiver_([this] { return recorder_.another_shelf(); }),
        hub_(hub_config(), *this, &impl::on_slot, this),
        loop_(
            io_, log_, [this](connection& of) { step(of); }, [this] { driver_.schedule(); }),
        driver_(io_, hub_, loop_, log_),
        session_ender_(io_,
                       hub_,
                       driver_,
                       loop_,
                       descriptor_receiver_,
                       log_,
                       recorder_,
                       milliseconds(options.limits.fence_delay_ms)),
        deadlines_(io_,
                   hub_,
                   session_ender_,
                   log_,
                   {milliseconds(options.limits.hello_timeout_ms),
                    milliseconds(options.limits.send_timeout_ms)}),
        retries_(io_, loop_),
        sender_(loop_,
                deadlines_,
                retries_,
                session_ender_,
                log_,
                recorder_,
                options.limits.max_inflight_descriptors),
        receiver_(io_,
                  hub_,
                  descriptor_receiver_,
                  *closer_,
                  loop_,
                  deadlines_,
                  retries_,
                  sender_,
                  session_ender_,
                  log_,
                  recorder_),
        admission_(io_,
                   listener_,
                   hub_,
                   loop_,
                   deadlines_,
                   session_ender_,
                   log_,
                   recorder_,
                   next_session()),
        catch_up_timer_(io_) {
    if (from_) {
      restore(*from_);
      from_.reset();
    }
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() override {
    // Handlers queued in `io_` keep connections alive longer than the objects that they use.
    hub_.for_each_session([this](session& each) {
      connection& of = connection_of(each);
      of.process.stop();
      of.ending.reset();
      loop_.leave(of);
      of.for_each_lane([](lane& one) { one.queue.clear(); });
      of.held.reset();
    });
  }

  void run(void (*ready)(void*), void* context) {
    table_.lock();
    admission_.start();
    receiver_.start();
    driver_.schedule();
    ready(context);
    while (!run_until_stopped()) {
    }
    if (!is_resumable_) {
      table_.unlock();
    }
  }

  void stop() { io_.stop(); }

  [[nodiscard]] const std::string& socket_path() const noexcept { return options_.socket_path; }
  [[nodiscard]] const gpushm::epoch& epoch() const noexcept { return table_.epoch(); }
  [[nodiscard]] broker_statistics statistics() const { return hub_.statistics(); }

  // ---- outbox ----

  void send(session& to, prepared packet) noexcept override {
    const bool is_question =
        !packet.empty() && !packet.front().is_answer && !packet.front().subscription;
    if (is_question || last_sent_ != adaptive_poll::after::question) {
      last_sent_ = is_question ? adaptive_poll::after::question : adaptive_poll::after::answer;
    }
    sender_.send(connection_of(to), std::move(packet));
  }

  void deliver() noexcept override { sender_.deliver(); }

  void record(const session& of) noexcept override { static_cast<const connection&>(of).record(); }

  void record_all(const session& of) noexcept override {
    auto& whole = const_cast<connection&>(static_cast<const connection&>(of));
    whole.record();
    whole.for_each_lane([&](const lane& each) {
      if (each.handled) {
        recorder_.mark(connection::key_of_handled(each));
      }
    });
    sender_.record_queue(whole);
  }

  void retry_recording() noexcept override {
    log_.guarded([&] {
      catch_up_timer_.expires_after(pause_without_memory);
      catch_up_timer_.async_wait([this](asio::error_code code) {
        if (!code && recorder_.is_behind() && hub_.catch_up()) {
          hub_.for_each_session([this](session& each) { loop_.request_turn(connection_of(each)); });
        }
      });
    });
  }

  void lose_event(session& of, std::uint64_t subscription) noexcept override {
    sender_.lose_event(connection_of(of), subscription);
  }

  void fence_of(session& of, fence kind, kept_fd pidfd, kept_fd life) override {
    session_ender_.set_fence(connection_of(of), kind, std::move(pidfd), std::move(life));
  }

  [[nodiscard]] kept_fd open_event_lane(session& of) override {
    connection& to = connection_of(of);
    auto pair = transport::connected_pair();
    const records::descriptor_id first = recorder_.keep(pair.first.get());
    const records::descriptor_id second = recorder_.keep(pair.second.get());
    to.events.emplace(io_, to, lane_kind::events, kept_fd(std::move(pair.first), first));
    to.events->readable = true;  // read and watched in its turn
    return {std::move(pair.second), second};
  }

  [[nodiscard]] std::uint64_t events_queued(const session& of) const noexcept override {
    const auto& lane = static_cast<const connection&>(of).events;
    return lane ? lane->queued : 0;
  }

  void drop(session& of, std::string_view why) noexcept override {
    session_ender_.drop(connection_of(of), why);
  }

 private:
  /// Returns when stopped.
  void handle_events() {
    while (io_.run_one() != 0) {
      io_.poll();
      while (poll_for_more()) {
      }
    }
  }

  /// Polls without sleeping after a request. Returns false if there was nothing to handle.
  bool poll_for_more() {
    using clock = adaptive_poll::clock;
    if (std::exchange(seen_requests_, receiver_.received()) == receiver_.received()) {
      return false;
    }
    const auto begin = clock::now();
    const auto longest =
        poll_.next(std::exchange(last_sent_, adaptive_poll::after::request_without_answer), begin);
    for (auto now = begin; now - begin < longest; now = clock::now()) {
      if (io_.poll() != 0) {
        poll_.polled(now - begin, true);
        return true;
      }
    }
    if (longest.count() != 0) {
      poll_.polled(longest, false);
    }
    return false;
  }

  /// Returns false if a handler threw for lack of memory. All handler chains (accept, descriptor
  /// receiver, round, timers) are then started again; starting one that still runs is harmless.
  bool run_until_stopped() noexcept {
    bool ended_early = true;
    log_.guarded([&] {
      handle_events();
      ended_early = false;
    });
    if (ended_early) {
      base::pause_before_retry(pause_without_memory);
      log_.guarded([&] { loop_.restart(); });
      log_.guarded([&] { driver_.schedule(); });
      log_.guarded([&] { deadlines_.arm(); });
      log_.guarded([&] { retries_.arm(); });
      log_.guarded([&] { receiver_.start(); });
      log_.guarded([&] { admission_.start(); });
    }
    return !ended_early;
  }

  [[nodiscard]] hub::config hub_config() const {
    return {options_.domain,
            ::geteuid(),
            table_.epoch(),
            limits(),
            options_.accept_fake_chunks,
            table_.descriptor(),
            shared_,
            closer_,
            milliseconds(options_.limits.fence_delay_ms),
            const_cast<recorder*>(&recorder_),
            from_ ? &from_->state : nullptr};
  }

  [[nodiscard]] core::limits limits() const {
    core::limits result = core_limits(options_.limits,
                                      descriptors_for_clients(options_.limits.reserved_descriptors,
                                                              options_.raise_descriptor_limit));
    result.max_segments = table_.slots();
    result.names_changes = is_resumable_;
    return result;
  }

  // ---- a predecessor and a successor ----

  [[nodiscard]] static transport::listener inherited_listener(inheritance& from) {
    return {from.broker.socket_path,
            from.broker.lock_path,
            from.take(from.broker.lock).file,
            from.take(from.broker.listener).file};
  }

  [[nodiscard]] recorder make_recorder(const std::string& short_name) {
    auto store = keeper::descriptor_store::from_environment();
    if (!store) {
      throw error(errc::invalid_argument,
                  "serve",
                  options_.socket_path,
                  "NOTIFY_SOCKET is not set: there is no keeper",
                  "start the broker by systemd or gpushm-keeper");
    }
    descriptor_shelf shelf(
        std::move(*store), short_name, from_ ? from_->next_descriptor : records::descriptor_id{1});
    if (from_) {
      const std::uint64_t next =
          from_->packets.empty() ? 1 : std::prev(from_->packets.end())->first + 1;
      return {std::move(from_->log), std::move(shelf), next};
    }
    records::broker_record self{options_.domain,
                                table_.epoch(),
                                table_.slots(),
                                options_.socket_path,
                                listener_.lock_path(),
                                shelf.put(table_.writable_descriptor()),
                                shelf.put(listener_.descriptor()),
                                shelf.put(listener_.lock_descriptor())};
    journal::journal log = journal::journal::create();
    shelf.put_journal(log.descriptor(), log.sequence());
    recorder result(std::move(log), std::move(shelf), 1);
    result.put(records::key_of(records::kind::broker), std::move(self));
    result.commit();
    return result;
  }

  [[nodiscard]] core::session_id next_session() const {
    core::session_id last = 0;
    if (from_) {
      for (const auto& [name, value] : from_->state.records) {
        if (name.kind == core::record_kind::session || name.kind == core::record_kind::end) {
          last = std::max(last, name.first);
        }
      }
    }
    return last + 1;
  }

  void restore(inheritance& from) {
    used_slots_.assign(table_.slots(), false);
    for (const auto& [name, value] : from.state.records) {
      if (const auto* const found = std::get_if<core::saved_segment>(&value)) {
        restore_segment(from, name.first, *found);
      }
    }
    for (std::uint32_t slot = 0; slot < table_.slots(); ++slot) {
      if (!used_slots_[slot]) {
        table_.set(slot, 0, std::nullopt);
      }
    }
    used_slots_.clear();
    orphans_.clear();
    for (const auto& [name, value] : from.state.records) {
      if (const auto* const found = std::get_if<core::saved_session>(&value)) {
        restore_session(from, name.first, *found);
      }
    }
    for (auto& [number, packet] : from.packets) {
      restore_packet(from, number, packet);
    }
    hub_.for_each_session([&](session& each) { restore_events(from, connection_of(each)); });
    for (const auto& [number, left] : from.descriptors) {
      recorder_.forget(number);  // the predecessor was killed before it had recorded it
    }
    recorder_.commit();
    hub_.for_each_session([&](session& each) { loop_.request_turn(connection_of(each)); });
  }

  void restore_segment(inheritance& from,
                       gpushm::generation generation,
                       const core::saved_segment& what) {
    auto files = std::make_shared<segment_files>();
    if (const auto found = from.files.find(generation); found != from.files.end()) {
      for (const records::descriptor_id each : found->second.chunks) {
        files->chunks.push_back(from.take(each));
        if (!files->chunks.back()) {
          throw error(errc::invalid_argument,
                      "serve",
                      options_.socket_path,
                      "the keeper has lost a descriptor of segment \"" + what.name + '"',
                      "raise the keeper's limit of descriptors");
        }
      }
      files->chunk_bytes = found->second.chunk_bytes;
    }
    hub_.restore(generation, std::move(files));
    // The predecessor has written the word before it recorded the change. A live segment's word may
    // say that its exporter is gone, which no record says.
    const bool exporter_gone =
        table_.state(what.slot, generation) == wire::slot_state::exporter_gone;
    table_.set(what.slot,
               generation,
               what.removed    ? segment_state::removed
               : exporter_gone ? segment_state::exporter_gone
                               : segment_state::live);
    used_slots_[what.slot] = true;
  }

  void restore_session(inheritance& from,
                       core::session_id number,
                       const core::saved_session& what) {
    const records::connection_record& record = from.connections[number];
    const auto created = std::make_shared<connection>(
        io_, number, record.closed ? kept_fd() : from.take(record.requests), recorder_);
    created->greeted = record.greeted;
    created->sent_bye = record.sent_bye;
    created->dropped = record.dropped;
    created->token = record.token;
    created->fence = record.fence;
    created->has_event_lane = record.events != 0;
    if (const auto rest = from.rests.find(number); rest != from.rests.end()) {
      records::open_rest_record& r = rest->second;
      created->rest = open_rest{
          r.id, {std::move(r.names), r.expected_size_bytes, 0}, r.next, r.deadline, r.asked};
    }
    hub_.restore(created);
    kept_fd process = from.take(record.process);
    created->process_id = process.id;
    kept_fd life = from.take(record.life);
    created->life_id = life.id;
    created->principal = what.who.principal;
    kept_fd events = record.closed ? kept_fd() : from.take(record.events);
    if (created->fence != fence::none && (!process || !life)) {
      created->fence = fence::none;  // lost: nothing can prove the end of its process
    }
    created->life = end_watch(io_, std::move(life.file));
    if (!created->requests.socket || (record.events != 0 && !events)) {
      created->peer.pid = what.who.pid;
      created->process = end_watch(io_, std::move(process.file));
      session_ender_.restore_closed(*created);
      created->record();
      return;
    }
    if (events) {
      created->events.emplace(io_, *created, lane_kind::events, std::move(events));
    }
    const auto peer = transport::peer_of(created->requests.socket.get());
    admission_.start(created, peer, what.who.principal, std::move(process.file));
    session_ender_.watch_process(*created);
    created->for_each_lane([&](lane& each) {
      each.readable = true;
      each.handled = from.handled.count({number, each.kind == lane_kind::events ? 1U : 0U}) != 0;
      each.unread_bytes = static_cast<std::uint64_t>(transport::unread_bytes(each.socket.get()));
      created->held.charge(core::resource::memory_bytes, each.unread_bytes);
      each.inflight_descriptors =
          each.unread_bytes == 0 ? 0 : options_.limits.max_inflight_descriptors;
    });
  }

  void restore_packet(inheritance& from, std::uint64_t number, records::packet_record& record) {
    auto* const found = hub_.find(record.session);
    if (found == nullptr || connection_of(*found).closed) {
      recorder_.erase(records::key_of(records::kind::packet, number));
      return;
    }
    connection& to = connection_of(*found);
    lane& on = record.on_event_lane && to.events ? *to.events : to.requests;
    outgoing packet;
    packet.number = number;
    packet.is_answer = record.is_answer;
    packet.on_event_lane = record.on_event_lane;
    packet.ids = record.descriptors;
    const auto segment_record =
        from.state.records.find({core::record_kind::segment, record.files_of});
    if (record.files_of != 0 && segment_record != from.state.records.end()) {
      const core::segment& of = hub_.domain().segment_of(record.files_of);
      packet.files = std::static_pointer_cast<const segment_files>(of.payload);
      packet.metadata = record.metadata_of != 0 ? of.metadata : nullptr;
    } else if (record.files_of != 0) {
      packet.files = restore_orphans(from, record);  // its segment is freed already
    }
    for (const records::descriptor_id each : record.descriptors) {
      int descriptor = -1;
      if (each == 0) {
        descriptor = table_.descriptor();
      } else if (packet.files) {
        for (const kept_fd& chunk : packet.files->chunks) {
          descriptor = chunk.id == each ? chunk.get() : descriptor;
        }
      } else {
        packet.own = std::make_shared<const kept_fd>(from.take(each));
        descriptor = packet.own->get();
      }
      packet.descriptors.push_back(descriptor);
    }
    if (auto message = packet.metadata ? wire::decode(record.bytes) : std::nullopt) {
      packet.late = std::move(*message);
    } else {
      packet.packet = std::move(record.bytes);
    }
    to.held.charge(core::resource::memory_bytes, packet.cost());
    to.queued_answers += packet.is_answer ? 1U : 0U;
    if (&on == &to.requests) {
      ++on.queued;
    } else {
      places_[record.session].insert(record.place);
    }
    on.queue.push_back(std::move(packet));
  }

  std::shared_ptr<const segment_files> restore_orphans(inheritance& from,
                                                       const records::packet_record& record) {
    auto& orphans = orphans_[record.files_of];
    if (!orphans) {
      orphans = std::make_shared<segment_files>();
      orphans->generation = record.files_of;
      orphans->closed_by = closer_;
    }
    for (const records::descriptor_id each : record.descriptors) {
      if (kept_fd taken = from.take(each)) {
        orphans->chunks.push_back(std::move(taken));
      }
    }
    return orphans;
  }

  /// Events that were queued are not recorded. Each is replaced by a resync, so that the number of
  /// packets stays as earlier answers say, and all subscriptions get one.
  void restore_events(inheritance& from, connection& of) {
    const auto places = std::exchange(places_[of.number], {});
    if (of.closed || !of.events) {
      return;
    }
    const records::lane_record counted = from.lanes[of.number];
    lane& on = *of.events;
    on.queued = counted.queued;
    on.sent = counted.sent;
    prepared recorded = std::exchange(on.queue, {});
    bool any_lost = false;
    for (std::uint64_t place = on.sent; place < on.queued; ++place) {
      if (places.count(place) != 0 && !recorded.empty()) {
        on.queue.splice(on.queue.end(), recorded, recorded.begin());
        continue;
      }
      any_lost = true;
      outgoing packet;
      wire::event resync;
      resync.kind = event_kind::resync;
      packet.packet = wire::encode({0, std::move(resync)});
      packet.subscription = 0;
      packet.is_answer = false;
      packet.on_event_lane = true;
      ++of.queued_events;
      of.held.charge(core::resource::memory_bytes, packet.cost());
      on.queue.push_back(std::move(packet));
    }
    on.queue.splice(on.queue.end(), recorded);
    if (any_lost) {
      const core::record_name first{core::record_kind::subscription, of.number, 0};
      for (auto at = from.state.records.lower_bound(first);
           at != from.state.records.end() && at->first.kind == first.kind &&
           at->first.first == of.number;
           ++at) {
        of.lost_subscriptions.push_back(at->first.second);
      }
    }
  }

  static void on_slot(void* self,
                      std::uint32_t slot,
                      gpushm::generation generation,
                      std::optional<segment_state> state) {
    static_cast<impl*>(self)->table_.set(slot, generation, state);
  }

  [[nodiscard]] static connection& connection_of(session& of) noexcept {
    return static_cast<connection&>(of);
  }

  /// Does a bounded part of a connection's work.
  void step(connection& of) {
    if (recorder_.is_behind() && !hub_.catch_up()) {
      retries_.later(of);
      return;
    }
    try {
      if (of.may_flush()) {
        sender_.flush(of);
      } else if (of.may_answer() && of.rest) {
        hub_.resume(of);
      } else if (of.last_packets) {
        receiver_.read_last(of);
      } else if (of.may_read_events()) {
        receiver_.read_one(*of.events);
      } else if (of.may_read()) {
        receiver_.read_one(of.requests);
      } else if (of.is_over()) {
        session_ender_.close(of);
      }
    } catch (const std::exception& why) {
      log_.dropped(of, why.what());
      session_ender_.close(of);
    }
  }

  broker_options options_;
  std::shared_ptr<core::process_budget> shared_;
  member_log log_;
  bool is_resumable_;
  std::optional<inheritance> from_;  ///< while this object is constructed
  // Of `restore`.
  std::vector<bool> used_slots_;
  std::map<core::session_id, std::set<std::uint64_t>> places_;
  std::map<gpushm::generation, std::shared_ptr<segment_files>> orphans_;
  transport::listener listener_;
  state_table_file table_;
  recorder recorder_;
  std::shared_ptr<closer> closer_;
  descriptor_receiver descriptor_receiver_;
  asio::io_context io_{1};  // declared before the members that keep connections
  hub hub_;
  adaptive_poll poll_{base::cpu_limit() >= min_cpus_to_poll};
  /// Since the last poll.
  adaptive_poll::after last_sent_ = adaptive_poll::after::request_without_answer;
  std::uint64_t seen_requests_ = 0;  ///< at the last poll
  // Each refers only to members declared before it.
  turn_loop loop_;
  hub_driver driver_;
  session_ender session_ender_;
  deadlines deadlines_;
  retry_poll retries_;
  sender sender_;
  receiver receiver_;
  admission admission_;
  asio::steady_timer catch_up_timer_;
};

server::server(const broker_options& options,
               std::shared_ptr<core::process_budget> shared,
               std::optional<succession> successors)
    : impl_(std::make_unique<impl>(options, std::move(shared), std::move(successors))) {}
server::~server() = default;
void server::run(void (*ready)(void*), void* context) {
  impl_->run(ready, context);
}
void server::stop() {
  impl_->stop();
}
const std::string& server::socket_path() const noexcept {
  return impl_->socket_path();
}
broker_statistics server::statistics() const {
  return impl_->statistics();
}
const gpushm::epoch& server::epoch() const noexcept {
  return impl_->epoch();
}

}  // namespace gpushm::broker_detail
