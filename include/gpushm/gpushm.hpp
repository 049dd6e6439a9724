// SPDX-License-Identifier: Apache-2.0
#pragma once

// Everything a user of libgpushm needs; the in-process broker has its own header,
// gpushm/broker.hpp.
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/types.hpp"
