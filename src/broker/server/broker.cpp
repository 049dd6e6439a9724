// SPDX-License-Identifier: Apache-2.0
// Implements the broker functions of broker.h.
#include "gpushm/broker.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/files/domain_places.hpp"
#include "base/files/fork_guard.hpp"
#include "base/report/c_interface.hpp"
#include "broker/server/running_server.hpp"
#include "core/budget.hpp"
#include "gpushm/error.hpp"

using gpushm::base::c_call;
using gpushm::base::c_text;
using gpushm::base::out;

struct gpushm_broker_budget {
  std::shared_ptr<gpushm::core::process_budget> budget;
};

struct gpushm_broker {
 public:
  gpushm_broker(const gpushm::broker_options& options,
                std::shared_ptr<gpushm::core::process_budget> shared)
      : server_(options, std::move(shared)) {}

  [[nodiscard]] const gpushm::broker_detail::server& server() const noexcept {
    return server_.get();
  }
  [[nodiscard]] bool forked() const noexcept {
    return gpushm::base::is_forked_child_of(created_in_);
  }

 private:
  std::uint64_t created_in_ = gpushm::base::fork_generation();
  gpushm::broker_detail::running_server server_;
};

namespace gpushm {

namespace {

const gpushm_broker& usable(const gpushm_broker* broker, std::string_view operation) {
  if (broker == nullptr) {
    throw error(errc::invalid_argument,
                "broker",
                {},
                "this broker object is empty",
                "start a broker first; a moved-from object is empty");
  }
  if (broker->forked()) {
    throw error(errc::forked,
                operation,
                broker->server().socket_path(),
                "this process was forked from the one that serves",
                "call this in the process that started the broker");
  }
  return *broker;
}

gpushm_broker_limits limits_out(const broker_limits& limits) noexcept {
  gpushm_broker_limits created{};
  created.struct_size = sizeof created;
  glue::copy_limits(limits, created);
  return created;
}

/// Accepts a structure that is shorter or longer than this version's.
broker_limits limits_from(const gpushm_broker_limits* given) {
  gpushm_broker_limits from = limits_out({});
  if (given != nullptr) {
    const gpushm_broker_limits known = base::options_in(given, "broker");
    std::memcpy(&from, &known, std::min(given->struct_size, sizeof from));
  }
  broker_limits created;
  glue::copy_limits(from, created);
  return created;
}

broker_options options_from(const gpushm_broker_options& options) {
  broker_options created;
  created.socket_path = base::text_in(options.socket_path, "broker");
  created.lock_path = base::text_in(options.lock_path, "broker");
  if (const auto domain = base::text_in(options.domain, "broker"); !domain.empty()) {
    created.domain = domain;
  }
  if (created.domain.size() > max_name_bytes) {
    base::throw_invalid("broker",
                        "the domain's name has " + std::to_string(created.domain.size()) + " bytes",
                        "give at most " + std::to_string(max_name_bytes));
  }
  if (created.socket_path.empty()) {
    created.socket_path = base::socket_to_serve(created.domain);
  }
  if (options.mode != 0) {
    created.mode = options.mode;
  }
  if (options.has_group) {
    created.group = options.group;
  }
  created.limits = limits_from(options.limits);
  created.raise_descriptor_limit = options.raise_descriptor_limit;
  created.accept_fake_chunks = options.accept_fake_chunks;
  return created;
}

}  // namespace

}  // namespace gpushm

// ---- budgets and limits ----

gpushm_errc gpushm_broker_budget_create(uint64_t memory_bytes,
                                        uint64_t descriptors,
                                        gpushm_broker_budget** budget) {
  return c_call([&] {
    gpushm_broker_budget*& created = out(budget, "broker");
    created = std::make_unique<gpushm_broker_budget>(
                  gpushm_broker_budget{
                      std::make_shared<gpushm::core::process_budget>(memory_bytes, descriptors)})
                  .release();
  });
}
uint64_t gpushm_broker_budget_used_memory_bytes(const gpushm_broker_budget* budget) {
  return budget == nullptr ? 0 : budget->budget->used(gpushm::core::resource::memory_bytes);
}
uint64_t gpushm_broker_budget_used_descriptors(const gpushm_broker_budget* budget) {
  return budget == nullptr ? 0 : budget->budget->used(gpushm::core::resource::descriptors);
}
void gpushm_broker_budget_free(gpushm_broker_budget* budget) {
  const std::unique_ptr<gpushm_broker_budget> ended(budget);
}

gpushm_errc gpushm_broker_limits_default(gpushm_broker_limits* limits) {
  return c_call([&] { gpushm::base::result_out(gpushm::limits_out({}), limits, "broker"); });
}

// ---- brokers ----

gpushm_errc gpushm_broker_start(const gpushm_broker_options* options, gpushm_broker** broker) {
  return c_call([&] {
    gpushm_broker*& created = out(broker, "broker");
    const gpushm_broker_options from = gpushm::base::options_in(options, "broker");
    created =
        std::make_unique<gpushm_broker>(gpushm::options_from(from),
                                        from.shared == nullptr ? nullptr : from.shared->budget)
            .release();
  });
}

void gpushm_broker_stop(gpushm_broker* broker) {
  // A forked child has no thread to stop, and socket, lock and memory belong to the parent: leave
  // the copy alone.
  if (broker == nullptr || broker->forked()) {
    return;
  }
  const gpushm::base::held_log_lines lines;
  const std::unique_ptr<gpushm_broker> ended(broker);
}

gpushm_errc gpushm_broker_socket_path(const gpushm_broker* broker, gpushm_string* path) {
  return c_call([&] {
    const auto& server = gpushm::usable(broker, "socket_path").server();
    out(path, "broker") = c_text(server.socket_path());
  });
}

gpushm_errc gpushm_broker_epoch(const gpushm_broker* broker, gpushm_epoch* epoch) {
  return c_call([&] {
    const gpushm::epoch& from = gpushm::usable(broker, "epoch").server().epoch();
    std::copy(from.begin(), from.end(), std::begin(out(epoch, "broker").bytes));
  });
}

gpushm_errc gpushm_broker_get_statistics(const gpushm_broker* broker,
                                         gpushm_broker_statistics* statistics) {
  return c_call([&] {
    const gpushm::broker_statistics from =
        gpushm::usable(broker, "statistics").server().statistics();
    gpushm_broker_statistics created{};
    created.segments = from.segments;
    created.allocated_bytes = from.allocated_bytes;
    created.leases = from.leases;
    created.connections = from.connections;
    created.ending_connections = from.ending_connections;
    created.unfenced = from.unfenced;
    created.waiting_opens = from.waiting_opens;
    created.opens = from.opens;
    created.cached_opens = from.cached_opens;
    for (const auto& [code, count] : from.open_failures) {
      if (static_cast<int>(code) < GPUSHM_ERRC_LIMIT) {
        created.open_failures[static_cast<int>(code)] = count;
      }
    }
    std::copy(from.open_latency.begin(), from.open_latency.end(), std::begin(created.open_latency));
    created.open_latency_sum_ns = from.open_latency_sum_ns;
    gpushm::base::result_out(created, statistics, "broker");
  });
}
