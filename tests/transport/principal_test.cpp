// SPDX-License-Identifier: Apache-2.0
#include "protocol/transport/principal.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/transport/packet_socket.hpp"

namespace gpushm::transport {
namespace {

const std::string id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const std::string pod = "11111111-2222-3333-4444-555555555555";

TEST(principal, is_pod_or_container_of_runtime) {
  const std::string container = "container 0123456789abcdef";
  for (const auto& [text, tenant] : std::vector<std::pair<std::string, std::string>>{
           {"0::/system.slice/docker-" + id + ".scope\n", container},
           {"0::/machine.slice/libpod-" + id + ".scope/container\n", container},
           {"0::/kubepods.slice/kubepods-besteffort.slice/"
            "kubepods-besteffort-pod11111111_2222_3333_4444_555555555555"
            ".slice/cri-containerd-" +
                id + ".scope\n",
            "pod " + pod},
           {"0::/kubepods/burstable/pod" + pod + "/" + id + "\n", "pod " + pod},
           {"0::/../../pod" + pod + "/" + id + "\n", "pod " + pod},
           {"0::/../crio-" + id + ".scope\n", container},
           // The guaranteed class has no part of its own.
           {"0::/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/crio-" + id +
                ".scope\n",
            "pod " + pod},
           {"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
            "kubelet-kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice/"
            "cri-containerd-" +
                id + ".scope\n",
            "pod " + pod},
           // Version 1, each hierarchy on a line of its own; and both versions.
           {"11:memory:/kubepods/besteffort/pod" + pod + "/" + id +
                "\n2:cpu,cpuacct:/kubepods/besteffort/pod" + pod + "/" + id + "\n0::/\n",
            "pod " + pod},
           {"1:name=systemd:/kubepods.slice/kubepods-burstable.slice/"
            "kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice/docker-" +
                id + ".scope\n",
            "pod " + pod},
           // Static pods: the kubelet's hash is their UID.
           {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" +
                id.substr(0, 32) + ".slice/cri-containerd-" + id + ".scope\n",
            "pod " + id.substr(0, 32)},
           {"0::/kubepods/burstable/pod" + id.substr(0, 32) + "/" + id + "\n",
            "pod " + id.substr(0, 32)},
           {"12:pids:/docker/" + id + "\n1:name=systemd:/docker/" + id + "\n0::/\n", container},
           {"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope\n",
            "uid 1000"},
           {"0::/user.slice/user-0.slice/session-1.scope\n", "uid 0"},
           {"0::/docker/" + id + "/docker/" + std::string(64, 'f') + "\n", container}}) {
    EXPECT_EQ(tenant_of_cgroups(text).value_or("none"), tenant) << text;
  }
}

TEST(principal, is_not_chosen_by_member) {
  for (const std::string& text :
       std::vector<std::string>{"",
                                "\n",
                                "0::/\n",
                                "0::/system.slice/nginx.service\n",
                                "0::/foo/bar\n",
                                "garbage",
                                ":",
                                "::",
                                "0::",
                                "0::/user.slice/user-x.slice/a\n",
                                "0::/user-1000.slice\n",
                                "0::/user.slice/user-.slice\n",
                                "0::/podnot-a-uid/abc\n",
                                "0::/pod" + std::string(36, 'x') + "\n",
                                "0::/pod" + std::string(35, 'a') + "\"\n",
                                "0::/pod" + std::string(32, '_') + "\n",
                                "0::/pod" + std::string(100'000, 'a') + "\n",
                                "0::/" + std::string(100'000, '/') + "\n",
                                "0::/kubepods-pod.slice\n",
                                "0::/kubepods-pod" + std::string(36, '\x1b') + ".slice\n",
                                "0::/0123456789abcdef\n"}) {
    EXPECT_EQ(tenant_of_cgroups(text), std::nullopt) << text;
  }
  // Below its own slice a user may create groups with any name.
  EXPECT_EQ(
      tenant_of_cgroups("0::/user.slice/user-7.slice/user@7.service/docker-" + id + ".scope\n"),
      "uid 7");
}

TEST(principal, falls_back_to_uid_then_process_then_shared) {
  const auto pair = connected_pair();
  const auto peer = peer_of(pair.first.get());
  const auto pidfd = pidfd_of_peer(pair.first.get(), peer);
  const auto with_uid = principal_of({0, 1234, 0, true}, -1);
  EXPECT_EQ(with_uid.key, "uid 1234");
  EXPECT_TRUE(with_uid.vouched_for);
  if (pidfd) {
    const auto process = principal_of({::getpid(), 65534, 0, false}, pidfd.get());
    EXPECT_TRUE(process.key.starts_with("process ") || process.vouched_for) << process.key;
  }
  EXPECT_EQ(principal_of({0, 65534, 0, false}, -1).key, "unidentified processes");
}

TEST(principal, of_this_process_is_in_no_other_container) {
  const auto pair = connected_pair();
  const auto peer = peer_of(pair.first.get());
  const auto pidfd = pidfd_of_peer(pair.first.get(), peer);
  EXPECT_FALSE(is_in_no_other_container(peer, -1)) << "nothing shows that the number is its own";
  if (pidfd) {
    EXPECT_TRUE(is_in_no_other_container(peer, pidfd.get()));
  }
}

}  // namespace
}  // namespace gpushm::transport
