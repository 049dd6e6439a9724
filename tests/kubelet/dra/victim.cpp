// SPDX-License-Identifier: Apache-2.0
// dra_victim DIR prepare|unprepare: takes the state in DIR as an agent does, and prepares or
// unprepares the first claim between the marks. The kill test kills it there, at each system call.
#include <iostream>
#include <string>

#include "gpushm/error.hpp"
#include "kubelet/dra/claims.hpp"
#include "testing/ptrace/marker.hpp"
#include "tests/kubelet/dra/world.hpp"

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
    gpushm::dra::claims it(
        {{test_driver, test_node}, dir + "/cdi", dir + "/state", "boot-1"}, api, cluster, domains);
    it.restore();
    if (!prepares) {
      it.prepare(claim);
    }
    mark_begin();
    if (prepares) {
      it.prepare(claim);
    } else {
      it.unprepare(claim);
    }
    mark_end();
  } catch (const std::exception& failure) {
    std::cerr << failure.what() << '\n';
    return 1;
  }
  return 0;
}
