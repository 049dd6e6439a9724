// SPDX-License-Identifier: Apache-2.0
#include "cdi/document/share_device.hpp"

#include "cdi/document/name.hpp"
#include "cdi/document/write.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cdi {

document share_document(const std::vector<std::string>& domains, const std::string& on_host) {
  document created;
  created.kind = share_kind;
  for (const std::string& domain : domains) {
    if (const auto reason = why_invalid_device(domain)) {
      throw error(errc::invalid_argument,
                  "describe domain",
                  domain,
                  "it cannot be the name of a device: " + *reason,
                  "rename the domain: gpushm serve --domain NAME");
    }
    mount directory;
    directory.host_path.append(on_host).append("/").append(domain);
    directory.container_path.append(domains_inside).append("/").append(domain);
    directory.options = {"ro", "nosuid", "nodev", "noexec", "rbind", "rprivate"};
    device led;
    led.name = domain;
    led.changes.mounts.push_back(std::move(directory));
    created.devices.push_back(std::move(led));
  }
  created.version = minimum_version(created);
  return created;
}

}  // namespace gpushm::cdi
