// SPDX-License-Identifier: Apache-2.0
// dra_victim DIR prepare|unprepare: restores the state in DIR like an agent, then prepares or
// unprepares the first claim between two marks. The kill test kills it there, at each system call.
#include <iostream>
#include <string>

#include "gpushm/error.hpp"
#include "kubernetes/dra/claims/claims.hpp"
#include "tests/kubelet/dra/world.hpp"
#include "tests/support/ptrace/marker.hpp"

int main(int argc, char** argv) {
  using namespace gpushm_testing;
  if (argc != 3) {
    std::cerr << "usage: dra_victim DIR prepare|unprepare\n";
    return 2;
  }
  const std::string dir = argv[1];
  const bool prepares = std::string(argv[2]) == "prepare";
  try {
    memory_cluster cluster;
    const claim_reference claim = claim_number(1);
    cluster.put(claim_path(claim), claim_object(claim));
    directory_domains domains(dir + "/run");
    gpushm::dra::resource_api api(cluster);
    gpushm::dra::claims subject(
        {{test_driver, test_node}, dir + "/cdi", dir + "/state", "boot-1"}, api, cluster, domains);
    subject.restore();
    if (!prepares) {
      subject.prepare(claim);
    }
    mark_begin();
    if (prepares) {
      subject.prepare(claim);
    } else {
      subject.unprepare(claim);
    }
    mark_end();
  } catch (const std::exception& failure) {
    std::cerr << failure.what() << '\n';
    return 1;
  }
  return 0;
}
