// SPDX-License-Identifier: Apache-2.0
// Requests to the fake API server: replies, sent requests, and error messages.

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <mutex>
#include <thread>

#include "tests/kubelet/rest/world.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm::errc;
using gpushm::api_client::api_error;
using gpushm::api_client::client;
using gpushm::api_client::client_options;
using gpushm::testing::fake_kube_api;
using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class rest_client : public ::testing::Test {
 protected:
  [[nodiscard]] static client_options quick() {
    client_options options;
    options.request_timeout = milliseconds(5'000);
    return options;
  }
  /// The error of a GET to which the server replies with a Status.
  [[nodiscard]] std::string error_of_get(int status,
                                         const std::string& reason,
                                         const std::string& message,
                                         int retry_after_seconds = 0) {
    server_.fail({.status = status,
                  .reason = reason,
                  .message = message,
                  .retry_after_seconds = retry_after_seconds});
    return failure_of([&] { (void)client_.get(std::string(nodes) + "/n1"); });
  }

  fake_kube_api server_;
  client client_{{.url = server_.url()}, quick()};
};

TEST_F(rest_client, object_is_created_replaced_and_removed) {
  const json created = client_.create(slices, slice("s1"));
  EXPECT_EQ(created.at("metadata").at("generation"), 1);
  const std::string path = std::string(slices) + "/s1";
  EXPECT_EQ(client_.get(path), created);

  json changed = created;
  changed["spec"]["pool"]["generation"] = 2;
  const json replaced = client_.replace(path, changed);
  EXPECT_EQ(replaced.at("metadata").at("generation"), 2);
  EXPECT_NE(replaced.at("metadata").at("resourceVersion"),
            created.at("metadata").at("resourceVersion"));

  client_.remove(path, created.at("metadata").at("uid"));
  EXPECT_FALSE(server_.find(path));
}

TEST_F(rest_client, replace_with_old_version_conflicts) {
  const json first = client_.create(slices, slice("s1"));
  const std::string path = std::string(slices) + "/s1";
  json second = first;
  second["spec"]["pool"]["generation"] = 2;
  client_.replace(path, second);
  json late = first;
  late["spec"]["pool"]["generation"] = 3;
  try {
    client_.replace(path, late);
    FAIL() << "replaced";
  } catch (const api_error& failure) {
    EXPECT_TRUE(failure.conflict());
    EXPECT_EQ(failure.code(), errc::gone_or_replaced);
    EXPECT_EQ(failure.reason(), "Conflict");
    EXPECT_STREQ(
        failure.what(),
        "update \"/apis/resource.k8s.io/v1/resourceslices/s1\": the API server replied with "
        "409 Conflict: Operation cannot be fulfilled on resourceslices.resource.k8s.io "
        "\"s1\": the object has been modified; please apply your changes to the latest "
        "version and try again (read the object again and repeat the change)");
  }
  EXPECT_EQ(server_.find(path)->at("spec").at("pool").at("generation"), 2);
}

TEST_F(rest_client, remove_checks_uid) {
  client_.create(slices, slice("s1"));
  const std::string path = std::string(slices) + "/s1";
  EXPECT_THROW(client_.remove(path, "another"), api_error);
  EXPECT_TRUE(server_.find(path));
  client_.remove(path);
  EXPECT_FALSE(server_.find(path));
  EXPECT_EQ(
      failure_of([&] { client_.remove(path); }),
      "delete \"/apis/resource.k8s.io/v1/resourceslices/s1\": the API server replied with 404 "
      "NotFound: resourceslices.resource.k8s.io \"s1\" not found");
}

TEST_F(rest_client, missing_object_differs_from_unserved_version) {
  const auto error_for = [&](const std::string& path) {
    try {
      (void)client_.get(path);
    } catch (const api_error& failure) {
      return failure;
    }
    throw std::logic_error("found");
  };
  const std::string path = std::string(slices) + "/s1";
  EXPECT_TRUE(error_for(path).object_is_missing("s1"));
  EXPECT_FALSE(error_for(path).object_is_missing("s2"));
  EXPECT_FALSE(error_for(path).object_is_missing(""));
  server_.set_resource_versions({"v1beta1"});
  EXPECT_TRUE(error_for(path).not_found());
  EXPECT_FALSE(error_for(path).object_is_missing("s1"));
  server_.fail({.status = 404,
                .reason = "NotFound",
                .message = "the server could not find the requested resource"});
  EXPECT_EQ(error_for(path).reason(), "NotFound");
  server_.fail({.status = 404,
                .reason = "NotFound",
                .message = "the server could not find the requested resource"});
  EXPECT_FALSE(error_for(path).object_is_missing("s1"));
}

TEST_F(rest_client, create_of_existing_object_fails) {
  client_.create(slices, slice("s1"));
  try {
    client_.create(slices, slice("s1"));
    FAIL() << "created";
  } catch (const api_error& failure) {
    EXPECT_EQ(failure.code(), errc::already_exists);
    EXPECT_STREQ(
        failure.what(),
        "create \"/apis/resource.k8s.io/v1/resourceslices\": the API server replied with 409 "
        "AlreadyExists: resourceslices.resource.k8s.io \"s1\" already exists");
  }
}

TEST_F(rest_client, invalid_object_is_rejected_with_its_fields) {
  json wrong = slice("s1");
  wrong["spec"].erase("nodeName");
  EXPECT_EQ(failure_of([&] { client_.create(slices, wrong); }),
            "create \"/apis/resource.k8s.io/v1/resourceslices\": the API server replied with 422 "
            "Invalid: ResourceSlice.resource.k8s.io \"s1\" is invalid: spec: Required value: "
            "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is "
            "required (correct the named fields)");
  json unsendable = slice("s1");
  unsendable["spec"]["driver"] = "\xff";
  EXPECT_EQ(failure_of([&] { client_.create(slices, unsendable); }),
            "create \"/apis/resource.k8s.io/v1/resourceslices\": the object contains a string that "
            "is not UTF-8"
            " (correct the text)");
  EXPECT_THAT(server_.items(slices), IsEmpty());
}

TEST_F(rest_client, each_error_has_a_next_step) {
  EXPECT_EQ(error_of_get(401, "Unauthorized", "Unauthorized"),
            "get \"/api/v1/nodes/n1\": the API server replied with 401 Unauthorized: Unauthorized "
            "(check that the token or certificate is of this cluster and has not expired)");
  EXPECT_EQ(error_of_get(403, "Forbidden", "no"),
            "get \"/api/v1/nodes/n1\": the API server replied with 403 Forbidden: no (grant it: a "
            "ClusterRole with apiGroups [\"\"], resources [\"nodes\"], verbs [\"get\"])");
  EXPECT_EQ(error_of_get(404, "NotFound", "nodes \"n1\" not found"),
            "get \"/api/v1/nodes/n1\": the API server replied with 404 NotFound: nodes \"n1\" not "
            "found");
  EXPECT_EQ(
      error_of_get(410, "Expired", "too old"),
      "get \"/api/v1/nodes/n1\": the API server replied with 410 Expired: too old (list again)");
  EXPECT_EQ(
      error_of_get(429, "TooManyRequests", "slow down", 7),
      "get \"/api/v1/nodes/n1\": the API server replied with 429 TooManyRequests: slow down; it "
      "requests a wait of 7 s (try again later)");
  EXPECT_EQ(
      error_of_get(503, "ServiceUnavailable", "starting"),
      "get \"/api/v1/nodes/n1\": the API server replied with 503 ServiceUnavailable: starting "
      "(try again later)");
  EXPECT_EQ(
      error_of_get(500, "InternalError", "etcd"),
      "get \"/api/v1/nodes/n1\": the API server replied with 500 InternalError: etcd (check the "
      "API server's log"
      ")");
  EXPECT_EQ(
      error_of_get(403, "Forbidden", "a\nb\x1b[31m"),
      "get \"/api/v1/nodes/n1\": the API server replied with 403 Forbidden: a b [31m (grant it: "
      "a ClusterRole with apiGroups [\"\"], resources [\"nodes\"], verbs [\"get\"])");
}

TEST_F(rest_client, missing_permission_is_named_per_verb) {
  const auto refuse = [this] { server_.fail({.status = 403, .reason = "Forbidden"}); };
  refuse();
  EXPECT_EQ(
      failure_of([&] {
        client_.replace("/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c/status", {});
      }),
      "update \"/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c/status\": the API server "
      "replied with 403 Forbidden (grant it: a Role or ClusterRole with apiGroups "
      "[\"resource.k8s.io\"], resources [\"resourceclaims/status\"], verbs [\"update\"] bound in "
      "namespace a)");
  refuse();
  EXPECT_EQ(failure_of([&] { (void)client_.list(slices); }),
            "list \"/apis/resource.k8s.io/v1/resourceslices\": the API server replied with 403 "
            "Forbidden (grant it: a ClusterRole with apiGroups [\"resource.k8s.io\"], resources "
            "[\"resourceslices\"], verbs [\"list\"])");
  refuse();
  EXPECT_EQ(failure_of([&] { client_.watch(slices, "1", {}, [](const auto&) {}, {}); }),
            "watch \"/apis/resource.k8s.io/v1/resourceslices\": the API server replied with 403 "
            "Forbidden (grant it: a ClusterRole with apiGroups [\"resource.k8s.io\"], resources "
            "[\"resourceslices\"], verbs [\"watch\"])");
}

TEST_F(rest_client, retry_after_is_reported) {
  server_.fail({.status = 429, .reason = "TooManyRequests", .retry_after_seconds = 3});
  try {
    (void)client_.get(nodes);
    FAIL() << "replied";
  } catch (const api_error& failure) {
    EXPECT_EQ(failure.retry_after(), std::chrono::seconds(3));
    EXPECT_EQ(failure.code(), errc::too_many_requests);
  }
}

TEST_F(rest_client, list_collects_all_pages) {
  fake_kube_api paged({.longest_page = 7});
  const client requester({.url = paged.url()}, quick());
  std::vector<std::string> expected;
  for (int i = 100; i < 150; ++i) {
    expected.push_back("s" + std::to_string(i));
    paged.put(std::string(slices) + "/" + expected.back(), slice(expected.back()));
  }
  const json all = requester.list(slices);
  EXPECT_EQ(names_of(all.at("items")), expected);
  EXPECT_THAT(paged.requests(), SizeIs(8));
  EXPECT_EQ(all.at("metadata").value("continue", ""), "");
  EXPECT_EQ(all.at("metadata").at("resourceVersion"), "150");
}

TEST_F(rest_client, expired_list_is_requested_in_one_page) {
  fake_kube_api paged({.longest_page = 2});
  const client requester({.url = paged.url()}, quick());
  for (const char* name : {"a", "b", "c"}) {
    paged.put(std::string(slices) + "/" + name, slice(name));
  }
  paged.fail({.query_part = "continue=", .status = 410, .reason = "Expired"});
  EXPECT_THAT(names_of(requester.list(slices).at("items")), ElementsAre("a", "b", "c"));
  EXPECT_THAT(paged.requests(), SizeIs(3));
}

TEST_F(rest_client, field_selector_reaches_the_server) {
  server_.put(std::string(slices) + "/a", slice("a", "n1"));
  server_.put(std::string(slices) + "/b", slice("b", "n2"));
  server_.put(std::string(slices) + "/c", slice("c", "n1", "gpu.nvidia.com"));
  const json found = client_.list(slices, "spec.nodeName=n1,spec.driver=gpushm.dev");
  EXPECT_THAT(names_of(found.at("items")), ElementsAre("a"));
}

TEST_F(rest_client, group_versions_start_with_the_preferred_one) {
  EXPECT_THAT(client_.versions_of("resource.k8s.io"), ElementsAre("v1", "v1beta2", "v1beta1"));
  server_.set_resource_versions({"v1beta1", "v1"});
  EXPECT_THAT(client_.versions_of("resource.k8s.io"), ElementsAre("v1beta1", "v1"));
  server_.set_resource_versions({});
  EXPECT_THAT(client_.versions_of("resource.k8s.io"), IsEmpty());
  EXPECT_THAT(client_.versions_of(""), ElementsAre("v1"));
}

TEST_F(rest_client, requests_share_a_connection) {
  for (int i = 0; i < 20; ++i) {
    (void)client_.list(nodes);
  }
  EXPECT_EQ(server_.connections(), 1U);
}

TEST_F(rest_client, closed_kept_connection_is_retried) {
  (void)client_.list(nodes);
  server_.stop();
  server_.start();
  EXPECT_THAT(client_.list(nodes).at("items"), IsEmpty());
}

TEST_F(rest_client, concurrent_requests_leak_nothing) {
  (void)client_.list(nodes);
  const auto before = gpushm_testing::total(gpushm_testing::count_descriptors(::getpid()));
  {
    const client shared({.url = server_.url()}, quick());
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 8; ++thread) {
      threads.emplace_back([&shared, thread] {
        for (int i = 0; i < 10; ++i) {
          const std::string name = "s" + std::to_string(thread) + "-" + std::to_string(i);
          shared.create(slices, slice(name));
          EXPECT_EQ(name_of(shared.get(std::string(slices) + "/" + name)), name);
        }
      });
    }
  }
  EXPECT_THAT(server_.items(slices), SizeIs(80));
  // The server closes its ends after it has detected that the connections have ended.
  EXPECT_TRUE(gpushm_testing::eventually(
      [&] {
        return server_.open_connections() <= 1 &&
               gpushm_testing::total(gpushm_testing::count_descriptors(::getpid())) <= before + 9;
      },
      std::chrono::seconds(10)))
      << gpushm_testing::to_text(gpushm_testing::count_descriptors(::getpid()));
}

TEST_F(rest_client, user_agent_is_sent) {
  client_options options = quick();
  options.user_agent = "gpushmd/1.2";
  (void)client({.url = server_.url() + "/"}, options).list(nodes);
  EXPECT_EQ(server_.requests().back().user_agent, "gpushmd/1.2");
  EXPECT_EQ(server_.requests().back().path, nodes);
}

TEST_F(rest_client, slow_server_times_out) {
  client_options options;
  options.request_timeout = milliseconds(200);
  const client impatient({.url = server_.url()}, options);
  server_.fail({.delay = milliseconds(5'000)});
  EXPECT_EQ(
      failure_of([&] { (void)impatient.list(nodes); }),
      "list \"/api/v1/nodes\": no reply within 0.2 s (check whether the API server is overloaded"
      ")");
}

TEST_F(rest_client, unreachable_server_is_named) {
  server_.stop();
  try {
    (void)client_.list(nodes);
    FAIL() << "replied";
  } catch (const gpushm::error& failure) {
    EXPECT_EQ(failure.code(), errc::peer_unreachable);
    EXPECT_EQ(failure.what(),
              "list \"/api/v1/nodes\": cannot connect to " + server_.url() +
                  ": Connection refused (ECONNREFUSED) (check that the API server runs and that "
                  "its address is correct"
                  ")");
  }
}

TEST_F(rest_client, lost_reply_is_reported_and_change_is_kept) {
  (void)client_.list(nodes);
  server_.fail({.method = "POST", .lose_answer = true});
  // On a kept connection libcurl cannot detect that the server had accepted the request, and sends
  // it again.
  const std::string failure = failure_of([&] { client_.create(slices, slice("s1")); });
  EXPECT_THAT(
      failure,
      ::testing::AnyOf(
          "create \"/apis/resource.k8s.io/v1/resourceslices\": the API server "
          "replied with 409 AlreadyExists: resourceslices.resource.k8s.io \"s1\" "
          "already exists",
          "create \"/apis/resource.k8s.io/v1/resourceslices\": the connection "
          "to " +
              server_.url() +
              " was lost before the response was complete (try again; check the API server's log"
              ")"));
  EXPECT_TRUE(server_.find(std::string(slices) + "/s1"));
}

TEST_F(rest_client, environment_proxy_is_ignored) {
  ::setenv("http_proxy", "http://127.0.0.1:1", 1);
  ::setenv("all_proxy", "http://127.0.0.1:1", 1);
  EXPECT_EQ(failure_of([&] { (void)client({.url = server_.url()}, quick()).list(nodes); }),
            "no error");
  ::unsetenv("http_proxy");
  ::unsetenv("all_proxy");
  EXPECT_NE(failure_of([&] {
              (void)client({.url = server_.url(), .proxy_url = "http://127.0.0.1:1"}, quick())
                  .list(nodes);
            }),
            "no error");
}

TEST_F(rest_client, ipv6_is_reached) {
  std::optional<fake_kube_api> six;
  try {
    six.emplace(gpushm::testing::fake_kube_options{.address = "::1"});
  } catch (const std::runtime_error& failure) {
    GTEST_SKIP() << "no IPv6: " << failure.what();
  }
  EXPECT_EQ(failure_of([&] { (void)client({.url = six->url()}, quick()).list(nodes); }),
            "no error");
}

TEST_F(rest_client, invalid_url_is_rejected_immediately) {
  EXPECT_EQ(failure_of([] { client({.url = "127.0.0.1:6443"}); }),
            "connect to the API server \"127.0.0.1:6443\": not an http or https URL (write "
            "https://HOST:PORT)");
}

// ---- tokens ----

class rest_token : public rest_client {
 protected:
  void write_token(const std::string& text) const {
    // Like the kubelet: another file replaces the token file.
    std::ofstream(directory_ / "new") << text;
    ASSERT_EQ(::rename((directory_ / "new").c_str(), file_.c_str()), 0);
  }

  gpushm_testing::temp_dir directory_;
  std::string file_ = directory_ / "token";
};

TEST_F(rest_token, rotated_token_is_used_for_next_request) {
  write_token("one\n");
  server_.set_tokens({"one"});
  const client requester({.url = server_.url(), .token_file = file_}, quick());
  (void)requester.list(nodes);
  EXPECT_EQ(server_.requests().back().authorization, "Bearer one");
  write_token("two");
  server_.set_tokens({"two"});
  server_.clear_requests();
  (void)requester.list(nodes);
  EXPECT_THAT(server_.requests(), SizeIs(1));
}

TEST_F(rest_token, token_replaced_after_401_is_retried_once) {
  write_token("one");
  server_.set_tokens({"two"});
  const client requester({.url = server_.url(), .token_file = file_}, quick());
  server_.fail({.delay = milliseconds(500)});
  std::jthread rotates([this] {
    EXPECT_TRUE(
        server_.wait_for_request([](const auto&) { return true; }, std::chrono::seconds(10)));
    write_token("two");
  });
  EXPECT_THAT(requester.list(nodes).at("items"), IsEmpty());
  const auto requests = server_.requests();
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_EQ(requests[0].status, 401);
  EXPECT_EQ(requests[1].authorization, "Bearer two");
}

TEST_F(rest_token, rejected_token_is_not_retried) {
  write_token("one");
  server_.set_tokens({"two"});
  const client requester({.url = server_.url(), .token_file = file_}, quick());
  EXPECT_EQ(
      failure_of([&] { (void)requester.list(nodes); }),
      "list \"/api/v1/nodes\": the API server replied with 401 Unauthorized: Unauthorized (check "
      "that the token or certificate is of this cluster and has not expired)");
  EXPECT_THAT(server_.requests(), SizeIs(1));
}

TEST_F(rest_token, missing_token_file_keeps_last_token) {
  write_token("one");
  server_.set_tokens({"one"});
  const client requester({.url = server_.url(), .token_file = file_}, quick());
  (void)requester.list(nodes);
  ASSERT_EQ(::unlink(file_.c_str()), 0);
  (void)requester.list(nodes);
  EXPECT_EQ(server_.requests().back().authorization, "Bearer one");
}

TEST_F(rest_token, invalid_token_is_reported) {
  const auto list_failure = [this] {
    return failure_of(
        [this] { (void)client({.url = server_.url(), .token_file = file_}, quick()).list(nodes); });
  };
  EXPECT_EQ(
      list_failure(),
      "read token \"" + file_ + "\": open: No such file or directory (ENOENT) (check the path)");
  write_token(" \n");
  EXPECT_EQ(list_failure(),
            "read token \"" + file_ + "\": it is empty (mount a service account token there)");
  write_token("a\nEvil: header");
  EXPECT_EQ(list_failure(),
            "read token \"" + file_ +
                "\": it contains characters that are not allowed in a token (mount a service "
                "account token "
                "there)");
  EXPECT_THAT(server_.requests(), IsEmpty());
}

// ---- counters ----

class recording_observer : public gpushm::base::operation_observer {
 public:
  void finished(std::string_view service,
                std::string_view operation,
                std::string_view outcome,
                std::chrono::nanoseconds took) noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_GT(took.count(), 0);
    seen.push_back(std::string(service).append(" ").append(operation).append(" ").append(outcome));
  }
  std::vector<std::string> seen;

 private:
  std::mutex mutex_;
};

TEST_F(rest_client, each_operation_is_counted_with_its_outcome) {
  recording_observer observer;
  client_options options = quick();
  options.observer = &observer;
  const client requester({.url = server_.url()}, options);
  requester.create(slices, slice("s"));
  (void)requester.get(std::string(slices) + "/s");
  (void)requester.list(slices);
  requester.replace(std::string(slices) + "/s", slice("s"));
  requester.remove(std::string(slices) + "/s");
  EXPECT_THROW((void)requester.get(std::string(slices) + "/s"), api_error);
  EXPECT_THAT(observer.seen,
              ElementsAre("kubernetes_api CREATE ok",
                          "kubernetes_api GET ok",
                          "kubernetes_api LIST ok",
                          "kubernetes_api UPDATE ok",
                          "kubernetes_api DELETE ok",
                          "kubernetes_api GET gone_or_replaced"));
}

}  // namespace
}  // namespace gpushm_tests
