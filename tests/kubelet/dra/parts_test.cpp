// SPDX-License-Identifier: Apache-2.0
// Parts of the DRA driver that use neither files nor servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "containers/cdi/document/name.hpp"
#include "containers/cdi/document/parse.hpp"
#include "containers/cdi/document/write.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/dra/claims/allocation.hpp"
#include "kubernetes/dra/claims/checkpoint.hpp"
#include "kubernetes/dra/claims/claim_document.hpp"
#include "kubernetes/dra/claims/rate_limiter.hpp"
#include "kubernetes/dra/driver/slice.hpp"
#include "tests/kubelet/dra/world.hpp"

namespace gpushm_testing {
namespace {

using gpushm::errc;
using gpushm::error;
using gpushm::dra::checkpoint;
using gpushm::dra::claim_use;
using gpushm::dra::difference;
using gpushm::dra::prepared_claim;
using testing::ElementsAre;

const gpushm::dra::result_owner owner{test_driver, test_node};

template <typename Call>
error failure_of(Call&& call) {
  try {
    call();
  } catch (const error& failure) {
    return failure;
  }
  ADD_FAILURE() << "nothing was thrown";
  return error(errc::system_error, "", "", "nothing was thrown");
}

TEST(dra_allocation, uses_only_results_of_its_driver_and_pool) {
  const claim_reference claim = claim_number(1);
  const prepared_claim prepared = read_allocation(
      claim_object(claim,
                   {{.request = "gpu", .driver = "gpu.nvidia.com", .device = "gpu-0"},
                    {.request = "share", .device = "share-7"},
                    {.request = "elsewhere", .pool = "node-b", .device = "share-1"}}),
      claim,
      owner);
  EXPECT_EQ(prepared.domain, "claim-" + uid_of(1));
  ASSERT_EQ(prepared.devices.size(), 1U);
  EXPECT_THAT(prepared.devices[0].requests, ElementsAre("share"));
  EXPECT_EQ(prepared.devices[0].pool, "node-a");
  EXPECT_EQ(prepared.devices[0].device, "share-7");
  EXPECT_THAT(prepared.devices[0].cdi_devices,
              ElementsAre("gpushm.dev/claim=claim-" + uid_of(1) + "-share-7"));
  EXPECT_EQ(prepared.devices[0].share_id, std::nullopt);
}

TEST(dra_allocation, requests_share_one_domain_and_subrequests_are_merged) {
  const claim_reference claim = claim_number(2);
  const prepared_claim prepared =
      read_allocation(claim_object(claim,
                                   {{.request = "first", .device = "share-0"},
                                    {.request = "second/a", .device = "share-1", .share_id = "s1"},
                                    {.request = "third", .device = "share-0"}}),
                      claim,
                      owner);
  EXPECT_EQ(prepared.domain, "claim-" + uid_of(2));
  ASSERT_EQ(prepared.devices.size(), 2U);
  EXPECT_THAT(prepared.devices[0].requests, ElementsAre("first", "third"));
  EXPECT_THAT(prepared.devices[1].requests, ElementsAre("second"));
  EXPECT_EQ(prepared.devices[1].share_id, "s1");
}

TEST(dra_allocation, replaced_claim_is_detected_by_uid) {
  const claim_reference claim = claim_number(1);
  json object = claim_object(claim);
  object["metadata"]["uid"] = uid_of(9);
  const error failure = failure_of([&] { (void)read_allocation(object, claim, owner); });
  EXPECT_EQ(failure.code(), errc::gone_or_replaced);
  EXPECT_STREQ(failure.what(),
               ("prepare claim \"default/claim-1\": the kubelet requested the claim with UID " +
                uid_of(1) + ", but the claim of that name has " + uid_of(9) +
                " (it was deleted and recreated; the kubelet will request the new one)")
                   .c_str());
}

TEST(dra_allocation, missing_results_are_reported) {
  const claim_reference claim = claim_number(1);
  json object = claim_object(claim);
  object["status"].erase("allocation");
  EXPECT_STREQ(failure_of([&] { (void)read_allocation(object, claim, owner); }).what(),
               "prepare claim \"default/claim-1\": it has no allocation from driver gpushm.dev and "
               "pool node-a (check its status: kubectl get resourceclaim -o yaml)");
  EXPECT_EQ(failure_of([&] { (void)read_allocation(json::array(), claim, owner); }).code(),
            errc::protocol_error);
}

TEST(dra_allocation, is_in_use_while_allocated_regardless_of_reservation) {
  const claim_reference claim = claim_number(1);
  json object = claim_object(claim);
  EXPECT_EQ(use_of(object, claim, owner), claim_use::in_use);
  json unreserved = object;
  unreserved["status"]["reservedFor"] = json::array();
  EXPECT_EQ(use_of(unreserved, claim, owner), claim_use::in_use);
  unreserved["status"].erase("reservedFor");
  EXPECT_EQ(use_of(unreserved, claim, owner), claim_use::in_use);
  json unallocated = object;
  unallocated["status"].erase("allocation");
  EXPECT_EQ(use_of(unallocated, claim, owner), claim_use::unallocated);
  json elsewhere = object;
  elsewhere["status"]["allocation"]["devices"]["results"][0]["pool"] = "node-b";
  EXPECT_EQ(use_of(elsewhere, claim, owner), claim_use::unallocated);
  EXPECT_EQ(use_of(object, {"default", "claim-1", uid_of(9)}, owner), claim_use::gone);
  for (const json& other : {json(7), json::object(), json{{"metadata", {{"uid", 7}}}}}) {
    EXPECT_EQ(failure_of([&] { (void)use_of(other, claim, owner); }).code(), errc::protocol_error);
  }
}

TEST(dra_claim, unsafe_path_components_are_rejected) {
  EXPECT_NO_THROW(gpushm::dra::check({"kube-system", "a.b-c", uid_of(1)}));
  EXPECT_STREQ(failure_of([] {
                 gpushm::dra::check({"default", "c", "../../etc/passwd"});
               }).what(),
               "check claim \"default/c\": the UID \"../../etc/passwd\" is not valid");
  EXPECT_STREQ(failure_of([] {
                 gpushm::dra::check({"a/b", "c", "u"});
               }).what(),
               "check claim \"a/b/c\": the namespace \"a/b\" is not valid");
  EXPECT_STREQ(failure_of([] {
                 gpushm::dra::check({"a", "..", "u"});
               }).what(),
               "check claim \"a/..\": the name \"..\" is not valid");
  EXPECT_STREQ(failure_of([] {
                 gpushm::dra::check({"a", "", "u"});
               }).what(),
               "check claim \"a/\": the name \"\" is not valid");
}

TEST(dra_document, has_one_device_per_result_and_minimum_version) {
  const claim_reference claim = claim_number(1);
  const prepared_claim prepared = read_allocation(
      claim_object(claim,
                   {{.request = "a", .device = "share-0"}, {.request = "b", .device = "share-1"}}),
      claim,
      owner);
  const gpushm::cdi::document document =
      claim_document(prepared, "/run/gpushm/d/claim-" + uid_of(1));
  EXPECT_EQ(document.version, "0.3.0");
  EXPECT_EQ(document.kind, "gpushm.dev/claim");
  ASSERT_EQ(document.devices.size(), 2U);
  for (const auto& device : document.devices) {
    ASSERT_EQ(device.changes.mounts.size(), 1U);
    EXPECT_EQ(device.changes.mounts[0].host_path, "/run/gpushm/d/claim-" + uid_of(1));
    EXPECT_EQ(device.changes.mounts[0].container_path, "/run/gpushm/d/claim-" + uid_of(1));
    EXPECT_THAT(device.changes.mounts[0].options, testing::Contains("ro"));
  }
  for (const auto& device : prepared.devices) {
    EXPECT_NE(gpushm::cdi::parse_qualified_name(device.cdi_devices.at(0)), std::nullopt);
  }
}

TEST(dra_document, claims_have_distinct_names_and_directories) {
  const auto document_of = [](unsigned number) {
    const claim_reference claim = claim_number(number);
    const prepared_claim prepared = read_allocation(claim_object(claim), claim, owner);
    return claim_document(prepared, "/d/" + prepared.domain);
  };
  const auto one = document_of(1);
  const auto two = document_of(2);
  EXPECT_NE(one.devices.at(0).name, two.devices.at(0).name);
  EXPECT_NE(one.devices.at(0).changes.mounts, two.devices.at(0).changes.mounts);
}

// ---- unchanged programs ----

json parameters(bool ipc) {
  return {{"apiVersion", "gpushm.dev/v1"}, {"kind", "ShareParameters"}, {"ipc", ipc}};
}

/// An allocated claim with these configurations, in the order of the API server.
json configured_claim(const claim_reference& claim, const json& configs) {
  json object = claim_object(
      claim,
      {{.request = "plain", .device = "share-0"}, {.request = "ipc/first", .device = "share-1"}});
  object["status"]["allocation"]["devices"]["config"] = configs;
  return object;
}

json config_of(const json& given, const json& requests = json::array()) {
  return {{"source", "FromClaim"},
          {"requests", requests},
          {"opaque", {{"driver", test_driver}, {"parameters", given}}}};
}

std::vector<bool> ipc_of(const json& object, const claim_reference& claim) {
  std::vector<bool> all;
  for (const auto& device : read_allocation(object, claim, owner).devices) {
    all.push_back(device.ipc);
  }
  return all;
}

TEST(dra_parameters, ipc_applies_to_its_requests) {
  const claim_reference claim = claim_number(1);
  const auto applied = [&](const json& configs) {
    return ipc_of(configured_claim(claim, configs), claim);
  };
  EXPECT_THAT(applied(json::array()), ElementsAre(false, false));
  EXPECT_THAT(applied(json::array({config_of(parameters(true))})), ElementsAre(true, true));
  EXPECT_THAT(applied(json::array({config_of(parameters(true), json::array({"ipc"}))})),
              ElementsAre(false, true));
  EXPECT_THAT(applied(json::array({config_of(parameters(true), json::array({"ipc/first"}))})),
              ElementsAre(false, true));
  EXPECT_THAT(applied(json::array({config_of(parameters(true), json::array({"ipc/second"}))})),
              ElementsAre(false, false));
  json foreign = config_of({{"sharing", "x"}});
  foreign["opaque"]["driver"] = "gpu.nvidia.com";
  EXPECT_THAT(applied(json::array({foreign})), ElementsAre(false, false));
}

TEST(dra_parameters, claim_takes_precedence_over_class) {
  const claim_reference claim = claim_number(1);
  EXPECT_THAT(ipc_of(configured_claim(claim,
                                      {config_of(parameters(true)),
                                       config_of(parameters(false), json::array({"plain"}))}),
                     claim),
              ElementsAre(false, true));
}

TEST(dra_parameters, malformed_ones_are_reported) {
  const claim_reference claim = claim_number(1);
  const auto reason = [&](const json& given) {
    const std::string text =
        failure_of([&] {
          (void)ipc_of(configured_claim(claim, json::array({config_of(given)})), claim);
        }).what();
    const std::string begin =
        "prepare claim \"default/claim-1\": its parameters for gpushm.dev are not valid: ";
    const std::string end =
        " (write {apiVersion: gpushm.dev/v1, kind: ShareParameters, ipc: true})";
    EXPECT_THAT(text, testing::AllOf(testing::StartsWith(begin), testing::EndsWith(end)));
    return text.size() > begin.size() + end.size()
               ? text.substr(begin.size(), text.size() - begin.size() - end.size())
               : text;
  };
  EXPECT_EQ(reason("x"), "they are not an object");
  EXPECT_EQ(reason(nullptr), "they are not an object");
  json given = parameters(true);
  given["ipc"] = "true";
  EXPECT_EQ(reason(given), "ipc is neither true nor false");
  given = parameters(true);
  given["ipcs"] = true;
  EXPECT_EQ(reason(given), "unknown field \"ipcs\"");
  given = parameters(true);
  given["apiVersion"] = "gpushm.dev/v2";
  EXPECT_EQ(reason(given), "apiVersion is not gpushm.dev/v1");
  EXPECT_EQ(reason({{"ipc", true}}), "apiVersion or kind is missing");
}

TEST(dra_parameters, ipc_is_described_stored_and_needs_files) {
  const claim_reference claim = claim_number(1);
  const prepared_claim prepared = read_allocation(
      configured_claim(claim, json::array({config_of(parameters(true), json::array({"ipc"}))})),
      claim,
      owner);
  const gpushm::cdi::ipc_files files{"/k/ipc", "/k/gpushm-cdi-hook"};
  const auto document = claim_document(prepared, "/d/x", &files);
  ASSERT_EQ(document.devices.size(), 2U);
  EXPECT_EQ(document.devices[0].changes.mounts.size(), 1U);
  EXPECT_THAT(document.devices[0].changes.env, testing::IsEmpty());
  EXPECT_THAT(document.devices[0].changes.hooks, testing::IsEmpty());
  const auto& changes = document.devices[1].changes;
  ASSERT_EQ(changes.mounts.size(), 2U);
  EXPECT_EQ(changes.mounts[0].host_path, "/d/x");
  EXPECT_EQ(changes.mounts[1].host_path, "/k/ipc");
  EXPECT_EQ(changes.mounts[1].container_path, "/run/gpushm/ipc");
  EXPECT_THAT(changes.env, ElementsAre("GPUSHM_IPC_DOMAIN=claim-" + uid_of(1)));
  ASSERT_EQ(changes.hooks.size(), 1U);
  EXPECT_EQ(changes.hooks[0].path, "/k/gpushm-cdi-hook");
  EXPECT_THAT(
      changes.hooks[0].args,
      ElementsAre("gpushm-cdi-hook", "preload", "--library", "/run/gpushm/ipc/libgpushm-ipc.so"));
  checkpoint state;
  state.boot_id = "b";
  state.claims[claim.uid] = prepared;
  EXPECT_EQ(gpushm::dra::from_text(to_text(state), "f"), state);
  EXPECT_STREQ(failure_of([&] { (void)claim_document(prepared, "/d/x"); }).what(),
               "describe claim \"default/claim-1\": it has the parameter ipc, but this node's "
               "agent could not install the libraries for it (see the log of gpushmd at its start, "
               "and --ipc-source)");
}

checkpoint sample() {
  checkpoint state;
  state.boot_id = "boot-1";
  for (const unsigned number : {1U, 2U}) {
    const claim_reference claim = claim_number(number);
    state.claims[claim.uid] = read_allocation(
        claim_object(claim, {{.request = "a", .share_id = number == 2 ? "shared" : ""}}),
        claim,
        owner);
  }
  return state;
}

TEST(dra_checkpoint, round_trips) {
  EXPECT_EQ(gpushm::dra::from_text(to_text(sample()), "f"), sample());
  EXPECT_EQ(gpushm::dra::from_text(gpushm::dra::to_text(checkpoint{}), "f"), checkpoint{});
}

TEST(dra_checkpoint, format_is_stable) {
  checkpoint state;
  state.boot_id = "b";
  state.claims["u-1"] = {
      {"ns", "c", "u-1"}, "claim-u-1", {{{"r"}, "node", "share-3", {"gpushm.dev/claim=x"}, "s"}}};
  const std::string text =
      R"({"checksum":"97614ec6ae0f8023","data":{"bootID":"b","claims":{"u-1":{"devices":[{"cdiDevices":["gpushm.dev/claim=x"],"device":"share-3","pool":"node","requests":["r"],"shareID":"s"}],"domain":"claim-u-1","name":"c","namespace":"ns"}}},"version":1})"
      "\n";
  EXPECT_EQ(to_text(state), text);
  EXPECT_EQ(gpushm::dra::from_text(text, "f"), state);
}

TEST(dra_checkpoint, truncated_text_is_rejected) {
  const std::string text = to_text(sample());
  for (std::size_t size = 0; size + 1 < text.size(); ++size) {
    const error failure =
        failure_of([&] { (void)gpushm::dra::from_text(text.substr(0, size), "f"); });
    ASSERT_EQ(failure.code(), errc::invalid_argument) << size;
  }
}

TEST(dra_checkpoint, changed_byte_is_detected) {
  const std::string text = to_text(sample());
  const std::size_t data = text.find("\"data\"");
  std::size_t detected = 0;
  for (std::size_t place = data + 7; place < text.find(",\"version\""); ++place) {
    std::string changed = text;
    changed[place] = changed[place] == 'x' ? 'y' : 'x';
    EXPECT_THROW((void)gpushm::dra::from_text(changed, "f"), error) << place;
    ++detected;
  }
  EXPECT_GT(detected, 100U);
}

TEST(dra_checkpoint, domain_of_another_claim_is_rejected) {
  checkpoint state = sample();
  state.claims.at(uid_of(1)).domain = "claim-" + uid_of(2);
  EXPECT_STREQ(failure_of([&] { (void)gpushm::dra::from_text(to_text(state), "/s/c"); }).what(),
               ("read checkpoint \"/s/c\": claim " + uid_of(1) +
                " has the domain of another one (prepared claims keep running; to start without "
                "them, remove "
                "the file and its copy that ends in .bak)")
                   .c_str());
}

TEST(dra_checkpoint, newer_version_differs_from_damage) {
  json newer = json::parse(to_text(sample()));
  newer["version"] = 2;
  newer["data"] = "something else";
  EXPECT_STREQ(failure_of([&] { (void)gpushm::dra::from_text(newer.dump(), "/s/c"); }).what(),
               "read checkpoint \"/s/c\": it has version 2, but this gpushm reads version 1 "
               "(install the newer gpushm again, or drain the node and remove the file and its "
               "copy that ends in .bak)");
  EXPECT_STREQ(failure_of([&] { (void)gpushm::dra::from_text("{", "/s/c"); }).what(),
               "read checkpoint \"/s/c\": it is incomplete (prepared claims keep running; "
               "to start without them, remove the file and its copy that ends in .bak)");
}

gpushm::dra::slice_options slice_of(unsigned devices) {
  return {test_driver, test_node, devices};
}

TEST(dra_slice, matches_each_api_version) {
  const json v1 = make_slice(slice_of(2), "v1", "uid-1", 3);
  EXPECT_EQ(v1.at("apiVersion"), "resource.k8s.io/v1");
  EXPECT_EQ(v1.at("metadata").at("name"), "node-a-gpushm.dev");
  EXPECT_EQ(v1.at("spec").at("nodeName"), "node-a");
  EXPECT_EQ(v1.at("spec").at("driver"), "gpushm.dev");
  EXPECT_EQ(v1.at("spec").at("pool"),
            json({{"name", "node-a"}, {"generation", 3}, {"resourceSliceCount", 1}}));
  const json owner_reference = v1.at("metadata").at("ownerReferences").at(0);
  EXPECT_EQ(owner_reference.at("kind"), "Node");
  EXPECT_EQ(owner_reference.at("uid"), "uid-1");
  const json& devices = v1.at("spec").at("devices");
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices.at(1).at("name"), "share-1");
  EXPECT_EQ(devices.at(1).at("attributes").at("type"), json({{"string", "share"}}));
  EXPECT_TRUE(devices.at(1).at("attributes").at("driverVersion").contains("version"));

  json v1beta2 = make_slice(slice_of(2), "v1beta2", "uid-1", 3);
  EXPECT_EQ(v1beta2.at("apiVersion"), "resource.k8s.io/v1beta2");
  EXPECT_EQ(v1beta2.at("spec"), v1.at("spec"));

  const json v1beta1 = make_slice(slice_of(2), "v1beta1", "uid-1", 3);
  EXPECT_FALSE(v1beta1.at("spec").at("devices").at(0).contains("attributes"));
  EXPECT_EQ(v1beta1.at("spec").at("devices").at(0).at("basic").at("attributes"),
            devices.at(0).at("attributes"));
}

TEST(dra_slice, long_names_are_shortened) {
  const gpushm::dra::slice_options longest{test_driver, std::string(253, 'a'), 1};
  EXPECT_EQ(slice_name(longest).size(), 253U);
  EXPECT_TRUE(slice_name(longest).ends_with("a-gpushm.dev"));
}

TEST(dra_slice, added_fields_are_ignored) {
  const json expected = make_slice(slice_of(2), "v1", "uid-1", 1);
  json stored = expected;
  stored["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z";
  stored["spec"]["devices"][0]["attributes"]["type"]["other"] = 1;
  EXPECT_EQ(difference(stored, expected), "");
  stored["spec"]["devices"].erase(1);
  EXPECT_EQ(difference(stored, expected), "spec.devices");
  stored = expected;
  stored["spec"]["devices"][1]["attributes"]["type"]["string"] = "else";
  EXPECT_EQ(difference(stored, expected), "spec.devices[1].attributes.type.string");
  stored = expected;
  stored["spec"]["pool"].erase("generation");
  EXPECT_EQ(difference(stored, expected), "spec.pool.generation");
  EXPECT_EQ(difference(json(7), expected), ".");
}

TEST(dra_slice, api_version_and_kind_are_ignored) {
  const json v1 = make_slice(slice_of(2), "v1", "uid-1", 1);
  const json v1beta1 = make_slice(slice_of(2), "v1beta1", "uid-1", 1);
  EXPECT_EQ(difference(v1, v1beta1), "");
  EXPECT_EQ(difference(v1beta1, v1), "");
  // An item of a list.
  json item = v1beta1;
  item.erase("apiVersion");
  item.erase("kind");
  EXPECT_EQ(difference(item, v1), "");
  item["spec"]["devices"][0]["basic"].erase("attributes");
  EXPECT_EQ(difference(item, v1), "spec.devices[0].attributes");
}

TEST(dra_slice, ownership_is_independent_of_name) {
  const gpushm::dra::slice_options own = slice_of(1);
  json slice = make_slice(own, "v1", "uid-1", 1);
  EXPECT_TRUE(is_in_own_pool(slice, own));
  slice["spec"]["pool"]["name"] = "node-b";
  EXPECT_TRUE(is_of_this_node(slice, own));
  EXPECT_FALSE(is_in_own_pool(slice, own));
  for (const char* field : {"driver", "nodeName"}) {
    json other = make_slice(own, "v1", "uid-1", 1);
    other["spec"][field] = "other";
    EXPECT_FALSE(is_of_this_node(other, own)) << field;
    other["spec"].erase(field);
    EXPECT_FALSE(is_of_this_node(other, own)) << field;
  }
  EXPECT_FALSE(is_of_this_node(json::array(), own));
}

TEST(dra_slice, generation_wraps_around) {
  EXPECT_EQ(gpushm::dra::generation_after(1), 2);
  EXPECT_EQ(gpushm::dra::generation_after(std::numeric_limits<std::int64_t>::max()), 1);
}

TEST(dra_rate_limiter, allows_a_burst_then_one_per_interval) {
  using namespace std::chrono_literals;
  gpushm::dra::rate_limiter limiter(3, 10s);
  const gpushm::dra::rate_limiter::clock::time_point start(1'000s);
  for (int count = 0; count < 3; ++count) {
    EXPECT_TRUE(limiter.take(start));
  }
  EXPECT_FALSE(limiter.take(start));
  EXPECT_FALSE(limiter.take(start + 9s));
  EXPECT_TRUE(limiter.take(start + 10s));
  EXPECT_FALSE(limiter.take(start + 19s));
  EXPECT_TRUE(limiter.take(start + 20s));
  // Unused actions accumulate, up to the burst.
  int done = 0;
  while (limiter.take(start + 10'000s)) {
    ++done;
  }
  EXPECT_EQ(done, 3);
}

}  // namespace
}  // namespace gpushm_testing
