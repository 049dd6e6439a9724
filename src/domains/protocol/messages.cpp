// SPDX-License-Identifier: Apache-2.0
#include "domains/protocol/messages.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wnull-dereference"  // in flatbuffers' inlined functions
#include "domains_protocol/messages_generated.h"
#pragma GCC diagnostic pop

namespace gpushm::domains {

namespace {

namespace fbs = flatbuffers;

constexpr std::string_view operation = "private socket";
/// So that `max_readings` fit into a packet.
constexpr std::size_t max_problem_bytes = 512;
/// So that `max_usages` fit into one, with the text of quotas.
constexpr std::size_t max_usage_text_bytes = 96;
/// "container " and 16 digits; "pod " and 36.
constexpr std::size_t max_principal_bytes = 40;

// ---- encoding ----

using builder = fbs::FlatBufferBuilder;

struct request_writer {
  builder& to;
  fbs::Offset<fb::Request> operator()(const open_request& v) {
    const auto table = fb::CreateOpen(to, to.CreateString(v.domain));
    return fb::CreateRequest(to, fb::What::Open, table.Union());
  }
  fbs::Offset<fb::Request> operator()(const close_request& v) {
    const auto table = fb::CreateClose(to, to.CreateString(v.domain));
    return fb::CreateRequest(to, fb::What::Close, table.Union());
  }
  fbs::Offset<fb::Request> operator()(const read_request& v) {
    const auto table = fb::CreateRead(to, to.CreateString(v.after));
    return fb::CreateRequest(to, fb::What::Read, table.Union());
  }
  fbs::Offset<fb::Request> operator()(const yield_request&) {
    return fb::CreateRequest(to, fb::What::Yield, fb::CreateYield(to).Union());
  }
  fbs::Offset<fb::Request> operator()(const set_quotas_request& v) {
    const auto table = fb::CreateSetQuotas(to, to.CreateString(v.text));
    return fb::CreateRequest(to, fb::What::SetQuotas, table.Union());
  }
  fbs::Offset<fb::Request> operator()(const usage_request& v) {
    const auto table = fb::CreateReadUsage(to, to.CreateString(v.domain));
    return fb::CreateRequest(to, fb::What::ReadUsage, table.Union());
  }
  fbs::Offset<fb::Request> operator()(const lose_device_request& v) {
    const auto uuid = to.CreateString(v.device.uuid);
    const auto table = fb::CreateLoseDevice(to,
                                            uuid,
                                            to.CreateString(v.device.pci_address),
                                            static_cast<std::uint8_t>(v.device.loss.cause),
                                            v.device.loss.xid);
    return fb::CreateRequest(to, fb::What::LoseDevice, table.Union());
  }
  fbs::Offset<fb::Request> operator()(const broker_request&) {
    return fb::CreateRequest(to, fb::What::ReadBroker, fb::CreateReadBroker(to).Union());
  }
  fbs::Offset<fb::Request> operator()(const statistics_request& v) {
    const auto table = fb::CreateReadStatistics(to, to.CreateString(v.domain));
    return fb::CreateRequest(to, fb::What::ReadStatistics, table.Union());
  }
  fbs::Offset<fb::Request> operator()(const segments_request& v) {
    const auto table = fb::CreateListSegments(to, to.CreateString(v.domain), v.slot);
    return fb::CreateRequest(to, fb::What::ListSegments, table.Union());
  }
  fbs::Offset<fb::Request> operator()(const remove_unheld_request& v) {
    const auto table = fb::CreateRemoveUnheld(to, to.CreateString(v.domain), v.generation);
    return fb::CreateRequest(to, fb::What::RemoveUnheld, table.Union());
  }
};

using usage_rows = fbs::Offset<fbs::Vector<fbs::Offset<fb::Usage>>>;

usage_rows rows_of(builder& builder, const std::vector<usage>& bytes) {
  std::vector<fbs::Offset<fb::Usage>> offsets;
  offsets.reserve(bytes.size());
  for (const usage& each : bytes) {
    const auto level = builder.CreateString(each.level);
    const auto name = builder.CreateString(each.name.substr(0, max_usage_text_bytes));
    const auto resource = builder.CreateString(each.resource);
    const auto gpu = builder.CreateString(each.gpu.substr(0, max_usage_text_bytes));
    offsets.push_back(fb::CreateUsage(builder, level, name, resource, gpu, each.used, each.limit));
  }
  return builder.CreateVector(offsets);
}

fbs::Offset<fb::Amount> amount_of(builder& builder, const segment_amount& bytes) {
  return fb::CreateAmount(builder, bytes.segments, bytes.bytes, bytes.oldest_ms);
}

fbs::Offset<fb::Statistics> statistics_of(builder& builder, const domain_statistics& bytes) {
  std::vector<fbs::Offset<fb::Principal>> principals;
  for (const principal_statistics& each : bytes.principals) {
    principals.push_back(
        fb::CreatePrincipal(builder,
                            builder.CreateString(each.name.substr(0, max_principal_bytes)),
                            each.connections,
                            each.segments,
                            each.host_bytes,
                            each.gpu_bytes,
                            each.memory_bytes,
                            each.descriptors,
                            each.subscriptions,
                            each.waiting_opens));
  }
  std::vector<fbs::Offset<fb::Kind>> kinds;
  for (const kind_statistics& each : bytes.kinds) {
    const auto name = builder.CreateString(each.name);
    kinds.push_back(fb::CreateKind(builder, name, amount_of(builder, each.amount)));
  }
  std::vector<fbs::Offset<fb::Refusal>> refusals;
  for (const refusal_statistics& each : bytes.refusals) {
    refusals.push_back(fb::CreateRefusal(builder,
                                         builder.CreateSharedString(each.request),
                                         static_cast<std::uint16_t>(each.code),
                                         each.count));
  }
  std::vector<fbs::Offset<fb::Latency>> latencies;
  for (const request_latency& each : bytes.latencies) {
    const auto request = builder.CreateSharedString(each.request);
    const auto counts = builder.CreateVector(each.counts.data(), each.counts.size());
    latencies.push_back(fb::CreateLatency(builder, request, counts, each.sum_ns));
  }
  std::vector<fbs::Offset<fb::Alias>> aliases;
  for (const alias_statistics& each : bytes.aliases) {
    aliases.push_back(fb::CreateAlias(builder, builder.CreateString(each.name), each.number));
  }
  const auto all_aliases = builder.CreateVector(aliases);
  const auto all_principals = builder.CreateVector(principals);
  const usage_rows budgets = rows_of(builder, bytes.budgets);
  const auto unheld = amount_of(builder, bytes.unheld);
  const auto fence_waits = amount_of(builder, bytes.fence_waits);
  const auto close_waits = amount_of(builder, bytes.close_waits);
  const auto all_kinds = builder.CreateVector(kinds);
  const auto all_refusals = builder.CreateVector(refusals);
  const auto all_latencies = builder.CreateVector(latencies);
  const auto imports =
      builder.CreateVector(bytes.import_latency.data(), bytes.import_latency.size());
  return fb::CreateStatistics(builder,
                              all_principals,
                              bytes.others,
                              budgets,
                              unheld,
                              fence_waits,
                              close_waits,
                              all_kinds,
                              all_refusals,
                              all_latencies,
                              bytes.channels,
                              bytes.channel_items,
                              bytes.channel_item_bytes,
                              imports,
                              bytes.import_latency_sum_ns,
                              all_aliases,
                              bytes.other_aliases);
}

struct reply_writer {
  builder& to;
  fbs::Offset<fb::Reply> operator()(const opened& v) {
    const auto result = fb::CreateOpened(to, to.CreateString(v.directory));
    return fb::CreateReply(to, fb::Result::Opened, result.Union());
  }
  fbs::Offset<fb::Reply> operator()(const closed&) {
    return fb::CreateReply(to, fb::Result::Closed, fb::CreateClosed(to).Union());
  }
  fbs::Offset<fb::Reply> operator()(const readings& v) {
    std::vector<fbs::Offset<fb::Reading>> offsets;
    offsets.reserve(v.all.size());
    for (const reading& each : v.all) {
      offsets.push_back(one(each));
    }
    const auto result = fb::CreateReadings(to, to.CreateVector(offsets), v.more);
    return fb::CreateReply(to, fb::Result::Readings, result.Union());
  }
  fbs::Offset<fb::Reply> operator()(const error& v) {
    const auto operation = to.CreateString(v.operation());
    const auto object = to.CreateString(v.object());
    const auto cause = to.CreateString(v.cause());
    const auto next = to.CreateString(v.next_step());
    const auto result =
        fb::CreateFailure(to, static_cast<std::uint16_t>(v.code()), operation, object, cause, next);
    return fb::CreateReply(to, fb::Result::Failure, result.Union());
  }
  fbs::Offset<fb::Reply> operator()(const yielded&) {
    return fb::CreateReply(to, fb::Result::Yielded, fb::CreateYielded(to).Union());
  }
  fbs::Offset<fb::Reply> operator()(const quotas_set&) {
    return fb::CreateReply(to, fb::Result::QuotasSet, fb::CreateQuotasSet(to).Union());
  }
  fbs::Offset<fb::Reply> operator()(const device_lost&) {
    return fb::CreateReply(to, fb::Result::DeviceLost, fb::CreateDeviceLost(to).Union());
  }
  fbs::Offset<fb::Reply> operator()(const usages& v) {
    const usage_rows rows = rows_of(to, v.all);
    const auto result = fb::CreateUsages(to, rows, to.CreateString(v.quotas));
    return fb::CreateReply(to, fb::Result::Usages, result.Union());
  }
  fbs::Offset<fb::Reply> operator()(const broker_facts& v) {
    const auto version = to.CreateString(v.version);
    const usage_rows budgets = rows_of(to, v.budgets);
    const process_usage& p = v.process;
    const auto process = fb::CreateProcessUsage(to,
                                                p.resident_bytes,
                                                p.virtual_bytes,
                                                p.cpu_ns,
                                                p.open_descriptors,
                                                p.max_descriptors,
                                                p.start_unix_ns);
    const auto result = fb::CreateBrokerFacts(
        to, version, v.started_ns, v.starts, v.takeovers, v.failed_takeovers, budgets, process);
    return fb::CreateReply(to, fb::Result::BrokerFacts, result.Union());
  }
  fbs::Offset<fb::Reply> operator()(const domain_statistics& v) {
    return fb::CreateReply(to, fb::Result::Statistics, statistics_of(to, v).Union());
  }
  fbs::Offset<fb::Reply> operator()(const segment_page& v) {
    std::vector<fbs::Offset<fb::SegmentRow>> offsets;
    offsets.reserve(v.all.size());
    for (const segment_row& each : v.all) {
      offsets.push_back(one(each));
    }
    const auto result = fb::CreateSegmentPage(to, to.CreateVector(offsets), v.next_slot, v.more);
    return fb::CreateReply(to, fb::Result::SegmentPage, result.Union());
  }
  fbs::Offset<fb::Reply> operator()(const unheld_removed& v) {
    const auto result = fb::CreateUnheldRemoved(to, v.is_removed);
    return fb::CreateReply(to, fb::Result::UnheldRemoved, result.Union());
  }

 private:
  fbs::Offset<fb::SegmentRow> one(const segment_row& v) {
    std::vector<fbs::Offset<fbs::String>> holders;
    for (const std::string& each : v.holders) {
      holders.push_back(to.CreateString(each.substr(0, max_principal_bytes)));
    }
    const auto name = to.CreateString(v.name);
    const auto principal = to.CreateString(v.principal.substr(0, max_principal_bytes));
    const auto device = to.CreateString(v.device.substr(0, max_usage_text_bytes));
    const auto all_holders = to.CreateVector(holders);
    return fb::CreateSegmentRow(to,
                                name,
                                v.generation,
                                principal,
                                v.creator_uid,
                                v.creator_alive,
                                v.size_bytes,
                                v.allocated_bytes,
                                device,
                                static_cast<std::uint8_t>(v.lifetime),
                                static_cast<std::uint8_t>(v.state),
                                v.published,
                                v.leases,
                                all_holders,
                                v.age_ms,
                                v.is_age_known);
  }
  fbs::Offset<fb::Reading> one(const reading& v) {
    const broker_statistics& c = v.counted;
    std::vector<std::uint16_t> codes;
    std::vector<std::uint64_t> counts;
    for (const auto& [code, count] : c.open_failures) {
      codes.push_back(static_cast<std::uint16_t>(code));
      counts.push_back(count);
    }
    const auto domain = to.CreateString(v.domain);
    const auto problem = to.CreateString(v.problem.substr(0, max_problem_bytes));
    const auto failed = to.CreateVector(codes);
    const auto failed_counts = to.CreateVector(counts);
    const auto latency = to.CreateVector(c.open_latency.data(), c.open_latency.size());
    return fb::CreateReading(to,
                             domain,
                             v.serving,
                             v.open,
                             problem,
                             c.segments,
                             c.allocated_bytes,
                             c.leases,
                             c.connections,
                             c.ending_connections,
                             c.unfenced,
                             c.waiting_opens,
                             c.opens,
                             c.cached_opens,
                             failed,
                             failed_counts,
                             latency,
                             c.open_latency_sum_ns,
                             v.handed_back,
                             v.lost,
                             static_cast<std::uint8_t>(v.keeper),
                             v.freeing_bytes);
  }
};

template <typename Writer, typename Value>
std::vector<std::byte> encoded(const Value& bytes) {
  builder to;
  to.Finish(std::visit(Writer{to}, bytes));
  if (to.GetSize() > max_message_bytes) {
    throw error(errc::message_too_large,
                operation,
                {},
                "a message has " + std::to_string(to.GetSize()) + " bytes",
                "use a shorter name");
  }
  const auto* const first = reinterpret_cast<const std::byte*>(to.GetBufferPointer());
  return {first, first + to.GetSize()};
}

// ---- decoding ----

template <typename Table>
const Table& root(std::span<const std::byte> bytes) {
  const auto* const data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  fbs::Verifier verifier(data, std::min(bytes.size(), max_message_bytes));
  if (bytes.size() > max_message_bytes || !verifier.VerifyBuffer<Table>(nullptr)) {
    throw error(errc::protocol_error,
                operation,
                {},
                "a message is damaged",
                "check that the other program is gpushm's");
  }
  return *fbs::GetRoot<Table>(data);
}

[[noreturn]] void throw_later_version() {
  throw error(errc::unsupported_version,
              operation,
              {},
              "a message of a later version",
              "update the older one of gpushmd and gpushm-brokerd");
}

reading reading_of(const fb::Reading& v) {
  reading result;
  result.domain = fbs::GetString(v.domain());
  result.serving = v.serving();
  result.open = v.open();
  result.problem = fbs::GetString(v.problem());
  broker_statistics& c = result.counted;
  c.segments = v.segments();
  c.allocated_bytes = v.allocated_bytes();
  c.leases = v.leases();
  c.connections = v.connections();
  c.ending_connections = v.ending_connections();
  c.unfenced = v.unfenced();
  c.waiting_opens = v.waiting_opens();
  c.opens = v.opens();
  c.cached_opens = v.cached_opens();
  if (v.failure_codes() != nullptr && v.failure_counts() != nullptr) {
    for (fbs::uoffset_t i = 0; i < std::min(v.failure_codes()->size(), v.failure_counts()->size());
         ++i) {
      c.open_failures.emplace(static_cast<errc>(v.failure_codes()->Get(i)),
                              v.failure_counts()->Get(i));
    }
  }
  if (v.open_latency() != nullptr) {
    for (fbs::uoffset_t i = 0;
         i < std::min<std::size_t>(v.open_latency()->size(), c.open_latency.size());
         ++i) {
      c.open_latency.at(i) = v.open_latency()->Get(i);
    }
  }
  c.open_latency_sum_ns = v.open_latency_sum_ns();
  result.handed_back = v.handed_back();
  result.lost = v.lost();
  result.keeper = static_cast<keeper_state>(v.keeper());
  result.freeing_bytes = v.freeing_bytes();
  return result;
}

/// Calls `take` for each; a vector that is not there is empty.
template <typename Rows, typename Take>
void for_each(const Rows* rows, Take&& take) {
  if (rows != nullptr) {
    for (const auto* const each : *rows) {
      take(*each);
    }
  }
}

std::vector<usage> usages_of(const fbs::Vector<fbs::Offset<fb::Usage>>* rows) {
  std::vector<usage> result;
  for_each(rows, [&](const fb::Usage& each) {
    result.push_back({fbs::GetString(each.level()),
                      fbs::GetString(each.name()),
                      fbs::GetString(each.resource()),
                      fbs::GetString(each.gpu()),
                      each.used(),
                      each.limit()});
  });
  return result;
}

segment_amount amount_of(const fb::Amount* v) {
  return v == nullptr ? segment_amount{}
                      : segment_amount{v->segments(), v->bytes(), v->oldest_ms()};
}

process_usage process_of(const fb::ProcessUsage* v) {
  return v == nullptr ? process_usage{}
                      : process_usage{v->resident_bytes(),
                                      v->virtual_bytes(),
                                      v->cpu_ns(),
                                      v->open_descriptors(),
                                      v->max_descriptors(),
                                      v->start_unix_ns()};
}

broker_facts facts_of(const fb::BrokerFacts& v) {
  return {fbs::GetString(v.version()),
          v.started_ns(),
          v.starts(),
          v.takeovers(),
          v.failed_takeovers(),
          usages_of(v.budgets()),
          process_of(v.process())};
}

/// A sender of another version may have other buckets at the end.
void read_buckets(const fbs::Vector<std::uint64_t>* counts, std::span<std::uint64_t> buckets) {
  const std::size_t size =
      counts == nullptr ? 0 : std::min<std::size_t>(counts->size(), buckets.size());
  for (std::size_t i = 0; i < size; ++i) {
    buckets[i] = counts->Get(static_cast<fbs::uoffset_t>(i));
  }
}

domain_statistics statistics_of(const fb::Statistics& v) {
  domain_statistics result;
  for_each(v.principals(), [&](const fb::Principal& each) {
    result.principals.push_back({fbs::GetString(each.name()),
                                 each.connections(),
                                 each.segments(),
                                 each.host_bytes(),
                                 each.gpu_bytes(),
                                 each.memory_bytes(),
                                 each.descriptors(),
                                 each.subscriptions(),
                                 each.waiting_opens()});
  });
  result.others = v.others();
  result.budgets = usages_of(v.budgets());
  result.unheld = amount_of(v.unheld());
  result.fence_waits = amount_of(v.fence_waits());
  result.close_waits = amount_of(v.close_waits());
  result.channels = v.channels();
  result.channel_items = v.channel_items();
  result.channel_item_bytes = v.channel_item_bytes();
  for_each(v.kinds(), [&](const fb::Kind& each) {
    result.kinds.push_back({fbs::GetString(each.name()), amount_of(each.amount())});
  });
  for_each(v.refusals(), [&](const fb::Refusal& each) {
    result.refusals.push_back(
        {fbs::GetString(each.request()), static_cast<errc>(each.code()), each.count()});
  });
  for_each(v.latencies(), [&](const fb::Latency& each) {
    request_latency& one = result.latencies.emplace_back();
    one.request = fbs::GetString(each.request());
    one.sum_ns = each.sum_ns();
    read_buckets(each.counts(), one.counts);
  });
  read_buckets(v.import_latency(), result.import_latency);
  result.import_latency_sum_ns = v.import_latency_sum_ns();
  for_each(v.aliases(), [&](const fb::Alias& each) {
    result.aliases.push_back({fbs::GetString(each.name()), each.number()});
  });
  result.other_aliases = v.other_aliases();
  return result;
}

segment_row row_of(const fb::SegmentRow& v) {
  segment_row result;
  result.name = fbs::GetString(v.name());
  result.generation = v.generation();
  result.principal = fbs::GetString(v.principal());
  result.creator_uid = v.creator_uid();
  result.creator_alive = v.creator_alive();
  result.size_bytes = v.size_bytes();
  result.allocated_bytes = v.allocated_bytes();
  result.device = fbs::GetString(v.device());
  result.lifetime = static_cast<lifetime>(v.lifetime());
  result.state = static_cast<segment_state>(v.state());
  result.published = v.published();
  result.leases = v.leases();
  if (v.holders() != nullptr) {
    for (const fbs::String* const each : *v.holders()) {
      result.holders.push_back(each->str());
    }
  }
  result.age_ms = v.age_ms();
  result.is_age_known = v.is_age_known();
  return result;
}

}  // namespace

std::vector<std::byte> encode(const request& bytes) {
  return encoded<request_writer>(bytes);
}

std::vector<std::byte> encode(const reply& bytes) {
  return encoded<reply_writer>(bytes);
}

request decode_request(std::span<const std::byte> bytes) {
  const auto& v = root<fb::Request>(bytes);
  if (const auto* const open = v.what_as_Open()) {
    return open_request{fbs::GetString(open->domain())};
  }
  if (const auto* const close = v.what_as_Close()) {
    return close_request{fbs::GetString(close->domain())};
  }
  if (const auto* const read = v.what_as_Read()) {
    return read_request{fbs::GetString(read->after())};
  }
  if (v.what_as_Yield() != nullptr) {
    return yield_request{};
  }
  if (const auto* const set = v.what_as_SetQuotas()) {
    return set_quotas_request{fbs::GetString(set->text())};
  }
  if (const auto* const read = v.what_as_ReadUsage()) {
    return usage_request{fbs::GetString(read->domain())};
  }
  if (const auto* const lost = v.what_as_LoseDevice()) {
    return lose_device_request{{fbs::GetString(lost->uuid()),
                                fbs::GetString(lost->pci_address()),
                                base::loss_of(lost->cause(), lost->xid())}};
  }
  if (v.what_as_ReadBroker() != nullptr) {
    return broker_request{};
  }
  if (const auto* const read = v.what_as_ReadStatistics()) {
    return statistics_request{fbs::GetString(read->domain())};
  }
  if (const auto* const list = v.what_as_ListSegments()) {
    return segments_request{fbs::GetString(list->domain()), list->slot()};
  }
  if (const auto* const remove = v.what_as_RemoveUnheld()) {
    return remove_unheld_request{fbs::GetString(remove->domain()), remove->generation()};
  }
  throw_later_version();
}

reply decode_reply(std::span<const std::byte> bytes) {
  const auto& v = root<fb::Reply>(bytes);
  if (const auto* const open = v.result_as_Opened()) {
    return opened{fbs::GetString(open->directory())};
  }
  if (v.result_as_Closed() != nullptr) {
    return closed{};
  }
  if (const auto* const page = v.result_as_Readings()) {
    readings result;
    result.more = page->more();
    if (page->all() != nullptr) {
      for (const fb::Reading* const each : *page->all()) {
        result.all.push_back(reading_of(*each));
      }
    }
    return result;
  }
  if (const auto* const failure = v.result_as_Failure()) {
    return error(static_cast<errc>(failure->code()),
                 fbs::GetString(failure->operation()),
                 fbs::GetString(failure->object()),
                 fbs::GetString(failure->cause()),
                 fbs::GetString(failure->next_step()));
  }
  if (v.result_as_Yielded() != nullptr) {
    return yielded{};
  }
  if (v.result_as_QuotasSet() != nullptr) {
    return quotas_set{};
  }
  if (v.result_as_DeviceLost() != nullptr) {
    return device_lost{};
  }
  if (const auto* const page = v.result_as_Usages()) {
    return usages{usages_of(page->all()), fbs::GetString(page->quotas())};
  }
  if (const auto* const facts = v.result_as_BrokerFacts()) {
    return facts_of(*facts);
  }
  if (const auto* const all = v.result_as_Statistics()) {
    return statistics_of(*all);
  }
  if (const auto* const page = v.result_as_SegmentPage()) {
    segment_page result;
    for_each(page->all(), [&](const fb::SegmentRow& each) { result.all.push_back(row_of(each)); });
    result.next_slot = page->next_slot();
    result.more = page->more();
    return result;
  }
  if (const auto* const removed = v.result_as_UnheldRemoved()) {
    return unheld_removed{removed->removed()};
  }
  throw_later_version();
}

}  // namespace gpushm::domains
