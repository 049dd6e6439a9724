// SPDX-License-Identifier: Apache-2.0
#pragma once

// The whole interface of libgpushm; the in-process broker has its own header, gpushm/broker.hpp,
// and so has sharing through files, gpushm/file_export.hpp.
//
// The contract of a function or structure whose comment has "As `gpushm_x`" is at `gpushm_x` in the
// C headers, with these differences. A failure is thrown as `error`, whose `code()` is the code in
// C. What C writes through a pointer is returned; where a bool tells that a timeout has passed or a
// stop was requested, it is returned, or the result is nullopt. `timeout_ms` is `timeout`, a
// parameter or an option, with `forever` for GPUSHM_FOREVER. NULL is a default, or an empty object.
// A handle is an object that releases it.
#include "gpushm/channel.hpp"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "gpushm/exchange.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/tensors.hpp"
#include "gpushm/timeline.hpp"
#include "gpushm/types.hpp"
#include "gpushm/versions.hpp"
#include "gpushm/window.hpp"
