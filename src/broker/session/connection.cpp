// SPDX-License-Identifier: Apache-2.0
#include "broker/session/connection.hpp"

#include "protocol/transport/packet_socket.hpp"

namespace gpushm::broker_detail {

connection::~connection() {
  process.stop();
  life.stop();
  recorded_in.forget(process_id);
  recorded_in.forget(life_id);
  if (next_events) {
    recorded_in.forget(next_events->first.id);
    recorded_in.forget(next_events->second.id);
  }
  for (const records::kind each :
       {records::kind::connection, records::kind::open_rest, records::kind::lane}) {
    recorded_in.erase(records::key_of(each, number));
  }
  if (recorded_next) {
    recorded_in.erase(records::key_of(records::kind::open_next, number, *recorded_next));
  }
  for_each_lane([this](lane& each) { recorded_in.erase(key_of_handled(each)); });
}

void connection::prepare_events() {
  if (!next_events) {
    auto pair = transport::connected_pair();
    next_events.emplace(std::move(pair.first), std::move(pair.second));
  }
  recorded_in.keep(next_events->first);
  recorded_in.keep(next_events->second);
}

void connection::record() const noexcept {
  if (!recorded_in.is_on()) {
    return;
  }
  recorded_in.put(records::key_of(records::kind::connection, number),
                  records::connection_record{greeted,
                                             sent_bye,
                                             dropped,
                                             closed,
                                             token,
                                             fence,
                                             requests.socket.id,
                                             events ? events->socket.id : 0,
                                             process_id,
                                             life_id,
                                             known_kinds,
                                             takes_tables,
                                             requests.inflight_bound,
                                             events ? events->inflight_bound : 0,
                                             knows_versions});
  record_rest();
}

/// The names once, and after each turn only which one is next: they are many more bytes than what a
/// turn opens.
void connection::record_rest() const noexcept {
  const auto names = records::key_of(records::kind::open_rest, number);
  const auto mark_of = [this](std::uint32_t next) {
    return records::key_of(records::kind::open_next, number, next);
  };
  if (recorded_next && (!rest || rest->next != *recorded_next)) {
    recorded_in.erase(mark_of(*recorded_next));
  }
  if (!rest) {
    if (recorded_next) {
      recorded_in.erase(names);
    }
    recorded_next.reset();
    return;
  }
  if (!recorded_next) {
    try {
      recorded_in.put(names,
                      records::open_rest_record{rest->id,
                                                rest->request.names,
                                                rest->request.expected_size_bytes,
                                                rest->next,
                                                rest->deadline,
                                                rest->asked});
    } catch (const std::bad_alloc&) {
      recorded_in.fall_behind();
    }
  }
  if (recorded_next != rest->next) {
    recorded_in.mark(mark_of(rest->next));
  }
  recorded_next = rest->next;
}

void connection::record_events() const noexcept {
  if (recorded_in.is_on() && events) {
    recorded_in.put(records::key_of(records::kind::lane, number),
                    records::lane_record{events->queued, events->sent});
  }
}

}  // namespace gpushm::broker_detail
