// SPDX-License-Identifier: Apache-2.0
// The longest turns of a broker's thread in a full domain: CPU time of each call of the hub, with a
// journal, by what members ask and how they end. In this process: no sockets, no keeper, and
// segments without descriptors (exporter-bound), of which a domain can have as many as its limit.
// What it does not have: packets that are sent and recorded (another kind of turn, `answers`), but
// for the events to subscribers.
//
//   gpushm_turns [SEGMENTS]   prints JSON: number of turns, total and longest, for each kind
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "broker/hub/hub.hpp"
#include "broker/session/connection.hpp"
#include "broker/session/sender.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"
#include "succession/recorder/recorder.hpp"

namespace gpushm::bench {
namespace {

using namespace gpushm::broker_detail;

constexpr std::uint32_t broker_uid = 42;
const core::peer operator_peer{1, broker_uid, true};

[[nodiscard]] std::uint64_t cpu_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

/// The times of all turns of a kind, in nanoseconds.
class turn_times {
 public:
  template <typename Turn>
  void measure(const std::string& kind, Turn&& turn) {
    const std::uint64_t began = cpu_time();
    turn();
    const std::uint64_t took = cpu_time() - began;
    one& to = all_[kind];
    ++to.count;
    to.total += took;
    to.longest = std::max(to.longest, took);
  }
  void print(std::uint32_t segments) const {
    constexpr double ms = 1e-6;
    std::printf("{\"segments\": %u, \"turns\": {", segments);
    const char* separator = "\n";
    std::uint64_t longest = 0;
    for (const auto& [kind, total] : all_) {
      std::printf("%s  \"%s\": {\"count\": %zu, \"total_ms\": %.3f, \"longest_ms\": %.3f}",
                  separator,
                  kind.c_str(),
                  total.count,
                  static_cast<double>(total.total) * ms,
                  static_cast<double>(total.longest) * ms);
      separator = ",\n";
      longest = std::max(longest, total.longest);
    }
    std::printf("\n}, \"longest_ms\": %.3f}\n", static_cast<double>(longest) * ms);
  }

 private:
  struct one {
    std::size_t count = 0;
    std::uint64_t total = 0;
    std::uint64_t longest = 0;
  };
  std::map<std::string, one> all_;
};

/// Counts questions, so that they can be answered, and queues the events of connections; drops
/// everything else.
class no_outbox final : public outbox {
 public:
  void send(session& target, prepared packet) noexcept override {
    auto* const connected = dynamic_cast<connection*>(&target);
    if (events != nullptr && connected != nullptr && packet.front().subscription) {
      events->send(*connected, std::move(packet));
      return;
    }
    for (outgoing& each : packet) {
      const auto decoded = each.packet.empty() ? std::nullopt : wire::decode(each.packet);
      if (decoded && std::holds_alternative<wire::confirm>(decoded->body)) {
        const auto& asked = std::get<wire::confirm>(decoded->body).questions;
        questions.insert(questions.end(), asked.begin(), asked.end());
      }
    }
  }
  void deliver() noexcept override {}
  void record(const session& /*session*/) noexcept override {}
  void record_all(session& /*session*/) noexcept override {}
  void record_events() noexcept override {
    if (events != nullptr) {
      events->record_events();
    }
  }
  void retry_recording() noexcept override { is_behind = true; }
  void lose_event(session& /*session*/, std::uint64_t /*subscription*/) noexcept override {}
  void drop(session& session, std::string_view why) noexcept override {
    std::fprintf(stderr,
                 "gpushm_turns: session %llu: %.*s\n",
                 static_cast<unsigned long long>(session.number),
                 static_cast<int>(why.size()),
                 why.data());
    std::abort();
  }
  [[nodiscard]] succession::kept_fd open_event_lane(session& /*session*/) override { return {}; }
  [[nodiscard]] std::uint64_t events_queued(const session& /*session*/) const noexcept override {
    return 0;
  }
  void fence_of(session& /*session*/,
                fence /*kind*/,
                succession::kept_fd /*pidfd*/,
                succession::kept_fd /*life*/) override {}

  std::vector<std::uint64_t> questions;
  bool is_behind = false;
  sender* events = nullptr;
};

/// Sends events to connections, as a server does, to peers that read nothing.
class subscribers final : connection_ender {
 public:
  subscribers(hub& sessions, succession::recorder& records) : hub_(sessions), recorder_(records) {}
  subscribers(const subscribers&) = delete;
  subscribers& operator=(const subscribers&) = delete;
  ~subscribers() override = default;

  [[nodiscard]] std::shared_ptr<connection> make(core::session_id number) {
    auto requests = transport::connected_pair();
    auto events = transport::connected_pair();
    auto made = std::make_shared<connection>(io_, number, std::move(requests.first), recorder_);
    made->events.emplace(io_, *made, lane_kind::events, std::move(events.first));
    peers_.push_back(std::move(requests.second));
    peers_.push_back(std::move(events.second));
    return made;
  }
  /// After its session is accepted.
  void join(connection& connection) {
    connection.principal = hub_.domain().peer_of(connection.number).principal;
    connection.held = hub_.new_charges(connection);
    loop_.join(connection);
  }
  void close(connection& gone) override {
    gone.closed = true;
    loop_.leave(gone);
    gone.held.reset();
    gone.for_each_lane([](lane& each) { discard_queue(each); });
  }
  [[nodiscard]] sender& events() noexcept { return sender_; }

 private:
  hub& hub_;
  succession::recorder& recorder_;
  asio::io_context io_{1};
  member_log log_{"default"};
  turn_loop loop_{io_, log_, [](connection& /*connection*/) {}, [] {}};
  deadlines deadlines_{io_, hub_, *this, log_, {std::chrono::hours(1), std::chrono::hours(1)}};
  retry_poll poll_{io_, loop_};
  sender sender_{loop_, deadlines_, poll_, *this, log_, recorder_, 4};
  std::vector<base::unique_fd> peers_;
};

/// A socket that stands for the keeper's: nothing is sent to it.
class no_keeper {
 public:
  no_keeper() : folder_(std::filesystem::temp_directory_path() / "gpushm-turns-XXXXXX") {
    if (::mkdtemp(folder_.data()) == nullptr) {
      std::perror("gpushm_turns: mkdtemp");
      std::exit(1);
    }
    const std::string path = folder_ + "/keeper";
    socket_ = base::unique_fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(static_cast<char*>(address.sun_path), sizeof address.sun_path - 1);
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      std::perror("gpushm_turns: bind");
      std::exit(1);
    }
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  no_keeper(const no_keeper&) = delete;
  no_keeper& operator=(const no_keeper&) = delete;
  ~no_keeper() { std::filesystem::remove_all(folder_); }
  [[nodiscard]] static succession::descriptor_shelf shelf() {
    return {keeper::descriptor_store::from_environment().value(), "turns"};
  }

 private:
  std::string folder_;
  base::unique_fd socket_;
};

succession::recorder recorder_with_journal() {
  journal::journal log = journal::journal::create();
  records::encoder encoder;
  log.put(records::key_of(records::kind::broker),
          encoder.encode(records::broker_record{"default", {}, 0, "/none", 0, 0, 0, 0, 0}));
  log.commit();
  return {std::move(log), no_keeper::shelf(), 1};
}

class full_domain {
 public:
  /// `kind`: of all segments. `is_published` false: they are only reserved.
  full_domain(turn_times& times,
              std::uint32_t segments,
              backend kind = backend::cuda_ipc,
              bool is_published = true)
      : times_(times), segments_(segments), kind_(kind) {
    exporter_ = greet({10, 1'000, true});
    const auto another = greet({11, 1'999, true});
    constexpr std::uint32_t most_of_one = 57'000;  // its share is 8/9 of the limit
    for (std::uint32_t i = 0; i < segments; ++i) {
      const auto owner = i < most_of_one ? exporter_ : another;
      if (is_published) {
        publish(owner, name_of(i));
      } else {
        reserve(owner, name_of(i));
      }
    }
  }

  [[nodiscard]] static std::string name_of(std::uint32_t index) {
    return "segment " + std::to_string(index);
  }

  [[nodiscard]] core::session_id greet(const core::peer& peer,
                                       const wire::session_token& token = {},
                                       std::uint32_t known_kinds = wire::known_kinds) {
    const core::session_id number = next_session_++;
    times_.measure("accept", [&] { hub_.accept(std::make_shared<session>(number), peer); });
    wire::hello hello{};
    hello.known_kinds = known_kinds;
    hello.resume = token;
    ask(token == wire::session_token{} ? "hello" : "hello, resumes all leases", number, hello);
    return number;
  }
  /// All turns of one request.
  void ask(const std::string& kind,
           core::session_id number,
           wire::body body,
           std::uint64_t id = 0,
           std::vector<succession::kept_fd> descriptors = {}) {
    const auto lane = wire::is_sent_on_event_lane(body) ? lane_kind::events : lane_kind::requests;
    const std::vector<std::byte> packet =
        wire::encode({id == 0 ? ++request_ : id, std::move(body)});
    session& from = *hub_.find(number);
    for (bool is_handled = false; !is_handled;) {
      times_.measure(kind, [&] {
        is_handled = hub_.receive(from, packet, std::move(descriptors), now_, 0, lane);
      });
      while (from.rest || from.resumes || from.waits_for_events != 0) {
        times_.measure(kind, [&] { hub_.resume(from); });
      }
    }
    catch_up();
  }
  void publish(core::session_id exporter,
               const std::string& name,
               const std::string& kind = "publish") {
    ask(kind, exporter, wire::publish{reserve(exporter, name), {}});
  }
  [[nodiscard]] gpushm::generation generation_of(core::session_id member,
                                                 const std::string& name) const {
    return hub_.domain().stat(member, name).generation;
  }
  gpushm::generation reserve(core::session_id exporter, const std::string& name) {
    wire::reserve wanted{};
    wanted.name = name;
    wanted.size_bytes = wanted.allocated_bytes = page_bytes;
    wanted.backend = kind_;
    wanted.device.kind = kind_ == backend::timeline ? device_kind::host : device_kind::gpu;
    wanted.ticket = {std::byte{1}};
    ask("reserve", exporter, wanted);
    return generation_of(exporter, name);
  }
  /// In host memory, of `chunks` descriptors.
  void publish_chunks(core::session_id exporter, const std::string& name, std::uint32_t chunks) {
    wire::reserve wanted{};
    wanted.name = name;
    wanted.size_bytes = wanted.allocated_bytes = chunks * page_bytes;
    wanted.chunk_count = chunks;
    ask("reserve", exporter, wanted);
    const gpushm::generation generation = generation_of(exporter, name);
    std::uint64_t number = 0;  // in the keeper
    for (std::uint32_t first = 0; first < chunks;) {
      const std::uint32_t count = std::min<std::uint32_t>(wire::max_batch, chunks - first);
      std::vector<succession::kept_fd> files;
      for (std::uint32_t i = 0; i < count; ++i) {
        files.emplace_back(base::unique_fd(::fcntl(chunk_.get(), F_DUPFD_CLOEXEC, 0)), ++number);
      }
      ask("attach",
          exporter,
          wire::attach{generation, first, std::vector<std::uint64_t>(count, page_bytes)},
          0,
          std::move(files));
      first += count;
    }
    ask("publish", exporter, wire::publish{generation, {}});
  }
  /// Answers all questions to the exporter.
  void confirm(core::session_id session) {
    while (!out_.questions.empty()) {
      auto all = std::exchange(out_.questions, {});
      ask("confirmed",
          session,
          wire::confirmed{all, std::vector<wire::verdict>(all.size(), wire::verdict{})});
    }
  }
  void work_to_the_end(const std::string& kind) {
    while (hub_.has_work()) {
      times_.measure(kind, [&] { hub_.work(); });
      catch_up();
    }
  }
  bool lose(core::session_id number) {
    session& gone = *hub_.find(number);
    for (bool more = true; more;) {
      times_.measure("close, opens that wait", [&] { more = hub_.stop_some(gone); });
    }
    bool waits = false;
    times_.measure("close", [&] { waits = hub_.lose(gone, now_); });
    catch_up();
    return waits;
  }
  void hang_up(core::session_id number) {
    times_.measure("end of a process", [&] { hub_.hang_up(number); });
    catch_up();
    work_to_the_end("end of a process, rest");
  }

  /// After each of these, the domain is as full as before.
  void look() {
    const auto member = greet({20, 1'001, true});
    ask("list", member, wire::list{"", ""});
    ask("list", member, wire::list{"", name_of(segments_ / 2)});
    ask("stat", member, wire::stat{name_of(1)});
    ask("report", member, wire::report{std::vector<std::uint64_t>(wire::max_batch, 1), {}, 0});
    ask("open", member, wire::open{name_of(1), 0, 0, 0});
    confirm(exporter_);
    ask("release", member, wire::release{generation_of(member, name_of(1)), 1, false});
    // Names that exist, and that do not: as many requests as a member may have.
    std::vector<std::string> known;
    std::vector<std::string> unknown;
    constexpr std::uint32_t names = 500;
    for (std::uint32_t i = 0; i < names; ++i) {
      known.push_back(name_of(i));
      unknown.push_back("unknown " + std::to_string(i));
    }
    ask("open_many", member, wire::open_many{known, 0, 60'000});
    confirm(exporter_);
    constexpr std::uint64_t one_request = 1'000'000'000;
    for (int i = 0; i < 8; ++i) {  // an id that is used again
      ask("open_many, waits", member, wire::open_many{unknown, 0, 60'000}, one_request);
    }
    ask("cancel of 4,000 names", member, wire::cancel{one_request});
    work_to_the_end("cancel of 4,000 names, rest");
    for (int i = 0; i < 8; ++i) {
      ask("open_many, waits", member, wire::open_many{unknown, 0, 60'000});
    }
    now_ += std::chrono::hours(1);
    while (hub_.next_deadline() && *hub_.next_deadline() <= now_) {
      times_.measure("deadlines", [&] { hub_.tick(now_); });
    }
    for (int i = 0; i < 8; ++i) {
      ask("open_many, waits", member, wire::open_many{unknown, 0, 60'000});
    }
    ask("bye", member, wire::bye{});
    if (lose(member)) {
      hang_up(member);
    }
  }
  /// As a client that knows none of the segments' kinds.
  void look_as_before() {
    const auto member = greet({20, 1'001, true}, {}, wire::first_known_kinds);
    ask("list, unknown kinds", member, wire::list{"", ""});
    ask("subscribe, unknown kinds", member, wire::subscribe{""});
    static_cast<void>(lose(member));
  }
  /// A segment of as many chunks as this process may have open files.
  void attach_many() {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    constexpr rlim_t most = 57'000;
    constexpr rlim_t others = 1'000;
    const auto chunks =
        static_cast<std::uint32_t>(std::min(files.rlim_cur, most + others) - others);
    const auto owner = greet({60, 1'005, true});
    publish_chunks(owner, "many chunks", chunks);
    const auto member = greet({61, 1'006, true});
    ask("open", member, wire::open{"many chunks", 0, 0, 0});
    ask("fetch_chunks",
        member,
        wire::fetch_chunks{generation_of(member, "many chunks"), chunks - 1});
    std::printf("many chunks: %u\n", chunks);
    ask("remove", owner, wire::remove{"many chunks", 0});
    for (const auto each : {owner, member}) {
      if (lose(each)) {
        hang_up(each);
      }
    }
  }
  /// One segment that many connections of one process have open, which end, or whose segment is
  /// removed. `count` more than a domain may have connections: those that have ended stay until
  /// their process ends.
  void lease_many(std::uint32_t count) {
    const core::peer who{70, 1'007, true};
    const auto owner = greet(who);
    publish_chunks(owner, "leased by many", 1);
    std::vector<core::session_id> sessions;
    for (std::uint32_t i = 0; i < count; ++i) {
      sessions.push_back(greet(who));
      ask("open, leased by many", sessions.back(), wire::open{"leased by many", 0, 0, 0});
    }
    for (const core::session_id each : sessions) {
      static_cast<void>(lose(each));
    }
    const auto other = greet({71, 1'007, true});
    ask("stat, leases that end", other, wire::stat{"leased by many"});
    ask("open_many, leases that end",
        other,
        wire::open_many{std::vector<std::string>(500, "leased by many"), 0, 0});
    static_cast<void>(lose(owner));
    if (lose(other)) {
      hang_up(other);
    }
    const auto last = greet(who);
    ask("open_many, all leases end",
        last,
        wire::open_many{std::vector<std::string>(500, "leased by many"), 0, 0});
    ask("unfence, many leases", last, wire::unfence{"leased by many"});
    work_to_the_end("unfence, many leases, rest");
    for (const core::session_id each : sessions) {
      hang_up(each);
    }
    hang_up(owner);
    static_cast<void>(lose(last));
  }
  /// As many subscriptions as a domain may have, to everything, of as few or as many connections as
  /// possible. The members read nothing.
  void subscribe(std::uint32_t of_each) {
    subscribers to(hub_, recorder_);
    out_.events = &to.events();
    std::vector<std::shared_ptr<connection>> subscribers;
    const core::limits bounds;
    const std::uint32_t connections = bounds.max_all_subscriptions / of_each;
    const std::string kind = ", 8,192 subscriptions of " + std::to_string(connections);
    for (std::uint32_t i = 0; i < connections; ++i) {
      // One principal has 8/9 of them at most.
      const core::peer who{30, i < connections / 2 ? 1'002U : 1'004U, true};
      subscribers.push_back(to.make(next_session_));
      connection& made = *subscribers.back();
      times_.measure("accept", [&] { hub_.accept(subscribers.back(), who); });
      ++next_session_;
      to.join(made);
      wire::hello hello{};
      hello.known_kinds = 255;
      ask("hello", made.number, hello);
      made.lost_subscriptions.reserve(of_each + 1);
      for (std::uint32_t each = 0; each < of_each; ++each) {
        ask("subscribe", made.number, wire::subscribe{""});
      }
    }
    const auto member = greet({20, 1'001, true});
    for (int i = 0; i < 2; ++i) {
      publish(member, "one more", "publish" + kind);
      ask("remove" + kind, member, wire::remove{"one more", 0});
      work_to_the_end("events" + kind);
    }
    for (const auto& each : subscribers) {
      times_.measure("events to one connection", [&] { to.events().flush(*each); });
    }
    ask("unsubscribe", subscribers.front()->number, wire::unsubscribe{1});
    for (const auto& each : subscribers) {
      to.close(*each);
      if (lose(each->number)) {
        hang_up(each->number);
      }
    }
    if (lose(member)) {
      hang_up(member);
    }
    out_.events = nullptr;
  }
  /// Which is then removed.
  void readers_of_one_segment() {
    constexpr int readers = 3'900;
    const auto owner = greet({40, 1'003, true});
    publish(owner, "read by all");
    std::vector<core::session_id> sessions;
    for (int i = 0; i < readers; ++i) {
      sessions.push_back(greet({50, i % 2 == 0 ? 1'004U : 1'005U, true}));
      ask("open, 3,900 readers", sessions.back(), wire::open{"read by all", 0, 0});
      confirm(owner);
    }
    ask("remove, 3,900 readers", owner, wire::remove{"read by all", 0});
    work_to_the_end("remove, 3,900 readers, rest");
    sessions.push_back(owner);
    for (const core::session_id each : sessions) {
      if (lose(each)) {
        hang_up(each);
      }
    }
  }
  /// Many opens that wait for one segment's exporter, which then dies or whose lease is ended.
  void opens_of_one_segment(bool unfence) {
    const auto owner = greet({40, 1'003, true});
    publish(owner, "asked for");
    std::vector<core::session_id> sessions;
    constexpr int members = 15;
    for (int i = 0; i < members; ++i) {
      sessions.push_back(greet({50 + i, 1'004 + static_cast<std::uint32_t>(i), true}));
      const std::vector<std::string> names(500, "asked for");
      for (int each = 0; each < 8; ++each) {
        ask("open_many, one name", sessions.back(), wire::open_many{names, 0, 60'000});
      }
    }
    out_.questions.clear();
    if (lose(owner) && unfence) {
      const auto who = greet(operator_peer);
      ask("unfence, 60,000 opens", who, wire::unfence{"asked for"});
      work_to_the_end("unfence, 60,000 opens, rest");
      if (lose(who)) {
        hang_up(who);
      }
    } else {
      hang_up(owner);
    }
    for (const core::session_id each : sessions) {
      if (lose(each)) {
        hang_up(each);
      }
    }
  }
  void fall_behind() {
    recorder_.fall_behind();
    out_.is_behind = true;
    catch_up();
  }
  void end() {
    static_cast<void>(lose(exporter_));
    hang_up(exporter_);
    hang_up(exporter_ + 1);
  }
  /// The exporter of everything loses its connection, comes back, and ends.
  void resume_and_end() {
    const auto come_back = [&](core::session_id lost) {
      const wire::session_token token = hub_.find(lost)->token;
      if (!lose(lost)) {
        std::fprintf(stderr, "gpushm_turns: its leases have ended\n");
        std::exit(1);
      }
      const auto successor = greet({10, 1'000, true}, token);
      work_to_the_end("hello, resumes all leases, rest");
      return successor;
    };
    const auto first = come_back(exporter_);
    for (std::uint64_t from = 1; from <= segments_; from += wire::max_keep) {
      wire::keep part;
      for (std::uint64_t each = from; each < from + wire::max_keep; ++each) {
        part.generations.push_back(each);
        part.counts.push_back(1);
      }
      part.more = true;
      ask("keep, 4,096 leases of all", first, part);
    }
    ask("keep, the last of all", first, wire::keep{{}, {}, false});
    const auto successor = come_back(first);
    ask("keep, none", successor, wire::keep{{1}, {1}, false});
    static_cast<void>(lose(successor));
    hang_up(successor);
    hang_up(exporter_ + 1);
    if (hub_.domain().segment_count() != 0) {
      std::fprintf(stderr, "gpushm_turns: segments are left\n");
      std::exit(1);
    }
  }

 private:
  void catch_up() {
    while (std::exchange(out_.is_behind, false)) {
      times_.measure("everything is recorded again", [&] { hub_.catch_up(); });
    }
  }

  static constexpr std::uint64_t page_bytes = 4'096;
  [[nodiscard]] static base::unique_fd new_chunk() {
    base::unique_fd file(::memfd_create("chunk", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (::ftruncate(file.get(), page_bytes) != 0 ||
        ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      std::perror("gpushm_turns: chunk");
      std::exit(1);
    }
    return file;
  }

  turn_times& times_;
  std::uint32_t segments_;
  backend kind_;
  base::unique_fd chunk_ = new_chunk();
  no_keeper keeper_;
  succession::recorder recorder_ = recorder_with_journal();
  no_outbox out_;
  base::unique_fd table_{::memfd_create("turns", MFD_CLOEXEC)};
  hub hub_{{{"default", broker_uid, {1, 2, 3}, false, table_.get()},
            {.names_changes = true},
            nullptr,
            nullptr,
            &recorder_},
           out_,
           [](void* /*context*/,
              std::uint32_t /*slot*/,
              gpushm::generation /*generation*/,
              std::optional<segment_state> /*state*/) {},
           nullptr};
  core::time_point now_{std::chrono::hours(1)};
  core::session_id next_session_ = 1;
  core::session_id exporter_ = 0;
  std::uint64_t request_ = 0;
};

}  // namespace
}  // namespace gpushm::bench

int main(int count, char** arguments) {
  constexpr std::uint32_t most = 60'000;
  const std::uint32_t segments =
      count > 1 ? static_cast<std::uint32_t>(std::strtoul(arguments[1], nullptr, 10)) : most;
  if (segments < 1'000 || segments > most) {
    std::fprintf(stderr, "usage: gpushm_turns [SEGMENTS]   1,000 to 60,000\n");
    return 2;
  }
  rlimit files{};  // for the sockets of 4,096 connections
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  gpushm::bench::turn_times times;
  {
    gpushm::bench::full_domain one(times, segments);
    one.look();
    one.subscribe(64);
    one.subscribe(2);
    one.readers_of_one_segment();
    one.opens_of_one_segment(false);
    one.opens_of_one_segment(true);
    one.attach_many();
    one.lease_many(10'000);
    one.fall_behind();
    one.resume_and_end();
  }
  {
    gpushm::bench::full_domain one(times, segments, gpushm::backend::timeline);
    one.look_as_before();
    one.end();
  }
  {
    gpushm::bench::full_domain one(times, segments, gpushm::backend::cuda_ipc, false);
    one.end();
  }
  times.print(segments);
  return 0;
}
