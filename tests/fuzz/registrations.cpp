// SPDX-License-Identifier: Apache-2.0
// Hostile members and registered descriptors: register, resolve and withdraw them, with descriptors
// of many kinds and in any order. In every case a number leads to the one descriptor that its
// creator has attached, whose kind the broker accepts, and only as long as it is registered; opens
// change no leases; and nothing is left at the end.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/segments/registered_names.hpp"
#include "tests/fuzz/registration_script.hpp"
#include "tests/fuzz/require.hpp"
#include "tests/fuzz/session_world.hpp"

namespace {

using namespace gpushm;
using gpushm_fuzz::file_id;
using gpushm_fuzz::script;

class registration_world final : public gpushm_fuzz::session_world {
 public:
  registration_world() : accepted_(gpushm_fuzz::descriptor_pool::instance().ids_of_tmpfs_files()) {}

 private:
  void act(script& script, session_id session) override {
    switch (script.pick(16)) {
      case 0:
      case 1:
      case 2:
      case 3: {  // as a client library does
        const std::size_t before = generations().size();
        send_message(session, gpushm_fuzz::some_registration(script, generations()), {});
        if (generations().size() != before) {
          attach(script, session, generations().back());
          publish(script, session, generations().back());
        }
        return;
      }
      case 4:
        send_message(session, gpushm_fuzz::some_registration(script, generations()), {});
        return;
      case 5:
        attach(script, session, some_generation(script));
        return;
      case 6:
        publish(script, session, some_generation(script));
        return;
      case 7:
      case 8: {
        wire::open body{gpushm_fuzz::some_number(script), 0, 0, 0};
        body.expected_size_bytes = script.pick(8) == 7 ? script.number() : 0;
        body.timeout_ms = script.pick(4) == 3 ? script.byte() : 0;
        body.generation = script.pick(8) == 7 ? some_generation(script) : 0;
        send_message(session, body, {});
        return;
      }
      case 9: {
        wire::open_many body;
        for (std::size_t i = 1 + script.pick(4); i > 0; --i) {
          body.names.push_back(gpushm_fuzz::some_number(script));
        }
        body.timeout_ms = script.pick(4) == 3 ? script.byte() : 0;
        send_message(session, body, {});
        return;
      }
      case 10:
        withdraw(script, session);
        return;
      case 11:
        look(script, session);
        return;
      case 12:
        send_message(
            session, wire::fetch_chunks{some_generation(script), script.byte() / 200U}, {});
        return;
      case 13: {
        wire::keep body;
        for (std::size_t i = script.pick(4); i > 0; --i) {
          body.generations.push_back(some_generation(script));
          body.counts.push_back(script.pick(4) == 3 ? script.number() : 1);
        }
        body.more = script.pick(4) == 3;
        send_message(session, body, {});
        return;
      }
      case 14:
        read_packets();
        check_records();
        return;
      default:
        session_world::act(script, session);
        return;
    }
  }

  wire::hello some_hello(script& script) override {
    wire::hello hello;
    const std::size_t which = script.pick(8);  // rarely a client of an earlier version
    hello.known_kinds = which < 6    ? wire::known_kinds
                        : which == 6 ? wire::known_kinds - 1
                                     : script.byte();
    return hello;
  }

  [[nodiscard]] gpushm::generation some_generation(script& script) const {
    return gpushm_fuzz::some_generation(script, generations());
  }

  void attach(script& script, session_id session, gpushm::generation generation) {
    wire::attach body{generation, 0, {1}};
    descriptors fds;
    const std::size_t which = script.pick(16);
    if (which == 13) {
      body.chunk_bytes = {script.number()};
    } else if (which == 14) {
      body.first_chunk = script.byte();
    }
    // One descriptor, or none, or two.
    for (std::size_t i = which < 15 ? 1 : 2 * script.pick(2); i > 0; --i) {
      auto chosen = gpushm_fuzz::some_file(script);
      GPUSHM_REQUIRE(chosen.fd);
      if (chosen.is_accepted) {
        accepted_.insert(gpushm_fuzz::id_of(chosen.fd.get()));
      }
      fds.push_back(std::move(chosen.fd));
    }
    send_message(session, body, std::move(fds));
  }

  void publish(script& script, session_id session, gpushm::generation generation) {
    // What members put into the metadata is not the broker's business.
    const std::uint8_t bytes = script.byte();
    send_message(
        session,
        wire::publish{generation, std::vector<std::byte>(bytes == 255 ? 65'537 : bytes % 64)},
        {});
  }

  void withdraw(script& script, session_id session) {
    switch (script.pick(4)) {
      case 0:
        send_message(session,
                     wire::remove{gpushm_fuzz::some_number(script),
                                  script.pick(4) == 3 ? some_generation(script) : 0},
                     {});
        return;
      case 1:
        send_message(session, wire::unfence{gpushm_fuzz::some_number(script)}, {});
        return;
      default: {
        const auto generation = some_generation(script);
        const auto count = script.pick(4) == 3 ? script.byte() : std::uint8_t{1};
        send_message(session, wire::release{generation, count, script.pick(2) == 1}, {});
        return;
      }
    }
  }

  void look(script& script, session_id session) {
    constexpr std::array<const char*, 6> prefixes{"", ".", ".fd", ".fd/", ".fd/1", "a"};
    const std::string prefix = prefixes[script.pick(prefixes.size())];
    switch (script.pick(3)) {
      case 0:
        send_message(
            session,
            wire::list{prefix, script.pick(2) == 0 ? "" : gpushm_fuzz::some_number(script)},
            {});
        return;
      case 1:
        send_message(session, wire::stat{gpushm_fuzz::some_number(script)}, {});
        return;
      default:
        send_message(session, wire::subscribe{prefix}, {});
        return;
    }
  }

  // ---- what must hold ----

  /// Notes which registrations the message may end, and which files it may attach.
  void check_request(session_id session,
                     const wire::message& request,
                     const descriptors& fds) override {
    requests_[{session, request.id}] = request.body;
    offered_.clear();
    const auto may_end_if = [&](const auto& is_meant) {
      for (const auto& [generation, file] : registered_) {
        const core::segment* const found = domain().find_segment(generation);
        if (found != nullptr && is_meant(*found)) {
          may_end_.insert(generation);
        }
      }
    };
    const auto may_manage = [&](const core::segment& segment) {
      return segment.creator_session == session || domain().is_operator(session) ||
             core::is_same_member(segment.creator, domain().peer_of(session));
    };
    if (const auto* attaches = std::get_if<wire::attach>(&request.body)) {
      const core::segment* const to = domain().find_segment(attaches->generation);
      if (to != nullptr && to->creator_session == session && fds.size() == 1) {
        offered_[attaches->generation] = gpushm_fuzz::id_of(fds.front().get());
      }
    } else if (const auto* releases = std::get_if<wire::release>(&request.body)) {
      may_end_if([&](const core::segment& each) {
        return each.generation == releases->generation && each.creator_session == session;
      });
    } else if (const auto* removes = std::get_if<wire::remove>(&request.body)) {
      may_end_if([&](const core::segment& each) {
        return each.name == removes->name && may_manage(each);
      });
    } else if (const auto* unfences = std::get_if<wire::unfence>(&request.body)) {
      may_end_if([&](const core::segment& each) {
        return each.name == unfences->name && may_manage(each) && is_gone(each.creator_session);
      });
    } else if (const auto* publishes = std::get_if<wire::publish>(&request.body)) {
      const core::segment* const next = domain().find_segment(publishes->generation);
      may_end_if([&](const core::segment& each) {
        return next != nullptr && next->replaces == each.generation && may_manage(each);
      });
    } else if (std::holds_alternative<wire::keep>(request.body) ||
               std::holds_alternative<wire::bye>(request.body)) {
      may_end_if([&](const core::segment& each) { return each.creator_session == session; });
    }
  }

  void check_packet(session_id session,
                    const wire::message& message,
                    const broker_detail::outgoing& packet) override {
    if (const auto* opened = std::get_if<wire::opened>(&message.body)) {
      check_opened_registration(session, *opened, packet);
    } else if (const auto* chunks = std::get_if<wire::chunks>(&message.body)) {
      const core::segment* const found = domain().find_segment(chunks->generation);
      GPUSHM_REQUIRE(found != nullptr);
      if (found->backend == backend::descriptor) {
        GPUSHM_REQUIRE(found->creator_session == session);  // no other session has a lease
        for (const int fd : packet.descriptors) {
          GPUSHM_REQUIRE(gpushm_fuzz::id_of(fd) == registered_.at(found->generation));
        }
      }
    } else if (const auto* listing = std::get_if<wire::listing>(&message.body)) {
      check_shown(session, message.id, listing->segments);
    } else if (const auto* subscribed = std::get_if<wire::subscribed>(&message.body)) {
      check_shown(session, message.id, subscribed->segments);
    } else if (const auto* event = std::get_if<wire::event>(&message.body);
               event != nullptr && message.id != 0) {
      GPUSHM_REQUIRE(base::is_shown(event->name, prefix_of(session, message.id)));
    }
  }

  void check_opened_registration(session_id session,
                                 const wire::opened& opened,
                                 const broker_detail::outgoing& packet) const {
    const bool is_registration = opened.segment.backend == backend::descriptor;
    GPUSHM_REQUIRE(is_registration == base::is_registered_name(opened.segment.name));
    if (!is_registration) {
      return;
    }
    GPUSHM_REQUIRE(base::registered_number(opened.segment.name));
    const gpushm::generation generation = opened.segment.generation;
    GPUSHM_REQUIRE(packet.descriptors.size() == 1 && opened.chunk_bytes.front() == 1);
    GPUSHM_REQUIRE(gpushm_fuzz::id_of(packet.descriptors.front()) == registered_.at(generation));
    const core::segment* const found = domain().find_segment(generation);
    GPUSHM_REQUIRE(found != nullptr && !found->removed);
    GPUSHM_REQUIRE(found->creator_session != 0 && !domain().is_ending(found->creator_session));
    GPUSHM_REQUIRE((segment_of(session, generation) != nullptr) ==
                   (found->creator_session == session));
  }

  [[nodiscard]] std::string prefix_of(session_id session, std::uint64_t request) const {
    const wire::body& body = requests_.at({session, request});
    if (const auto* lists = std::get_if<wire::list>(&body)) {
      return lists->prefix;
    }
    if (const auto* subscribes = std::get_if<wire::subscribe>(&body)) {
      return subscribes->prefix;
    }
    return std::get<wire::stat>(body).name;
  }

  void check_shown(session_id session,
                   std::uint64_t request,
                   const std::vector<wire::segment>& segments) const {
    const std::string prefix = prefix_of(session, request);
    for (const wire::segment& each : segments) {
      GPUSHM_REQUIRE(base::is_shown(each.name, prefix));
    }
  }

  void check_state() override {
    std::uint64_t bytes = 0;
    std::uint64_t chunks = 0;
    std::set<std::string> published;
    static_cast<void>(domain().visit_segments(0, 1'000, [&](const core::segment& each) {
      chunks += each.chunk_count + (each.backend == backend::signals ? 1 : 0);
      if (each.backend != backend::descriptor) {
        bytes += each.allocated_bytes;
        GPUSHM_REQUIRE(!base::is_registered_name(each.name));
        return std::size_t{1};
      }
      GPUSHM_REQUIRE(base::registered_number(each.name) && each.chunk_count == 1);
      GPUSHM_REQUIRE(each.leases.size() <= 1);
      GPUSHM_REQUIRE(each.leases.empty() || each.leases.front().holder == each.creator_session);
      GPUSHM_REQUIRE(!each.published || each.removed || published.insert(each.name).second);
      if (each.attached_chunks == 1 && registered_.count(each.generation) == 0) {
        const file_id file = offered_.at(each.generation);
        GPUSHM_REQUIRE(accepted_.count(file) != 0);
        registered_.emplace(each.generation, file);
        creators_.emplace(each.generation, each.creator_session);
      }
      return std::size_t{1};
    }));
    GPUSHM_REQUIRE(domain().allocated_bytes() == bytes);
    const auto& limits = domain().bounds();
    const std::uint64_t expected = chunks +
                                   domain().session_count() * limits.descriptors_per_session +
                                   domain().ending_count() * limits.descriptors_per_ending_session;
    GPUSHM_REQUIRE(domain().descriptors() >= expected);
    GPUSHM_REQUIRE(has_unread_packets() || domain().descriptors() == expected);
    check_ends();
  }

  /// A registration ends only by those that may end it.
  void check_ends() {
    for (auto at = registered_.begin(); at != registered_.end();) {
      const core::segment* const found = domain().find_segment(at->first);
      if (found != nullptr && !found->removed) {
        creators_[at->first] = found->creator_session;
        ++at;
        continue;
      }
      GPUSHM_REQUIRE(may_end_.count(at->first) != 0 || is_gone(creators_[at->first]));
      at = found == nullptr ? registered_.erase(at) : std::next(at);
    }
  }

  std::map<std::pair<session_id, std::uint64_t>, wire::body> requests_;
  std::set<file_id> accepted_;                         ///< files of kinds that can be registered
  std::map<gpushm::generation, file_id> offered_;      ///< by the current message
  std::map<gpushm::generation, file_id> registered_;   ///< what was attached
  std::map<gpushm::generation, session_id> creators_;  ///< of `registered_`, before this message
  std::set<gpushm::generation> may_end_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(gpushm_fuzz::descriptor_pool::instance());
  // Counted for each input: libFuzzer opens pipes to its symbolizer.
  const std::size_t before = gpushm_fuzz::open_descriptors();
  {
    registration_world world;
    script script({data, std::min<std::size_t>(size, 4096)});
    world.run(script);
  }
  GPUSHM_REQUIRE(gpushm_fuzz::open_descriptors() == before);
  return 0;
}
