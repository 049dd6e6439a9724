// SPDX-License-Identifier: Apache-2.0
#include "tests/support/raw_session/floods.hpp"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "base/files/syscall.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/raw_session/forked_process.hpp"
#include "tests/support/raw_session/pump.hpp"
#include "tests/support/raw_session/raw_session.hpp"
#include "tests/support/raw_session/traps.hpp"

namespace gpushm_testing {
namespace {

namespace wire = gpushm::wire;
using gpushm::base::retry;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* good_name = "good/segment";
constexpr std::size_t max_metadata = gpushm::max_metadata_bytes;

std::vector<std::byte> packet_of(wire::body body) {
  return wire::encode({1, std::move(body)});
}

std::string numbered(const std::string& prefix, unsigned number) {
  auto digits = std::to_string(number);
  return prefix + std::string(4 - std::min<std::size_t>(4, digits.size()), '0') + digits;
}

template <typename Body>
void pump_body(const std::string& socket,
               clock::time_point until,
               Body body,
               unsigned connections,
               unsigned descriptors = 0,
               bool reads = true) {
  pump(socket,
       {.packet = packet_of(std::move(body)),
        .connections = connections,
        .descriptors = descriptors,
        .reads = reads},
       until);
}

wire::open_many many(const std::string& name, std::uint32_t timeout_ms = 0) {
  return {std::vector<std::string>(wire::max_open_many, name), 0, timeout_ms};
}

// ---- requests ----

template <unsigned Connections>
void stat(const std::string& socket, clock::time_point until) {
  pump_body(socket, until, wire::stat{good_name}, Connections);
}
void open_missing(const std::string& socket, clock::time_point until) {
  pump_body(socket, until, wire::open{"not/there", 0, 0}, 1);
}
template <unsigned Connections>
void open_existing(const std::string& socket, clock::time_point until) {
  pump_body(socket, until, wire::open{good_name, 0, 0}, Connections);
}
void report(const std::string& socket, clock::time_point until) {
  pump(socket,
       {.packet = packet_of(wire::report{std::vector<std::uint64_t>(wire::max_batch, 123'456'789),
                                         std::vector<std::uint64_t>(wire::max_batch, 9),
                                         1}),
        .on_event_lane = true},
       until);
}
void release_forged(const std::string& socket, clock::time_point until) {
  pump_body(socket, until, wire::release{12'345, 1}, 1);
}
void list(const std::string& socket, clock::time_point until) {
  auto owner = raw_session::greeted(socket);
  for (unsigned i = 0; i < 1000; ++i) {
    (void)owner.request(reserve_exported(numbered("list/" + std::string(200, 'l'), i)));
  }
  pump_body(socket, until, wire::list{}, 1);
}
void publish_foreign(const std::string& socket, clock::time_point until) {
  pump_body(socket, until, wire::publish{1, std::vector<std::byte>(65'000)}, 1);
}
void garbage(const std::string& socket, clock::time_point until) {
  std::vector<std::byte> bytes(190'000);
  std::uint32_t state = 1;
  for (auto& byte : bytes) {
    state = state * 1'664'525U + 1'013'904'223U;
    byte = static_cast<std::byte>(state >> 24U);
  }
  pump(socket, {.packet = std::move(bytes), .connections = 4}, until);
}
void similar_names(const std::string& socket, clock::time_point until) {
  auto owner = raw_session::greeted(socket);
  const std::string long_name = "near/" + std::string(186, 'a');
  for (unsigned i = 0; i < 1000; ++i) {
    (void)publish_segment(owner, reserve_exported(numbered(long_name, i)));
  }
  // As many as fit into one packet.
  pump_body(
      socket, until, wire::open_many{std::vector<std::string>(900, long_name + "zyxw"), 0, 0}, 1);
}
void open_many_missing(const std::string& socket, clock::time_point until) {
  pump_body(socket, until, many("not/there"), 1);
}

// ---- replies ----

void metadata(const std::string& socket, clock::time_point until) {
  auto owner = raw_session::greeted(socket);
  (void)publish_segment(owner, reserve_pages("fat", 1), max_metadata);
  pump_body(socket, until, wire::open{"fat", 0, 0}, 1);
}
void chunks(const std::string& socket, clock::time_point until) {
  auto owner = raw_session::greeted(socket);
  (void)publish_segment(owner, reserve_pages("wide", 1000));
  pump_body(socket, until, wire::open{"wide", 0, 0}, 1);
}
template <unsigned Connections>
void open_many_existing(const std::string& socket, clock::time_point until) {
  pump_body(socket, until, many(good_name), Connections);
}
template <unsigned Connections>
void not_reading(const std::string& socket, clock::time_point until) {
  pump_body(socket, until, wire::open{good_name, 0, 0}, Connections, 0, false);
}
void large_replies(const std::string& socket, clock::time_point until) {
  auto owner = raw_session::greeted(socket);
  (void)publish_segment(owner, reserve_pages("fat", 1), max_metadata);
  pump_body(socket, until, many("fat"), 16, 0, false);
}
void waiting_opens(const std::string& socket, clock::time_point until) {
  auto owner = raw_session::greeted(socket);
  const auto reservation = reserve_pages("awaited", 1);
  std::vector<raw_session> waiting;
  for (unsigned i = 0; i < 8; ++i) {
    waiting.push_back(raw_session::greeted(socket));
    for (unsigned j = 0; j < 4; ++j) {
      waiting.back().send(many("awaited", 60'000));
    }
  }
  (void)publish_segment(owner, reservation, max_metadata);
  sleep_for(until - clock::now());
}
/// Opens that need the exporter's confirmation, which never arrives.
void confirms(const std::string& socket, clock::time_point until) {
  auto exporter = raw_session::greeted(socket);
  (void)publish_segment(exporter, reserve_exported("exported"));
  pump_body(socket, until, many("exported"), 60);
}
void events(const std::string& socket, clock::time_point until) {
  std::vector<raw_session> deaf;
  try {
    for (unsigned i = 0; i < 100; ++i) {
      deaf.push_back(raw_session::greeted(socket));
      for (unsigned j = 0; j < 64; ++j) {
        deaf.back().send(wire::subscribe{});
      }
    }
  } catch (const gpushm::error&) {  // no more connections
  } catch (const harness_error&) {
  }
  pump_body(socket, until, wire::open{good_name, 0, 0}, 1);
}

// ---- descriptors ----

void descriptors(const std::string& socket, clock::time_point until) {
  pump_body(socket, until, wire::stat{good_name}, 4, 200);
}
void linger(const std::string& socket, clock::time_point until) {
  while (clock::now() < until) {
    auto session = raw_session::greeted(socket);
    lingering_socket trapped{seconds(15)};
    const std::vector<int> copies(200, trapped.trap.get());
    for (int i = 0; i < 8; ++i) {
      session.send(wire::stat{good_name}, copies);
    }
    // Now, while the broker still has copies: the broker must do the last close.
    trapped.trap.reset();
    sleep_for(milliseconds(200));
    // Keeps the peer open; otherwise close does not linger.
    (void)trapped.peer.release();
    (void)trapped.listener.release();
  }
}

// ---- memory ----

void reserve(const std::string& socket, clock::time_point until) {
  auto session = raw_session::greeted(socket);
  for (unsigned i = 0; i < 15'000 && clock::now() < until; ++i) {
    auto reservation = reserve_pages("reserved/" + std::to_string(i), 1);
    if (!session.request(std::move(reservation)).message) {
      return;
    }
  }
  sleep_for(until - clock::now());
}
void publish_metadata(const std::string& socket, clock::time_point until) {
  auto session = raw_session::greeted(socket);
  for (unsigned i = 0; clock::now() < until; ++i) {
    auto reservation = reserve_exported("metadata/" + std::to_string(i));
    if (publish_segment(session, reservation, max_metadata) == 0) {
      sleep_for(milliseconds(1));
    }
  }
}

// ---- connections and processes ----

template <storm_kind Kind>
void storm(const std::string& socket, clock::time_point until) {
  connect_storm(socket, Kind, until);
}
/// Processes that each connect, send one request and exit.
void fork_storm(const std::string& socket, clock::time_point until) {
  while (clock::now() < until) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        auto session = raw_session::greeted(socket);
        (void)session.request(wire::open{good_name, 0, 0});
      } catch (const std::exception&) {  // refused
      }
      ::_exit(0);
    }
    int status = 0;
    retry([&] { return ::waitpid(child, &status, 0); });
  }
}
/// Repeatedly kills one process with many connections, subscriptions and leases.
void killed(const std::string& socket, clock::time_point until) {
  constexpr unsigned segments = 50;
  while (clock::now() < until) {
    auto victim = forked_process::start({}, [&](forked_process::parent_link& parent) {
      std::vector<raw_session> sessions;
      std::vector<std::string> names;
      auto owner = raw_session::greeted(socket);
      for (unsigned i = 0; i < segments; ++i) {
        names.push_back("killed/" + std::to_string(i));
        (void)publish_segment(owner, reserve_pages(names.back(), 1));
      }
      try {
        for (unsigned i = 0; i < 100; ++i) {
          auto session = raw_session::greeted(socket);
          session.send(wire::open_many{names, 0, 0});
          for (unsigned j = 0; j < segments && session.receive().message; ++j) {
          }
          sessions.push_back(std::move(session));
        }
      } catch (const gpushm::error&) {  // no more connections
      } catch (const harness_error&) {
      }
      for (auto& session : sessions) {
        for (unsigned j = 0; j < 64; ++j) {
          session.send(wire::subscribe{});
        }
        for (unsigned j = 0; j < 64 && session.receive().message; ++j) {
        }
      }
      parent.send_line("ready");
      parent.wait_for_go();
    });
    try {
      (void)victim.wait_line(seconds(60));
    } catch (const harness_error&) {  // the broker refused something
    }
    victim.stop();
  }
}
/// A process connects, forks children that send on its socket, and exits.
void orphans(const std::string& socket, clock::time_point until) {
  auto owner = raw_session::greeted(socket);
  for (unsigned i = 0; i < 3000; ++i) {
    (void)owner.request(reserve_exported("orphans/" + std::to_string(i)));
  }
  const pid_t first = ::fork();
  if (first == 0) {
    auto shared = raw_session::greeted(socket);
    const auto packet = packet_of(wire::list{"orphans/", {}});
    for (unsigned i = 0; i < 4; ++i) {
      if (::fork() == 0) {
        std::vector<std::byte> buffer(wire::max_packet_bytes);
        while (clock::now() < until) {
          if (i == 0) {
            (void)shared.receive(milliseconds(100));
          } else if (!shared.send_bytes(packet)) {
            break;
          }
        }
        ::_exit(0);
      }
    }
    sleep_for(milliseconds(300));
    ::_exit(0);
  }
  sleep_for(until - clock::now());
}

constexpr std::array<flood, 32> all{{
    {"stat-1", "Stat on 1 connection", stat<1>},
    {"stat-64", "Stat on 64 connections", stat<64>},
    {"open-missing", "Open of a missing name", open_missing},
    {"open-1", "Open on 1 connection", open_existing<1>},
    {"open-64", "Open on 64 connections", open_existing<64>},
    {"report", "Report of 253 + 253 entries", report},
    {"release-forged", "Release of a forged generation", release_forged},
    {"list", "List over 1,000 unpublished names", list},
    {"publish-foreign", "Publish of a foreign generation, 65 KB", publish_foreign},
    {"garbage", "190 KB of garbage on 4 connections", garbage},
    {"similar-names", "OpenMany of 1,000 missing names near 1,000 published ones", similar_names},
    {"open-many-missing", "OpenMany of 1,000 missing names", open_many_missing},
    {"metadata", "Open with 64 KiB of metadata", metadata},
    {"chunks", "Open of 1,000 chunks", chunks},
    {"open-many-1", "OpenMany of 1,000 existing names on 1 connection", open_many_existing<1>},
    {"open-many-16", "OpenMany of 1,000 existing names on 16 connections", open_many_existing<16>},
    {"not-reading-8", "Open on 8 connections that do not read", not_reading<8>},
    {"not-reading-32", "Open on 32 connections that do not read", not_reading<32>},
    {"large-answers", "OpenMany of 1,000 x 64 KiB, 16 connections that do not read", large_replies},
    {"waiting-opens", "32,000 waiting opens and one Publish of 64 KiB", waiting_opens},
    {"confirms", "OpenMany of 1,000 names of a silent exporter, 60 connections", confirms},
    {"events", "6,400 subscriptions that are not read, and Open", events},
    {"descriptors", "200 descriptors a packet on 4 connections", descriptors},
    {"linger", "sockets with SO_LINGER as descriptors", linger},
    {"reserve", "15,000 Reserve", reserve},
    {"publish-metadata", "segments with 64 KiB of metadata", publish_metadata},
    {"connect", "connect and close", storm<storm_kind::silent>},
    {"connect-hello", "connect, Hello and close", storm<storm_kind::hello>},
    {"connect-garbage", "connect, garbage and close", storm<storm_kind::garbage>},
    {"fork", "processes that connect, Open and end", fork_storm},
    {"killed", "processes with 100 connections, 6,400 subscriptions, 5,000 leases killed", killed},
    {"orphans", "children that send on a dead process's connection", orphans},
}};

}  // namespace

std::span<const flood> floods() {
  return all;
}

const flood* find_flood(std::string_view name) {
  const auto* const found =
      std::find_if(all.begin(), all.end(), [&](const flood& flood) { return flood.name == name; });
  return found != all.end() ? found : nullptr;
}

}  // namespace gpushm_testing
