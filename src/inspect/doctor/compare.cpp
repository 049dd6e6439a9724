// SPDX-License-Identifier: Apache-2.0
#include "inspect/doctor/compare.hpp"

#include <algorithm>

namespace gpushm::inspect {

namespace {

party party_of(const process_facts& process) {
  party side;
  side.pid = process.nspid.empty() ? process.pid : process.nspid.back();
  const auto found = process.namespaces.find("pid");
  side.pid_namespace = found == process.namespaces.end() ? 0 : found->second.id;
  return side;
}

bool may_open(const party& side, int minor) {
  return !side.known_minors ||
         std::find(side.minors.begin(), side.minors.end(), minor) != side.minors.end();
}

}  // namespace

std::vector<peer_prediction> compare_with_peer(const facts& facts) {
  std::vector<peer_prediction> predictions;
  if (!facts.peer) {
    return predictions;
  }
  party self = party_of(facts.self);
  self.known_minors = true;
  for (const gpu_facts& each : facts.gpus) {
    if (each.open_error == 0) {
      self.minors.push_back(each.minor);
    }
  }
  party peer = party_of(*facts.peer);
  if (facts.peer_minors) {
    peer.known_minors = true;
    peer.minors = *facts.peer_minors;
  }
  const auto add = [&](std::size_t gpu, int minor, bool to_peer, way sharing_way) {
    predictions.push_back({gpu,
                           to_peer,
                           sharing_way,
                           to_peer ? predict(sharing_way, self, peer, minor)
                                   : predict(sharing_way, peer, self, minor)});
  };
  for (const bool to_peer : {true, false}) {
    add(0, -1, to_peer, way::host);
  }
  for (std::size_t gpu = 0; gpu < facts.gpus.size(); ++gpu) {
    const int minor = facts.gpus[gpu].minor;
    if (minor < 0 || (!may_open(self, minor) && !may_open(peer, minor))) {
      continue;
    }
    for (const bool to_peer : {true, false}) {
      for (const way how : all_ways) {
        if (how != way::host) {
          add(gpu, minor, to_peer, how);
        }
      }
    }
  }
  return predictions;
}

}  // namespace gpushm::inspect
