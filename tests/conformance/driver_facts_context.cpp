// SPDX-License-Identifier: Apache-2.0
// The effects of resetting the primary context (E). Always in a child process.
#include <gtest/gtest.h>

#include "tests/conformance/driver_facts_fixture.hpp"

namespace gpushm::conformance {
namespace {

using namespace gpushm::cuda;

// Resets and retains the context that every agent starts with.
void reset_and_retain(agent& agent) {
  ASSERT_OK(agent.request(order::reset_context));
  ASSERT_OK(agent.request(order::retain_context));
  ASSERT_OK(agent.request(order::use_context, 1));
}

TEST_F(driver_facts, E1_reset_destroys_retained_context) {
  agent user;
  const answer before = user.request(order::context_active);
  ASSERT_OK(before);
  EXPECT_EQ(before.value, 1U);
  ASSERT_OK(user.request(order::context_id));
  ASSERT_OK(user.request(order::reset_context));
  const answer after = user.request(order::context_active);
  ASSERT_OK(after);
  EXPECT_EQ(after.value, 0U);
  EXPECT_OK(user.request(order::push_context)) << "this does not detect it";
  EXPECT_EQ(user.request(order::context_id).result, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(user.request(order::alloc, small).result, CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_F(driver_facts, E2_same_context_has_new_id_after_reset) {
  agent user;
  const answer first = user.request(order::context_id);
  ASSERT_OK(first);
  ASSERT_OK(user.request(order::reset_context));
  const answer retained = user.request(order::retain_context);
  ASSERT_OK(retained);
  EXPECT_EQ(retained.value, first.value2);
  const answer active = user.request(order::context_active);
  ASSERT_OK(active);
  EXPECT_EQ(active.value, 1U);
  const answer second = user.request(order::context_id);
  ASSERT_OK(second);
  EXPECT_NE(second.value, first.value);
  ASSERT_OK(user.request(order::use_context, 1));
  EXPECT_OK(user.request(order::alloc, small));
}

TEST_F(driver_facts, E3_chunks_survive_reset) {
  agent maker;
  agent user;
  import_and_map(user, create_chunk(maker, 0xe3));
  ASSERT_NO_FATAL_FAILURE(reset_and_retain(user));
  EXPECT_EQ(user.request(order::check, 0xe3).value, 0U) << "imported";
  EXPECT_OK(user.request(order::unmap));
  ASSERT_NO_FATAL_FAILURE(reset_and_retain(maker));
  EXPECT_EQ(maker.request(order::check, 0xe3).value, 0U) << "its own";
  EXPECT_OK(maker.request(order::unmap));
}

TEST_F(driver_facts, E4_allocations_and_handles_do_not_survive_reset) {
  agent maker;
  agent user;
  const answer handle = create_handle(maker, 0xe4);
  ASSERT_OK(user.request(order::open_handle, small, 0, handle.bytes));
  EXPECT_EQ(user.request(order::check, 0xe4).value, 0U);
  ASSERT_NO_FATAL_FAILURE(reset_and_retain(user));
  EXPECT_EQ(user.request(order::check, 0xe4).result, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(maker.request(order::check, 0xe4).value, 0U) << "the exporter is another process";
  ASSERT_NO_FATAL_FAILURE(reset_and_retain(maker));
  EXPECT_EQ(maker.request(order::check, 0xe4).result, CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace gpushm::conformance
