// SPDX-License-Identifier: Apache-2.0
// Finding the API server: a pod's environment, and kubeconfigs.

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kubernetes/api_client/base64.hpp"
#include "tests/kubelet/rest/world.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm::api_client::base64_decoded;
using gpushm::api_client::in_cluster_access;
using gpushm::api_client::kubeconfig_access;
using gpushm::api_client::server_access;

class rest_access : public ::testing::Test {
 protected:
  ~rest_access() override {
    ::unsetenv("KUBERNETES_SERVICE_HOST");
    ::unsetenv("KUBERNETES_SERVICE_PORT");
  }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name) << text;
    return directory_ / name;
  }
  [[nodiscard]] std::string rejection(const std::string& text,
                                      const std::string& context = {}) const {
    const std::string file = write("config", text);
    const std::string failure = failure_of([&] { (void)kubeconfig_access(file, context); });
    const std::string start = "read kubeconfig \"" + file + "\": ";
    EXPECT_THAT(failure, ::testing::StartsWith(start));
    return failure.substr(std::min(start.size(), failure.size()));
  }

  gpushm_testing::temp_dir directory_;
};

TEST_F(rest_access, pod_environment_gives_access) {
  ::unsetenv("KUBERNETES_SERVICE_HOST");
  EXPECT_EQ(failure_of([] { (void)in_cluster_access(); }),
            "find the API server: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: "
            "not running in a pod"
            " (use a kubeconfig)");
  ::setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1);
  ::setenv("KUBERNETES_SERVICE_PORT", "443", 1);
  EXPECT_EQ(failure_of([this] { (void)in_cluster_access(directory_.path()); }),
            "find the API server: there is no " + directory_ / "token" +
                " (mount the service account's token (automountServiceAccountToken))");
  // Root may read every file, but no one can open a link to itself.
  std::filesystem::create_symlink("token", directory_ / "token");
  EXPECT_EQ(failure_of([this] { (void)in_cluster_access(directory_.path()); }),
            "find the API server: cannot read " + directory_ / "token" +
                ": Too many levels of symbolic links (ELOOP) (check the file and its permissions)");
  std::filesystem::remove(directory_ / "token");
  const std::string token = write("token", "t");
  const std::string authority = write("ca.crt", "c");
  const server_access six = in_cluster_access(directory_.path());
  EXPECT_EQ(six.url, "https://[fd00::1]:443");
  EXPECT_EQ(six.token_file, token);
  EXPECT_EQ(six.authority_file, authority);
  ::setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1);
  EXPECT_EQ(in_cluster_access(directory_.path()).url, "https://10.0.0.1:443");
}

constexpr const char* config = R"(
apiVersion: v1
kind: Config
current-context: main
contexts:
- {name: main, context: {cluster: c1, user: u1, namespace: x}}
- name: other
  context: {cluster: c2, user: u2}
clusters:
- name: c1
  cluster:
    server: https://10.0.0.1:6443
    certificate-authority: pki/ca.crt
    tls-server-name: kubernetes
    proxy-url: http://proxy:3128
- name: c2
  cluster:
    server: https://[fd00::1]:6443/prefix
    certificate-authority-data: aGVs bG8=
    insecure-skip-tls-verify: true
users:
- name: u1
  user: {tokenFile: /abs/token}
- name: u2
  user:
    client-certificate-data: Y2VydA==
    client-key: keys/k.pem
    token: secret
)";

TEST_F(rest_access, kubeconfig_is_read) {
  const std::string file = write("config", config);
  const server_access main = kubeconfig_access(file);
  EXPECT_EQ(main.url, "https://10.0.0.1:6443");
  EXPECT_EQ(main.authority_file, directory_ / "pki/ca.crt");
  EXPECT_EQ(main.server_name, "kubernetes");
  EXPECT_EQ(main.proxy_url, "http://proxy:3128");
  EXPECT_EQ(main.token_file, "/abs/token");
  EXPECT_TRUE(main.verify);
  const server_access other = kubeconfig_access(file, "other");
  EXPECT_EQ(other.url, "https://[fd00::1]:6443/prefix");
  EXPECT_EQ(other.authority_pem, "hello");
  EXPECT_FALSE(other.verify);
  EXPECT_EQ(other.certificate_pem, "cert");
  EXPECT_EQ(other.key_file, directory_ / "keys/k.pem");
  EXPECT_EQ(other.token, "secret");
}

TEST_F(rest_access, kubeconfigs_merge_as_in_kubectl) {
  std::filesystem::create_directories(directory_ / "one");
  std::filesystem::create_directories(directory_ / "two");
  const std::string first = write("one/config",
                                  R"(
contexts: [{name: main, context: {cluster: c1, user: u1}}]
clusters: [{name: c1, cluster: {server: 'https://one', certificate-authority: ca.crt}}]
)");
  const std::string second = write("two/config",
                                   R"(
current-context: main
contexts: [{name: main, context: {cluster: other, user: other}}]
clusters: [{name: c1, cluster: {server: 'https://two'}}]
users: [{name: u1, user: {tokenFile: token}}]
)");
  const std::string missing = directory_ / "not-there";
  // The first definition of an entry applies; paths are relative to their file; missing files are
  // ignored.
  const server_access access = kubeconfig_access(missing + "::" + first + ":" + second + ":");
  EXPECT_EQ(access.url, "https://one");
  EXPECT_EQ(access.authority_file, directory_ / "one/ca.crt");
  EXPECT_EQ(access.token_file, directory_ / "two/token");
  EXPECT_EQ(failure_of([&] { (void)kubeconfig_access(second + ":" + first); }),
            "read kubeconfig \"" + second + ":" + first + "\": it has no cluster \"other\"");
  EXPECT_EQ(failure_of([&] { (void)kubeconfig_access(missing + ":" + missing + "2"); }),
            "read kubeconfig \"" + missing + ":" + missing +
                "2\": open: No such file or directory (ENOENT) (check the path)");
  EXPECT_EQ(failure_of([&] {
              (void)kubeconfig_access(first + ":" + write("wrong", "a: [1"));
            }).find("read kubeconfig \"" + (directory_ / "wrong") + "\": line 1"),
            0U);
  // An existing file may have a colon in its name.
  const std::string with_colon = write("a:b", config);
  EXPECT_EQ(kubeconfig_access(with_colon).url, "https://10.0.0.1:6443");
}

TEST_F(rest_access, unusable_kubeconfig_is_reported) {
  EXPECT_EQ(rejection(""), "it is empty");
  EXPECT_EQ(rejection("a: [1"),
            "line 1: not valid YAML or JSON: did not find expected ',' or ']' while parsing "
            "a flow sequence");
  EXPECT_EQ(rejection("clusters: []"),
            "it has no current-context (choose one with \"kubectl config use-context\")");
  EXPECT_EQ(rejection(config, "third"), "it has no context \"third\"");
  EXPECT_EQ(rejection("current-context: a\ncontexts: 7"),
            "line 2: contexts must be a list, not a number (\"7\")");
  EXPECT_EQ(rejection("current-context: a\ncontexts: [{name: a, context: {cluster: b}}]"),
            "it has no cluster \"b\"");
  const auto with = [this](const std::string& cluster, const std::string& user) {
    return rejection(
        "current-context: a\ncontexts: [{name: a, context: {cluster: b, user: u}}]\n"
        "clusters: [{name: b, cluster: {" +
        cluster + "}}]\nusers: [{name: u, user: {" + user + "}}]\n");
  };
  EXPECT_EQ(with("server: 'ftp://x'", "token: t"),
            "server must be an http or https URL, not \"ftp://x\"");
  EXPECT_EQ(with("server: 'https://x', certificate-authority-data: '%'", "token: t"),
            "certificate-authority-data is not base64");
  EXPECT_EQ(with("server: 'https://x'", "exec: {command: aws}"),
            "user \"u\" authenticates with exec, but credential plugins are not supported (use a "
            "user with a "
            "token or a client certificate, as of a service account)");
  EXPECT_EQ(
      with("server: 'https://x'", "username: admin, password: p"),
      "user \"u\" has a password, which API servers have not accepted since Kubernetes 1.19 (use "
      "a user with a token or a client certificate)");
  EXPECT_EQ(with("server: 'https://x'", "client-key: k"),
            "user \"u\" has a client key but no certificate");
  EXPECT_EQ(failure_of([] { (void)kubeconfig_access("/nowhere/config"); }),
            "read kubeconfig \"/nowhere/config\": open: No such file or directory (ENOENT) (check "
            "the path)");
}

TEST(rest_base64, is_decoded_strictly) {
  EXPECT_EQ(base64_decoded(""), "");
  EXPECT_EQ(base64_decoded("Zg=="), "f");
  EXPECT_EQ(base64_decoded("Zm8="), "fo");
  EXPECT_EQ(base64_decoded("Zm9v\nYmFy\n"), "foobar");
  EXPECT_EQ(base64_decoded("/+8="), "\xff\xef");
  for (const char* wrong : {"Z", "Zg", "Zg=", "Zg===", "Z=g=", "Zm9v=", "Zm_v", "===="}) {
    EXPECT_FALSE(base64_decoded(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace gpushm_tests
