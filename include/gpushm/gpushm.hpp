// SPDX-License-Identifier: Apache-2.0
#pragma once

// The whole interface of libgpushm; the in-process broker has its own header, gpushm/broker.hpp,
// and so has sharing through files, gpushm/file_export.hpp.
#include "gpushm/channel.hpp"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "gpushm/exchange.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/tensors.hpp"
#include "gpushm/timeline.hpp"
#include "gpushm/types.hpp"
