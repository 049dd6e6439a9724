// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace gpushm::base {

/// Upper bounds of the buckets in which a broker counts how long its requests take, in nanoseconds:
/// 1 µs to 10 s, dense where most are. Few, because each domain has a series for each bucket and
/// kind of request.
inline constexpr std::array<std::uint64_t, 12> request_latency_bounds_ns{1'000,
                                                                         10'000,
                                                                         20'000,
                                                                         50'000,
                                                                         100'000,
                                                                         200'000,
                                                                         500'000,
                                                                         1'000'000,
                                                                         10'000'000,
                                                                         100'000'000,
                                                                         1'000'000'000,
                                                                         10'000'000'000};

}  // namespace gpushm::base
