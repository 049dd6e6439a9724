// SPDX-License-Identifier: Apache-2.0
#include "broker/server/server.hpp"

#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <mutex>
#include <utility>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/process/cpu_limit.hpp"
#include "base/process/memory_limit.hpp"
#include "broker/descriptors/descriptor_limit.hpp"
#include "broker/descriptors/descriptor_receiver.hpp"
#include "broker/hub/closer.hpp"
#include "broker/hub/hub.hpp"
#include "broker/server/adaptive_poll.hpp"
#include "broker/server/admission.hpp"
#include "broker/server/restorer.hpp"
#include "broker/session/connection.hpp"
#include "broker/session/deadlines.hpp"
#include "broker/session/hub_driver.hpp"
#include "broker/session/member_log.hpp"
#include "broker/session/receiver.hpp"
#include "broker/session/retry_poll.hpp"
#include "broker/session/sender.hpp"
#include "broker/session/session_ender.hpp"
#include "broker/session/turn_loop.hpp"
#include "protocol/transport/listener.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "succession/recorder/recorder.hpp"
#include "succession/recorder/state_table_file.hpp"
#include "succession/recorder/takeover_state.hpp"

namespace gpushm::broker_detail {

namespace {

using std::chrono::milliseconds;

/// Pause before the event loop continues after a handler that ran out of memory.
constexpr milliseconds pause_without_memory{10};

/// Until the keeper is asked again for what it did not read.
constexpr milliseconds pause_for_keeper{10};
/// Until it is looked again which memory has been freed.
constexpr milliseconds pause_for_closes{5};
/// The same for what a request waits for, of the keeper or of that memory.
constexpr milliseconds pause_of_requests{1};

/// With fewer CPUs, polling for requests would take CPU time from the clients.
constexpr double min_cpus_to_poll = 2;

/// Something that is tried again after a pause; asked for meanwhile, it is not tried twice.
class one_retry {
 public:
  explicit one_retry(asio::io_context& io) : timer_(io) {}
  template <typename Try>
  void after(milliseconds pause, Try&& again) {
    if (waits_) {
      return;
    }
    timer_.expires_after(pause);
    timer_.async_wait([this, again](asio::error_code code) {
      waits_ = false;
      if (!code) {
        again();
      }
    });
    waits_ = true;
  }

 private:
  asio::steady_timer timer_;
  bool waits_ = false;
};

gpushm::epoch random_epoch() {
  gpushm::epoch value;
  base::random_bytes(value);
  return value;
}

/// Returns the size of a journal of which at most `memory_bytes` are charged: its page tables grow
/// with it. A successor that may keep more replaces a full journal.
std::uint64_t journal_bytes(std::uint64_t memory_bytes) {
  constexpr std::uint64_t unshared = std::uint64_t{16} << 20U;
  constexpr std::uint64_t most = journal::journal::default_max_bytes;
  return memory_bytes == 0 ? most : std::min(memory_bytes, most - unshared) + unshared;
}

std::uint64_t default_memory_limit() {
  constexpr std::uint64_t least = 16ULL * 1024 * 1024;
  return std::max(base::memory_for_members(base::memory_limit_bytes()), least);
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
       std::optional<successor_options> successors)
      : options_(options),
        shared_(std::move(shared)),
        log_(options.domain),
        is_resumable_(successors.has_value()),
        first_generation_(successors ? successors->first_generation : 1),
        from_(is_resumable_ ? std::move(successors->from) : std::nullopt),
        listener_(from_ ? inherited_listener(*from_)
                        : transport::listener(
                              options.socket_path, options.mode, options.group, options.lock_path)),
        table_(from_ ? from_->broker.slots : options.limits.max_segments,
               from_ ? from_->broker.epoch : random_epoch(),
               is_resumable_),
        ledger_(is_resumable_ ? std::optional<succession::segment_ledger>(std::in_place,
                                                                          ledger_of(*successors))
                              : std::nullopt),
        recorder_(is_resumable_ ? make_recorder(successors->short_name) : succession::recorder()),
        health_(recorder_.health()),
        closer_(std::make_shared<closer>(recorder_.another_shelf())),
        descriptor_receiver_([this] { return recorder_.another_shelf(); }),
        hub_(hub_config(), *this, &impl::on_slot, this),
        loop_(
            io_,
            log_,
            [this](connection& connection) { step(connection); },
            [this] { driver_.schedule(); }),
        driver_(io_, hub_, loop_, log_, recorder_),
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
        keeper_retries_(io_, loop_, pause_of_requests),
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
                  loop_,
                  deadlines_,
                  retries_,
                  keeper_retries_,
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
                   from_ ? from_->next_session() : 1),
        catch_up_(io_),
        forget_(io_),
        closes_(io_),
        give_up_(io_) {
    if (from_) {
      try {
        restorer(*from_,
                 io_,
                 hub_,
                 table_,
                 recorder_,
                 closer_,
                 loop_,
                 session_ender_,
                 sender_,
                 admission_,
                 options_.limits.max_inflight_descriptors)
            .restore();
      } catch (...) {
        leave();
        throw;
      }
      from_.reset();
    }
    starting_.reset();
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() override { leave(); }

  void run(void (*ready)(void*), void* context) {
    table_.lock();
    session_ender_.start();
    admission_.start();
    receiver_.start();
    driver_.schedule();
    if (ledger_ && ledger_->missing() != 0) {
      await_returns();
    }
    ready(context);
    give_tables();
    await_closes();
    while (!run_until_stopped()) {
    }
    recorder_.end();
    if (ledger_) {
      ledger_->end();
    }
    table_.unlock();
  }

  void stop() { io_.stop(); }

  [[nodiscard]] const std::string& socket_path() const noexcept { return options_.socket_path; }
  [[nodiscard]] bool is_at_path() const noexcept {
    const std::lock_guard lock(bound_mutex_);
    return transport::identity_of(options_.socket_path) == listener_.file();
  }
  void bind_again() {
    asio::post(io_, [this] { log_.guarded([this] { bind_now(); }); });
  }
  void pass(std::shared_ptr<const void> token) {
    asio::post(io_, [token = std::move(token)] {});
  }
  void post(std::function<void(hub&)> work) {
    if (posted_.fetch_add(1) >= max_posted) {
      posted_.fetch_sub(1);
      throw error(errc::too_many_requests,
                  "serve",
                  options_.socket_path,
                  "too much work for the domain waits already",
                  "try again later");
    }
    try {
      asio::post(io_, [this, work = std::move(work)] {
        posted_.fetch_sub(1);
        {
          const succession::recorder::step named(recorder_, {succession::step_kind::work, 0});
          log_.guarded([&] { work(hub_); });
        }
        driver_.schedule();
      });
    } catch (...) {
      posted_.fetch_sub(1);
      throw;
    }
  }
  [[nodiscard]] const gpushm::epoch& epoch() const noexcept { return table_.epoch(); }
  [[nodiscard]] broker_statistics statistics() const { return hub_.statistics(); }
  [[nodiscard]] return_counts returns() const noexcept { return hub_.returns(); }
  [[nodiscard]] std::uint64_t freeing_bytes() const noexcept { return hub_.freeing_bytes(); }
  [[nodiscard]] std::optional<succession::keeper_health::state> keeper() const noexcept {
    return health_ ? std::optional(health_->now()) : std::nullopt;
  }

  // ---- outbox ----

  void send(session& target, prepared packet) noexcept override {
    const bool is_question =
        !packet.empty() && !packet.front().is_reply && !packet.front().subscription;
    if (is_question || last_sent_ != adaptive_poll::after::question) {
      last_sent_ = is_question ? adaptive_poll::after::question : adaptive_poll::after::reply;
    }
    sender_.send(connection_of(target), std::move(packet));
  }

  void deliver() noexcept override { sender_.deliver(); }

  void record(const session& session) noexcept override {
    static_cast<const connection&>(session).record();
  }

  void record_all(session& session) noexcept override {
    connection& whole = connection_of(session);
    whole.recorded_next.reset();
    whole.record();
    whole.for_each_lane([&](const lane& each) {
      if (each.handled) {
        recorder_.mark(connection::key_of_handled(each));
      }
    });
    sender_.record_queue(whole);
  }

  void record_events() noexcept override { sender_.record_events(); }

  void retry_recording() noexcept override {
    log_.guarded([&] {
      catch_up_.after(recorder_.retry_pause(), [this] {
        if (recorder_.is_behind()) {
          const succession::recorder::step named(recorder_, {succession::step_kind::catch_up, 0});
          hub_.catch_up();
        }
      });
    });
  }

  [[nodiscard]] bool takes_event(const session& session,
                                 std::uint64_t subscription) const noexcept override {
    return sender::takes_event(static_cast<const connection&>(session), subscription);
  }

  void lose_event(session& session, std::uint64_t subscription) noexcept override {
    sender_.lose_event(connection_of(session), subscription);
  }

  void fence_of(session& session,
                fence kind,
                succession::kept_fd pidfd,
                succession::kept_fd life) override {
    session_ender_.set_fence(connection_of(session), kind, std::move(pidfd), std::move(life));
  }

  [[nodiscard]] succession::kept_fd open_event_lane(session& session) override {
    connection& to = connection_of(session);
    try {
      to.prepare_events();  // done by the receiver, unless that has failed
    } catch (const succession::keeper_busy&) {
      throw succession::keeper_is_behind();  // Hello's descriptors are taken: it cannot be received
                                             // again
    }
    auto pair = std::move(*to.next_events);
    to.next_events.reset();
    to.events.emplace(io_, to, lane_kind::events, std::move(pair.first));
    to.events->readable = true;  // read and watched in its turn
    return std::move(pair.second);
  }

  [[nodiscard]] std::uint64_t events_queued(const session& session) const noexcept override {
    const auto& lane = static_cast<const connection&>(session).events;
    return lane ? lane->queued : 0;
  }

  void drop(session& session, std::string_view why) noexcept override {
    session_ender_.drop(connection_of(session), why);
  }

 private:
  /// A successor finds either the old socket, which it binds again, or the new one.
  void bind_now() {
    if (is_at_path()) {
      return;
    }
    auto next = listener_.bind_again(options_.mode, options_.group);
    recorder_.replace_listener(next.socket.get(), next.file);
    admission_.stop_listening();
    {
      const std::lock_guard lock(bound_mutex_);
      listener_.adopt(std::move(next));
    }
    admission_.listen_again();
    log_.write("its socket is bound again: " + options_.socket_path);
  }

  /// Before the members are destroyed. What exists still, `run` has not ended: it is a successor's.
  void leave() noexcept {
    if (recorder_.is_on()) {
      closer_->leave_to_successor();
    }
    // Handlers queued in `io_` keep connections alive longer than the objects that they use.
    hub_.for_each_session([this](session& each) {
      connection& connection = connection_of(each);
      connection.process.stop();
      connection.ending.reset();
      loop_.leave(connection);
      connection.for_each_lane([](lane& lane) { lane.queue.clear(); });
      connection.held.reset();
      connection.rest.reset();
    });
  }

  /// To the sessions that are continued. Before any request is handled, so that a client that knows
  /// of a change has the table that shows it in its socket, if that is not full.
  void give_tables() {
    recorder_.commit();
    hub_.for_each_session([this](session& each) {
      const succession::recorder::step named(recorder_,
                                             {succession::step_kind::replies, each.number});
      sender_.flush_table(connection_of(each));
    });
  }

  /// Returns when stopped.
  void handle_events() {
    while (io_.run_one() != 0) {
      io_.poll();
      recorder_.commit();  // of connections that were destroyed after the hub's last commit
      if (recorder_.is_behind()) {
        retry_recording();
      }
      retry_forgetting();
      await_closes();
      while (poll_for_more()) {
      }
    }
  }

  /// Until all that is missing has been handed back, or the time is over.
  void await_returns() {
    const auto left =
        std::chrono::ceil<milliseconds>(ledger_->last_return() - std::chrono::steady_clock::now());
    give_up_.after(std::max(left, milliseconds(0)), [this] {
      const succession::recorder::step named(recorder_, {succession::step_kind::returns, 0});
      hub_.end_returns();
    });
  }

  /// The keeper's copies of what has ended: without requests there would be no further commit.
  void retry_forgetting() noexcept {
    if (!recorder_.has_to_forget()) {
      return;
    }
    log_.guarded([&] {
      forget_.after(pause_for_keeper, [this] {
        recorder_.commit();
        retry_forgetting();
      });
    });
  }

  /// Also without requests, what is used is to be the truth.
  void await_closes() noexcept {
    hub_.collect_freed();
    if (!closer_->is_freeing()) {
      return;
    }
    log_.guarded([&] { closes_.after(pause_for_closes, [this] { await_closes(); }); });
  }

  /// Polls without sleeping after a request. Returns false if there was nothing to handle.
  bool poll_for_more() {
    using clock = adaptive_poll::clock;
    if (std::exchange(seen_requests_, receiver_.received()) == receiver_.received()) {
      return false;
    }
    const auto begin = clock::now();
    const auto longest =
        poll_.next(std::exchange(last_sent_, adaptive_poll::after::request_without_reply), begin);
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
      log_.guarded([&] { session_ender_.start(); });
      log_.guarded([&] { deadlines_.arm(); });
      log_.guarded([&] { retries_.arm(); });
      log_.guarded([&] { keeper_retries_.arm(); });
      log_.guarded([&] { receiver_.start(); });
      log_.guarded([&] { admission_.start(); });
    }
    return !ended_early;
  }

  [[nodiscard]] hub::config hub_config() {
    return {{options_.domain,
             ::geteuid(),
             table_.epoch(),
             options_.accept_fake_chunks,
             table_.descriptor(),
             milliseconds(options_.limits.fence_delay_ms)},
            limits(),
            shared_,
            closer_,
            &recorder_,
            ledger_ ? &*ledger_ : nullptr,
            from_ ? &from_->state : nullptr};
  }

  [[nodiscard]] succession::segment_ledger::config ledger_of(successor_options& successors) const {
    return {successors.ledger_path,
            options_.domain,
            std::move(successors.code),
            from_ ? std::nullopt : std::optional(first_generation_),
            successors.return_time};
  }

  [[nodiscard]] core::limits limits() const {
    // Those of a predecessor are open already, and are clients'.
    const std::uint64_t inherited = from_ ? from_->stored.size() : 0;
    core::limits result = core_limits(options_.limits,
                                      descriptors_for_clients(options_.limits.reserved_descriptors,
                                                              options_.raise_descriptor_limit) +
                                          inherited);
    result.max_segments = table_.slots();
    result.names_changes = is_resumable_;
    result.memory_copies = is_resumable_ ? 2 : 1;
    result.first_generation = first_generation_;
    return result;
  }

  // ---- a predecessor and a successor ----

  [[nodiscard]] static transport::listener inherited_listener(succession::takeover_state& state) {
    return {state.broker.socket_path,
            state.take(state.broker.lock).file,
            state.take(state.broker.listener).file,
            {state.broker.socket_device, state.broker.socket_inode}};
  }

  [[nodiscard]] succession::recorder make_recorder(const std::string& short_name) {
    auto store = keeper::descriptor_store::from_environment();
    if (!store) {
      throw error(errc::invalid_argument,
                  "serve",
                  options_.socket_path,
                  "NOTIFY_SOCKET is not set: there is no keeper",
                  "start the broker by systemd or gpushm-keeper");
    }
    std::vector<records::descriptor_id> known;
    if (from_) {
      known = from_->stored;
      known.push_back(from_->last_freed());
    }
    succession::descriptor_shelf shelf(std::move(*store), short_name, known);
    if (from_) {
      ++from_->log.notes().failed_starts;                // until `end_continuing`
      if (std::exchange(from_->broker.table, 0) != 0) {  // of an earlier version; not taken
        from_->log.put(records::key_of(records::kind::broker),
                       records::encoder().encode(from_->broker));
        from_->log.commit();
      }
      return {std::move(from_->log), std::move(shelf), from_->next_packet()};
    }
    records::broker_record self{options_.domain,
                                table_.epoch(),
                                table_.slots(),
                                options_.socket_path,
                                0,
                                shelf.put(listener_.descriptor()),
                                shelf.put(listener_.lock_descriptor()),
                                listener_.file().device,
                                listener_.file().inode};
    journal::journal log = journal::journal::create(journal_bytes(options_.limits.memory_bytes));
    records::encoder encoder;
    log.put(records::key_of(records::kind::broker), encoder.encode(std::move(self)));
    // A successor must not begin with generations of an earlier start, whose segments members may
    // hand back.
    log.put(records::key_of({core::record_kind::numbers}),
            encoder.encode(core::saved_numbers{.next_generation = first_generation_}));
    log.commit();
    shelf.put_confirmed_journal(log.descriptor(), log.sequence());
    return {std::move(log), std::move(shelf), 1};
  }

  static void on_slot(void* self,
                      std::uint32_t slot,
                      gpushm::generation generation,
                      std::optional<segment_state> state) {
    static_cast<impl*>(self)->table_.set(slot, generation, state);
  }

  [[nodiscard]] static connection& connection_of(session& session) noexcept {
    return static_cast<connection&>(session);
  }

  /// Does a bounded part of a connection's work.
  void step(connection& member) {
    if (recorder_.is_behind()) {
      retry_recording();
      retries_.later(member);
      return;
    }
    try {
      if (member.may_flush()) {
        const succession::recorder::step named(recorder_,
                                               {succession::step_kind::replies, member.number});
        sender_.flush(member);
      } else if (member.may_go_on()) {
        const succession::recorder::step named(recorder_,
                                               {succession::step_kind::open_rest, member.number});
        hub_.resume(member);
      } else if (member.last_packets) {
        const succession::recorder::step named(recorder_,
                                               {succession::step_kind::end, member.number});
        receiver_.read_last(member);
      } else if (hub_.has_many_events() && (member.may_read_events() || member.may_read())) {
        const succession::recorder::step named(recorder_, {succession::step_kind::work, 0});
        hub_.send_events();
      } else if (member.may_read_events()) {
        receiver_.read_one(*member.events);
      } else if (member.may_read()) {
        receiver_.read_one(member.requests);
      } else if (member.is_over()) {
        const succession::recorder::step named(recorder_,
                                               {succession::step_kind::end, member.number});
        session_ender_.close(member);
      }
    } catch (const std::exception& why) {
      log_.dropped(member, why.what());
      session_ender_.close(member);
    }
  }

  static constexpr std::uint32_t max_posted = 64;

  broker_options options_;
  std::atomic<std::uint32_t> posted_ = 0;  ///< by `post`, and not begun
  std::shared_ptr<core::process_budget> shared_;
  member_log log_;
  bool is_resumable_;
  gpushm::generation first_generation_;
  std::optional<succession::takeover_state> from_;  ///< while this object is constructed
  transport::listener listener_;
  mutable std::mutex bound_mutex_;  ///< for the identity of the listener's file
  succession::state_table_file table_;
  /// If this has a successor. Before `recorder_`: who continues this start must not take the list
  /// for that of the start before.
  std::optional<succession::segment_ledger> ledger_;
  succession::recorder recorder_;
  /// A start that succeeds, or that ends with an exception, is none that has ended the process.
  class end_of_start {
   public:
    explicit end_of_start(succession::recorder& records) : records_(records) {}
    end_of_start(const end_of_start&) = delete;
    end_of_start& operator=(const end_of_start&) = delete;
    ~end_of_start() { records_.end_continuing(); }

   private:
    succession::recorder& records_;
  };
  std::optional<end_of_start> starting_{std::in_place, recorder_};
  const std::shared_ptr<const succession::keeper_health> health_;
  std::shared_ptr<closer> closer_;
  descriptor_receiver descriptor_receiver_;
  asio::io_context io_{1};  // declared before the members that keep connections
  hub hub_;
  adaptive_poll poll_{base::cpu_limit() >= min_cpus_to_poll};
  /// Since the last poll.
  adaptive_poll::after last_sent_ = adaptive_poll::after::request_without_reply;
  std::uint64_t seen_requests_ = 0;  ///< at the last poll
  // Each refers only to members declared before it.
  turn_loop loop_;
  hub_driver driver_;
  session_ender session_ender_;
  deadlines deadlines_;
  retry_poll retries_;
  retry_poll keeper_retries_;
  sender sender_;
  receiver receiver_;
  admission admission_;
  one_retry catch_up_;
  one_retry forget_;
  one_retry closes_;
  one_retry give_up_;
};

server::server(const broker_options& options,
               std::shared_ptr<core::process_budget> shared,
               std::optional<successor_options> successors)
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
bool server::is_at_path() const noexcept {
  return impl_->is_at_path();
}
void server::bind_again() {
  impl_->bind_again();
}
void server::pass(std::shared_ptr<const void> token) {
  impl_->pass(std::move(token));
}
void server::post(std::function<void(hub&)> work) {
  impl_->post(std::move(work));
}
broker_statistics server::statistics() const {
  return impl_->statistics();
}

return_counts server::returns() const noexcept {
  return impl_->returns();
}

std::uint64_t server::freeing_bytes() const noexcept {
  return impl_->freeing_bytes();
}
std::optional<succession::keeper_health::state> server::keeper() const noexcept {
  return impl_->keeper();
}
const gpushm::epoch& server::epoch() const noexcept {
  return impl_->epoch();
}

}  // namespace gpushm::broker_detail
