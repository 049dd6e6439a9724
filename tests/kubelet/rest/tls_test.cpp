// SPDX-License-Identifier: Apache-2.0
// TLS: trusted authorities and client certificates.

#include <gmock/gmock.h>

#include <fstream>

#include "tests/kubelet/rest/world.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm::api_client::client;
using gpushm::api_client::server_access;
using gpushm::testing::fake_kube_api;
using gpushm::testing::fake_kube_options;

class rest_tls : public ::testing::Test {
 protected:
  [[nodiscard]] static std::string list_result(const server_access& access) {
    return failure_of([&] { (void)client(access).list(nodes); });
  }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name) << text;
    return directory_ / name;
  }
  [[nodiscard]] static std::string list_failed(const std::string& rest) {
    return std::string("list \"/api/v1/nodes\": ").append(rest);
  }

  gpushm_testing::temp_dir directory_;
  fake_kube_api server_{{.tls = true}};
};

TEST_F(rest_tls, authority_is_read_from_file_or_memory) {
  const std::string file = write("ca.crt", server_.authority_pem());
  EXPECT_EQ(list_result({.url = server_.url(), .authority_file = file}), "no error");
  EXPECT_EQ(list_result({.url = server_.url(), .authority_pem = server_.authority_pem()}),
            "no error");
}

TEST_F(rest_tls, certificate_of_another_authority_is_rejected) {
  const fake_kube_api other({.tls = true});
  const std::string expected = list_failed(
      "the certificate of " + server_.url() +
      " is not signed by a trusted authority (set the authority of this cluster (ca.crt)"
      ")");
  EXPECT_EQ(list_result({.url = server_.url(), .authority_pem = other.authority_pem()}), expected);
  EXPECT_EQ(
      list_result({.url = server_.url(), .authority_file = write("ca.crt", other.authority_pem())}),
      expected);
  // The system's authorities do not include it either.
  EXPECT_EQ(list_result({.url = server_.url()}), expected);
  EXPECT_THAT(server_.requests(), ::testing::IsEmpty());
}

TEST_F(rest_tls, verification_is_skipped_only_on_request) {
  EXPECT_EQ(list_result({.url = server_.url(), .verify = false}), "no error");
}

TEST_F(rest_tls, rotated_authority_is_used_for_next_connection) {
  const fake_kube_api other({.tls = true});
  const std::string file = write("ca.crt", other.authority_pem());
  const client requester({.url = server_.url(), .authority_file = file});
  EXPECT_NE(failure_of([&] { (void)requester.list(nodes); }), "no error");
  (void)write("ca.crt", server_.authority_pem());
  EXPECT_EQ(failure_of([&] { (void)requester.list(nodes); }), "no error");
}

TEST_F(rest_tls, unusable_authority_is_reported) {
  const std::string expected = list_failed(
      "the authority file is missing or contains no certificate (set the authority of this cluster "
      "(ca.crt)"
      ")");
  EXPECT_EQ(list_result({.url = server_.url(), .authority_file = directory_ / "missing"}),
            expected);
  EXPECT_EQ(list_result({.url = server_.url(), .authority_file = write("ca.crt", "nothing")}),
            expected);
}

TEST_F(rest_tls, certificate_for_another_name_needs_server_name) {
  const fake_kube_api named({.tls = true, .certificate_names = {"kubernetes.default.svc"}});
  EXPECT_EQ(
      list_result({.url = named.url(), .authority_pem = named.authority_pem()}),
      list_failed(
          "the certificate of " + named.url() +
          " is for another name (use one of its names, or set the expected name (tls-server-name)"
          ")"));
  EXPECT_EQ(list_result({.url = named.url(),
                         .authority_pem = named.authority_pem(),
                         .server_name = "kubernetes.default.svc"}),
            "no error");
  EXPECT_NE(list_result({.url = named.url(),
                         .authority_pem = named.authority_pem(),
                         .server_name = "kubernetes.other.svc"}),
            "no error");
}

TEST_F(rest_tls, client_certificate_is_sent_from_files_or_memory) {
  const fake_kube_api strict({.tls = true, .client_certificates = true});
  const auto identity = strict.make_client_identity("system:node:n1");
  EXPECT_EQ(list_result({.url = strict.url(),
                         .authority_pem = strict.authority_pem(),
                         .certificate_pem = identity.certificate_pem,
                         .key_pem = identity.key_pem}),
            "no error");
  EXPECT_EQ(list_result({.url = strict.url(),
                         .authority_pem = strict.authority_pem(),
                         .certificate_file = write("tls.crt", identity.certificate_pem),
                         .key_file = write("tls.key", identity.key_pem)}),
            "no error");
  for (const auto& request : strict.requests()) {
    EXPECT_EQ(request.client_name, "system:node:n1");
  }
  EXPECT_NE(list_result({.url = strict.url(), .authority_pem = strict.authority_pem()}),
            "no error");
  EXPECT_EQ(list_result({.url = strict.url(),
                         .authority_pem = strict.authority_pem(),
                         .certificate_pem = "nothing",
                         .key_pem = "nothing"}),
            list_failed("the client certificate or its key cannot be used (check that both are PEM "
                        "and belong together)"));
}

TEST_F(rest_tls, server_without_tls_is_reported) {
  const fake_kube_api open;
  const std::string failure =
      list_result({.url = "https://127.0.0.1:" + std::to_string(open.port()), .verify = false});
  EXPECT_THAT(failure,
              ::testing::StartsWith(list_failed(
                  "no TLS with https://127.0.0.1:" + std::to_string(open.port()) + ": ")));
  EXPECT_THAT(failure, ::testing::EndsWith("(check that the port is the API server's)"));
}

}  // namespace
}  // namespace gpushm_tests
