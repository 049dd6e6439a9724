// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/document/share_device.hpp"

#include "containers/cdi/document/hook_call.hpp"
#include "containers/cdi/document/name.hpp"
#include "containers/cdi/document/write.hpp"
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

edits preload_edits(const ipc_files& files) {
  edits created;
  mount libraries;
  libraries.host_path = files.libraries;
  libraries.container_path = ipc_inside;
  // Without noexec: programs map the libraries as code.
  libraries.options = {"ro", "nosuid", "nodev", "rbind", "rprivate"};
  created.mounts.push_back(std::move(libraries));
  created.hooks.push_back(
      hook_call(files.hook_program,
                "preload",
                {"--library", std::string(ipc_inside).append("/").append(ipc_library)}));
  return created;
}

std::string ipc_domain_variable(std::string_view domain) {
  return std::string("GPUSHM_IPC_DOMAIN=").append(domain);
}

document ipc_document(const std::vector<std::string>& domains,
                      const ipc_files& files,
                      const std::string& on_host,
                      std::string_view kind) {
  document created = share_document(domains, on_host);
  created.kind = kind;
  for (device& each : created.devices) {
    each.changes.env.push_back(ipc_domain_variable(each.name));
  }
  created.changes = preload_edits(files);
  created.version = minimum_version(created);
  return created;
}

}  // namespace gpushm::cdi
