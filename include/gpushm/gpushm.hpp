// SPDX-License-Identifier: Apache-2.0
#pragma once

// Everything a user of libgpushm needs; the in-process broker has its own header,
// gpushm/broker.hpp, and so has its use through files, gpushm/file_export.hpp.
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "gpushm/exchange.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/types.hpp"
