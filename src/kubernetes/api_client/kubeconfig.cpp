// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/text/quoted.hpp"
#include "base/text/text.hpp"
#include "containers/yaml/reader.hpp"
#include "kubernetes/api_client/base64.hpp"
#include "kubernetes/api_client/client.hpp"

namespace gpushm::api_client {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_bytes = 4UL << 20U;

constexpr const char* operation = "read kubeconfig";

/// A kubeconfig with its tree. Unknown entries are ignored, as in kubectl.
class kubeconfig {
 public:
  kubeconfig(const std::string& path, const std::string& text)
      : path_(path), directory_(fs::path(path).parent_path()), reader_(path, problems_) {
    yaml::read_yaml(text, tree_);
    if (tree_.failure) {
      fail(fmt::format("line {}: {}", tree_.failure->line, tree_.failure->text));
    }
    if (tree_.root == nullptr) {
      fail("it is empty");
    }
  }

  [[noreturn]] void fail(std::string_view cause, std::string_view next_step = {}) const {
    throw error(errc::invalid_argument, operation, path_, cause, next_step);
  }

  void check_problems() const {
    if (!problems_.empty()) {
      const yaml::problem& first = problems_.front();
      fail(fmt::format("line {}: {}", first.line, first.text));
    }
  }

  const yaml::node* member(const yaml::node& node, std::string_view key) {
    for (const yaml::entry& each : reader_.entries(node, "this part")) {
      if (each.key == key && !reader_.is_null(*each.value)) {
        return &yaml::followed(*each.value);
      }
    }
    check_problems();
    return nullptr;
  }

  std::string text(const yaml::node& node, std::string_view key) {
    std::string value;
    if (const yaml::node* found = member(node, key)) {
      reader_.read(*found, key, value);
      check_problems();
    }
    return value;
  }

  [[nodiscard]] const yaml::node& root() const { return *tree_.root; }

  /// The `member_name` of the element `name` in `list`, or null.
  const yaml::node* named(std::string_view list,
                          std::string_view member_name,
                          const std::string& name) {
    if (const yaml::node* node = member(*tree_.root, list)) {
      for (const yaml::node* each : reader_.elements(*node, list)) {
        const yaml::node* content = member(*each, member_name);
        if (text(*each, "name") == name && content != nullptr) {
          return content;
        }
      }
    }
    check_problems();
    return nullptr;
  }

  std::string file_of(const yaml::node& node, std::string_view key) {
    const std::string value = text(node, key);
    return value.empty() ? value : (directory_ / value).lexically_normal().string();
  }

  std::string decoded(const yaml::node& node, std::string_view key) {
    const std::string value = text(node, key);
    const auto bytes = base64_decoded(value);
    if (!bytes) {
      fail(fmt::format("{} is not base64", key));
    }
    return *bytes;
  }

  void read_cluster(const yaml::node& cluster, server_access& result) {
    result.url = text(cluster, "server");
    if (!result.url.starts_with("https://") && !result.url.starts_with("http://")) {
      fail("server must be an http or https URL, not " + base::in_quotes(result.url));
    }
    result.authority_pem = decoded(cluster, "certificate-authority-data");
    result.authority_file =
        result.authority_pem.empty() ? file_of(cluster, "certificate-authority") : std::string();
    result.server_name = text(cluster, "tls-server-name");
    result.proxy_url = text(cluster, "proxy-url");
    if (const yaml::node* skip = member(cluster, "insecure-skip-tls-verify")) {
      bool skipped = false;
      reader_.read(*skip, "insecure-skip-tls-verify", skipped);
      result.verify = !skipped;
    }
  }

  void read_user(const yaml::node& user, const std::string& name, server_access& result) {
    for (const char* plugin : {"exec", "auth-provider"}) {
      if (member(user, plugin) != nullptr) {
        fail(fmt::format("user {} authenticates with {}, but credential plugins are not supported",
                         base::in_quotes(name),
                         plugin),
             "use a user with a token or a client certificate, as of a service account");
      }
    }
    if (member(user, "username") != nullptr) {
      fail(fmt::format(
               "user {} has a password, which API servers have not accepted since Kubernetes 1.19",
               base::in_quotes(name)),
           "use a user with a token or a client certificate");
    }
    result.token_file = file_of(user, "tokenFile");
    result.token = text(user, "token");
    result.certificate_pem = decoded(user, "client-certificate-data");
    result.certificate_file =
        result.certificate_pem.empty() ? file_of(user, "client-certificate") : std::string();
    result.key_pem = decoded(user, "client-key-data");
    result.key_file = result.key_pem.empty() ? file_of(user, "client-key") : std::string();
    const bool has_certificate =
        !result.certificate_file.empty() || !result.certificate_pem.empty();
    const bool has_key = !result.key_file.empty() || !result.key_pem.empty();
    if (has_certificate != has_key) {
      fail(fmt::format("user {}{}",
                       base::in_quotes(name),
                       has_key ? " has a client key but no certificate"
                               : " has a client certificate but no key"));
    }
  }

  std::string path_;
  fs::path directory_;
  std::vector<yaml::problem> problems_;
  yaml::reader reader_;
  yaml::tree tree_;
};

/// Several files merged as by kubectl: the first that defines an entry takes precedence.
class kubeconfigs {
 public:
  explicit kubeconfigs(const std::string& path_list) : paths_(path_list) {
    // A single existing file may have a colon in its name.
    std::vector<std::string> paths{path_list};
    const bool is_list =
        path_list.find(':') != std::string::npos && ::access(path_list.c_str(), F_OK) != 0;
    if (is_list) {
      paths.clear();
      for (const std::string_view each : base::split(path_list, ":")) {
        paths.emplace_back(each);
      }
    }
    for (const std::string& path : paths) {
      const auto text = base::read_small_file(path, max_bytes);
      if (text && is_list && base::trim(*text).empty()) {
        continue;
      }
      if (text) {
        files_.push_back(std::make_unique<kubeconfig>(path, *text));
      } else if (!is_list || errno != ENOENT) {
        base::throw_errno(errno, operation, path, "open");
      }
    }
    if (files_.empty()) {
      base::throw_errno(ENOENT, operation, path_list, "open");
    }
  }

  server_access access(const std::string& context_name) {
    std::string name = context_name;
    for (const auto& file : files_) {
      name = name.empty() ? file->text(file->root(), "current-context") : name;
    }
    if (name.empty()) {
      fail("it has no current-context", "choose one with \"kubectl config use-context\"");
    }
    const found_node context = named("contexts", "context", name);
    const found_node cluster =
        named("clusters", "cluster", context.in->text(*context.node, "cluster"));
    server_access result;
    cluster.in->read_cluster(*cluster.node, result);
    const std::string user = context.in->text(*context.node, "user");
    if (!user.empty()) {
      const found_node found = named("users", "user", user);
      found.in->read_user(*found.node, user, result);
    }
    for (const auto& file : files_) {
      file->check_problems();
    }
    return result;
  }

 private:
  struct found_node {
    kubeconfig* in;
    const yaml::node* node;
  };

  [[noreturn]] void fail(std::string_view cause, std::string_view next_step = {}) const {
    throw error(errc::invalid_argument, operation, paths_, cause, next_step);
  }

  found_node named(std::string_view list, std::string_view member, const std::string& name) {
    for (const auto& file : files_) {
      if (const yaml::node* node = file->named(list, member, name)) {
        return {file.get(), node};
      }
    }
    fail(fmt::format("it has no {} {}", member, base::in_quotes(name)));
  }

  std::string paths_;
  std::vector<std::unique_ptr<kubeconfig>> files_;
};

}  // namespace

server_access kubeconfig_access(const std::string& path, const std::string& context) {
  return kubeconfigs(path).access(context);
}

}  // namespace gpushm::api_client
