// SPDX-License-Identifier: Apache-2.0
#include "broker/connection.hpp"

namespace gpushm::broker_detail {

connection::~connection() {
  process.stop();
  life.stop();
  recorded_in.forget(process_id);
  recorded_in.forget(life_id);
  for (const records::kind each :
       {records::kind::connection, records::kind::open_rest, records::kind::lane}) {
    recorded_in.erase(records::key_of(each, number));
  }
  for_each_lane([this](lane& each) { recorded_in.erase(key_of_handled(each)); });
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
                                             takes_tables});
  const auto rest_key = records::key_of(records::kind::open_rest, number);
  if (!rest) {
    recorded_in.erase(rest_key);
    return;
  }
  try {
    recorded_in.put(rest_key,
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

void connection::record_events() const noexcept {
  if (recorded_in.is_on() && events) {
    recorded_in.put(records::key_of(records::kind::lane, number),
                    records::lane_record{events->queued, events->sent});
  }
}

}  // namespace gpushm::broker_detail
