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

std::vector<peer_prediction> compare_with_peer(const facts& all) {
  std::vector<peer_prediction> predictions;
  if (!all.peer) {
    return predictions;
  }
  party self = party_of(all.self);
  self.known_minors = true;
  for (const gpu_facts& each : all.gpus) {
    if (each.open_error == 0) {
      self.minors.push_back(each.minor);
    }
  }
  party peer = party_of(*all.peer);
  if (all.peer_minors) {
    peer.known_minors = true;
    peer.minors = *all.peer_minors;
  }
  const auto add = [&](std::size_t gpu, int minor, bool to_peer, way how) {
    predictions.push_back(
        {gpu,
         to_peer,
         how,
         to_peer ? predict(how, self, peer, minor) : predict(how, peer, self, minor)});
  };
  for (const bool to_peer : {true, false}) {
    add(0, -1, to_peer, way::host);
  }
  for (std::size_t gpu = 0; gpu < all.gpus.size(); ++gpu) {
    const int minor = all.gpus[gpu].minor;
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
