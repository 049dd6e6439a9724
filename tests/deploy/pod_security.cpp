// SPDX-License-Identifier: Apache-2.0
#include "tests/deploy/pod_security.hpp"

#include <algorithm>
#include <initializer_list>
#include <set>

namespace gpushm_tests {
namespace {

class checker {
 public:
  checker(const manifest& object, std::vector<std::string>& problems)
      : object_(object), found_(problems) {}

  void report(const gpushm::yaml::node& where, const std::string& problem) {
    found_.push_back(object_.place(where) + ": " + problem);
  }

  void pod(const gpushm::yaml::node& spec) {
    for (const char* name : {"hostNetwork", "hostPID", "hostIPC"}) {
      if (text_at(spec, {name}) == "true") {
        report(*find(spec, {name}), name);
      }
    }
    volumes(spec);
    const gpushm::yaml::node* context = find(spec, {"securityContext"});
    if (context != nullptr && find(*context, {"sysctls"}) != nullptr) {
      report(*context, "sysctls");
    }
    if (context != nullptr) {
      profiles(*context);
    }
    for (const gpushm::yaml::node* each : containers(spec)) {
      container(spec, *each);
    }
  }

 private:
  void volumes(const gpushm::yaml::node& spec) {
    static const std::set<std::string> allowed{"configMap",
                                               "csi",
                                               "downwardAPI",
                                               "emptyDir",
                                               "ephemeral",
                                               "image",
                                               "persistentVolumeClaim",
                                               "projected",
                                               "secret",
                                               "name"};
    for (const gpushm::yaml::node* volume : elements(find(spec, {"volumes"}))) {
      for (const std::string& key : keys_of(volume)) {
        if (allowed.count(key) == 0) {
          report(*volume, "volume of type " + key);
        }
      }
    }
  }

  void profiles(const gpushm::yaml::node& context) {
    const std::string seccomp = text_at(context, {"seccompProfile", "type"});
    if (!seccomp.empty() && seccomp != "RuntimeDefault" && seccomp != "Localhost") {
      report(context, "seccompProfile " + seccomp);
    }
    if (text_at(context, {"appArmorProfile", "type"}) == "Unconfined") {
      report(context, "appArmorProfile Unconfined");
    }
    if (const gpushm::yaml::node* selinux = find(context, {"seLinuxOptions"})) {
      report(*selinux, "seLinuxOptions");
    }
    if (text_at(context, {"runAsUser"}) == "0") {
      report(context, "runAsUser 0");
    }
    if (text_at(context, {"runAsNonRoot"}) == "false") {
      report(context, "runAsNonRoot false");
    }
  }

  // The container's value has precedence over the pod's.
  static std::string effective(const gpushm::yaml::node& spec,
                               const gpushm::yaml::node& container,
                               std::initializer_list<std::string_view> keys) {
    const gpushm::yaml::node* own = find(container, {"securityContext"});
    const std::string text = own == nullptr ? std::string() : text_at(*own, keys);
    const gpushm::yaml::node* common = find(spec, {"securityContext"});
    return !text.empty() || common == nullptr ? text : text_at(*common, keys);
  }

  void capabilities(const gpushm::yaml::node& where, const gpushm::yaml::node* context) {
    const auto dropped = context == nullptr ? std::vector<std::string>()
                                            : texts(find(*context, {"capabilities", "drop"}));
    if (std::find(dropped.begin(), dropped.end(), "ALL") == dropped.end()) {
      report(where, "capabilities are not all dropped");
    }
    if (context != nullptr) {
      for (const std::string& added : texts(find(*context, {"capabilities", "add"}))) {
        if (added != "NET_BIND_SERVICE") {
          report(where, "capability " + added);
        }
      }
    }
  }

  void container(const gpushm::yaml::node& spec, const gpushm::yaml::node& container) {
    const gpushm::yaml::node* context = find(container, {"securityContext"});
    if (effective(spec, container, {"runAsNonRoot"}) != "true") {
      report(container, "runAsNonRoot is not true");
    }
    if (effective(spec, container, {"seccompProfile", "type"}).empty()) {
      report(container, "no seccompProfile");
    }
    if (context == nullptr || text_at(*context, {"allowPrivilegeEscalation"}) != "false") {
      report(container, "allowPrivilegeEscalation is not false");
    }
    capabilities(container, context);
    if (context != nullptr) {
      profiles(*context);
      if (text_at(*context, {"privileged"}) == "true") {
        report(*context, "privileged");
      }
      const std::string mount = text_at(*context, {"procMount"});
      if (!mount.empty() && mount != "Default") {
        report(*context, "procMount " + mount);
      }
    }
    for (const gpushm::yaml::node* port : elements(find(container, {"ports"}))) {
      const std::string host_port = text_at(*port, {"hostPort"});
      if (!host_port.empty() && host_port != "0") {
        report(*port, "hostPort " + host_port);
      }
    }
  }

  const manifest& object_;
  std::vector<std::string>& found_;
};

}  // namespace

std::vector<std::string> not_restricted(const manifest& pod) {
  std::vector<std::string> problems;
  checker(pod, problems).pod(*pod_spec(pod));
  return problems;
}

}  // namespace gpushm_tests
