// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/metrics/agent_metrics.hpp"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <utility>

#include "apps/gpushmd/metrics/broker_families.hpp"
#include "apps/gpushmd/metrics/domain_families.hpp"
#include "apps/gpushmd/metrics/process_families.hpp"
#include "base/report/log.hpp"
#include "domains/protocol/process_usage.hpp"

namespace gpushm::metrics {

namespace {

// From 100 µs to 10 s, the time that a kubelet waits.
const prometheus::Histogram::BucketBoundaries operation_bounds{
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 10};

template <typename Reading>
void append_readings(families& families, const std::function<std::vector<Reading>()>& source) {
  if (source) {
    append(families, families_of(source()));
  }
}

}  // namespace

class agent_metrics::impl {
 public:
  impl(std::string_view version, sources sources) : from_(std::move(sources)) {
    prometheus::BuildGauge()
        .Name("gpushm_build_info")
        .Help("Always 1; the labels identify the build of gpushmd")
        .Register(registry_)
        .Add({{"version", std::string(version)}})
        .Set(1);
  }

  void finished(std::string_view service,
                std::string_view operation,
                std::string_view outcome,
                std::chrono::nanoseconds took) {
    operations_
        .Add({{"service", std::string(service)},
              {"operation", std::string(operation)},
              {"outcome", std::string(outcome)}})
        .Increment();
    durations_
        .Add({{"service", std::string(service)}, {"operation", std::string(operation)}},
             operation_bounds)
        .Observe(std::chrono::duration<double>(took).count());
  }

  [[nodiscard]] std::string exposition() const {
    families families = registry_.Collect();
    if (from_.broker) {
      append(families, families_of(from_.broker()));
    }
    append_readings(families, from_.resources);
    append_readings(families, from_.dra);
    append(families, families_of(domains::usage_of_this_process(), "process_", "gpushmd"));
    return prometheus::TextSerializer().Serialize(families);
  }

 private:
  sources from_;
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& operations_ =
      prometheus::BuildCounter()
          .Name("gpushm_operations_total")
          .Help("Calls from the kubelet and requests to the API server, by outcome")
          .Register(registry_);
  prometheus::Family<prometheus::Histogram>& durations_ =
      prometheus::BuildHistogram()
          .Name("gpushm_operation_duration_seconds")
          .Help("Duration of calls from the kubelet and of requests to the API server")
          .Register(registry_);
};

agent_metrics::agent_metrics(std::string_view version, sources sources)
    : impl_(std::make_unique<impl>(version, std::move(sources))) {}
agent_metrics::~agent_metrics() = default;

void agent_metrics::finished(std::string_view service,
                             std::string_view operation,
                             std::string_view outcome,
                             std::chrono::nanoseconds took) noexcept {
  try {
    impl_->finished(service, operation, outcome, took);
  } catch (const std::exception& why) {  // the operation is not counted
    base::log(log_level::warning, why.what());
  }
}

std::string agent_metrics::exposition() const {
  return impl_->exposition();
}

}  // namespace gpushm::metrics
