// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/raw_session/raw_session.hpp"

namespace gpushm_tests {

using raw_client = gpushm_testing::raw_session;
using gpushm_testing::failure_of;
using gpushm_testing::make_chunk;
using gpushm_testing::raw_reply;
using gpushm_testing::reserve_pages;

}  // namespace gpushm_tests
