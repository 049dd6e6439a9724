// SPDX-License-Identifier: Apache-2.0
// Which memory GPUDirect RDMA may use (F). Measured on an H200, driver 580; the behaviour of a GPU
// without support for virtual memory follows reports by others.
#include <gtest/gtest.h>

#include <string>

#include "tests/conformance/driver_facts_fixture.hpp"

namespace gpushm::conformance {
namespace {

using namespace gpushm::cuda;

std::uint64_t device_attribute(agent& agent, CUdevice_attribute attribute) {
  const answer reply = agent.request(order::device_attribute, attribute);
  EXPECT_OK(reply) << "attribute " << attribute;
  return reply.value;
}

void expect_rdma(agent& agent,
                 std::uint64_t address,
                 std::uint64_t wanted,
                 const std::string& subject) {
  const answer reply =
      attribute_in(agent, address, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE);
  EXPECT_OK(reply) << subject;
  EXPECT_EQ(reply.value, wanted) << subject;
}

TEST_F(driver_facts, F1_plain_allocations_match_device_attribute) {
  agent maker;
  const std::uint64_t rdma = device_attribute(maker, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
  EXPECT_LE(device_attribute(maker, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
            rdma);
  ASSERT_OK(maker.request(order::alloc, small));
  expect_rdma(maker, address_in(maker), rdma, "cuMemAlloc");
}

TEST_F(driver_facts, F2_chunk_is_for_rdma_only_on_request) {
  agent maker;
  ASSERT_OK(maker.request(order::create, small, 1));
  EXPECT_EQ(maker.request(order::chunk_rdma).value, 0U);
  expect_rdma(maker, address_in(maker), 0, "created without the flag");
}

TEST_F(driver_facts, F3_rdma_chunk_is_reported_only_in_its_creator) {
  agent maker;
  if (device_attribute(maker, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) == 0) {
    EXPECT_EQ(maker.request(order::create_rdma, small).result, CUDA_ERROR_INVALID_DEVICE);
    ASSERT_OK(maker.request(order::create, small, 1)) << "without the flag";
    return;
  }
  ASSERT_OK(maker.request(order::create_rdma, small));
  const answer created = maker.request(order::chunk_rdma);
  ASSERT_OK(created);
  EXPECT_EQ(created.value, 1U);
  expect_rdma(maker, address_in(maker), 1, "in the creator");
  const answer exported = maker.request(order::export_chunk, 0);
  ASSERT_OK(exported);
  agent user;
  import_and_map(user, exported.fd);
  const answer imported = user.request(order::chunk_rdma);
  ASSERT_OK(imported);
  EXPECT_EQ(imported.value, 0U);
  expect_rdma(user, address_in(user), 0, "in the importer");
}

}  // namespace
}  // namespace gpushm::conformance
