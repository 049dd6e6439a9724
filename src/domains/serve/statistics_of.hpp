// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "broker/hub/closer.hpp"
#include "broker/hub/counters.hpp"
#include "broker/hub/request_counts.hpp"
#include "core/domain.hpp"
#include "domains/protocol/statistics.hpp"

/// A domain's statistics from the parts of its broker. On the domain's thread.
namespace gpushm::domains {

/// Everything except what a survey counts. Throws std::bad_alloc.
[[nodiscard]] domain_statistics statistics_of(const core::domain& domain,
                                              const broker_detail::closer::waiting& closing,
                                              const broker_detail::request_counts& requests,
                                              const broker_detail::report_counts& reports = {});
/// Precondition: the survey is complete. Throws std::bad_alloc.
void add_survey(domain_statistics& statistics, const core::segment_survey& survey);

}  // namespace gpushm::domains
