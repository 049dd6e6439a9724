// SPDX-License-Identifier: Apache-2.0
#include "tests/wire/samples.hpp"

#include <cstdint>
#include <limits>
#include <numeric>

namespace gpushm::wire::samples {

namespace {

constexpr auto max32 = std::numeric_limits<std::uint32_t>::max();
constexpr auto max64 = std::numeric_limits<std::uint64_t>::max();

device_id some_gpu() {
  return {device_kind::gpu, "GPU-5fd4f087-1cf9-7b9d-1a9a-5d3e0a6e4f77", "0000:18:00.0", 3};
}

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = static_cast<std::byte>(i * 7 + 1);
  }
  return result;
}

segment some_segment() {
  segment result;
  result.name = "w/llama";
  result.generation = 0x00123456789ABCDE;
  result.slot = 17;
  result.size_bytes = 1'000'000'007;
  result.allocated_bytes = 1'002'438'656;
  result.chunk_count = 5;
  result.device = some_gpu();
  result.backend = backend::cuda_vmm;
  result.lifetime = lifetime::persistent;
  result.published = true;
  result.state = segment_state::removed;
  result.leases = 4;
  result.creator_uid = 1000;
  result.creator_pid = 4711;
  result.creator_alive = true;
  result.metadata_bytes = 65'000;
  return result;
}

segment longest_segment() {
  segment result = some_segment();
  result.name.assign(max_name_bytes, 'n');
  result.generation = max_generation;
  result.slot = max32;
  result.size_bytes = max64;
  result.allocated_bytes = max64;
  result.chunk_count = max32;
  result.device = {device_kind::mig, std::string(128, 'u'), std::string(128, 'p'), INT32_MAX};
  result.leases = max32;
  result.creator_uid = max32;
  result.creator_pid = INT32_MIN;
  result.metadata_bytes = max64;
  return result;
}

receipt some_receipt() {
  receipt result{};
  std::iota(reinterpret_cast<unsigned char*>(result.begin()),
            reinterpret_cast<unsigned char*>(result.end()),
            static_cast<unsigned char>(1));
  return result;
}

/// Includes the fields that were added after the first golden files.
segment longest_ending_segment() {
  segment result = longest_segment();
  result.state = segment_state::device_lost;
  result.offset_bytes = max64;
  result.ending = max32;
  result.ending_pid = INT32_MIN;
  result.ending_ms = max64;
  result.ending_waits = fence_wait::delay;
  return result;
}

}  // namespace

std::vector<sample> one_of_each_kind() {
  return {
      {"hello", {1, hello{1, "9e1f2c7a-7d1d-4c2b-8f0e-1c2d3e4f5a6b", 4026531836, 4711}}},
      {"welcome",
       {2,
        welcome{1,
                "tenant-7",
                {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
                65'536,
                1ULL << 40U,
                253}}},
      {"reserve",
       {3,
        reserve{"w/llama",
                1'000'000'007,
                1'002'438'656,
                some_gpu(),
                5,
                backend::cuda_vmm,
                lifetime::persistent}}},
      {"reserved", {4, reserved{0x00123456789ABCDE, 17}}},
      {"attach", {5, attach{0x00123456789ABCDE, 2, {2'097'152, 4'194'304, 6'291'456}}}},
      {"publish", {6, publish{0x00123456789ABCDE, some_bytes(19)}}},
      {"open", {7, open{"w/llama", 1'000'000'007, 5'000}}},
      {"open_many", {8, open_many{{"w/llama", "kv/0", "k\xc3\xa4se"}, 4'096, 250}}},
      {"opened", {9, opened{2, some_segment(), some_bytes(11), {2'097'152, 4'194'304}}}},
      {"fetch_chunks", {10, fetch_chunks{0x00123456789ABCDE, 252}}},
      {"chunks", {11, chunks{0x00123456789ABCDE, 252, {2'097'152, 4'096}}}},
      {"release", {12, release{0x00123456789ABCDE, 3}}},
      {"remove", {13, remove{"w/llama"}}},
      {"list", {14, list{"w/", "w/llama"}}},
      {"listing", {15, listing{{some_segment(), longest_segment()}, true}}},
      {"stat", {16, stat{"w/llama"}}},
      {"subscribe", {17, subscribe{"w/"}}},
      {"unsubscribe", {18, unsubscribe{17}}},
      {"event", {19, event{event_kind::peer_died, "w/llama", 0x00123456789ABCDE, 2, 4711}}},
      {"failure",
       {20, failure{2, errc::no_such_segment, "no such segment", "did you mean \"w/llama2\"?"}}},
      {"done", {21, done{}}},
      {"bye", {22, bye{}}},
      {"confirm", {23, confirm{{4'711, 4'712}, {0x00123456789ABCDE, 7}}}},
      {"confirmed", {24, confirmed{{4'711, 4'712}, {verdict::changed, verdict::unchanged}}}},
      {"report", {25, report{{61'000, 2'000'000}, {17, 10}, 12}}},
      {"unfence", {26, unfence{"w/llama"}}},
      {"keep", {27, keep{{0x00123456789ABCDE, 3}, {2, 1}, true}}},
      {"waiting", {28, waiting{2, some_segment(), {2'097'152}, some_bytes(11)}}},
      {"cancel", {29, cancel{7}}},
      {"cancelled", {30, cancelled{}}},
      {"too_late", {31, too_late{4'711}}},
      {"subscribed", {32, subscribed{{some_segment(), longest_segment()}, true, 4'711}}},
      {"continued", {0, continued{}}},
      {"create_version",
       {33, create_version{"w/llama", 7, {"rank0", "rank1", ""}, 3, 1'000'000'007}}},
      {"version_created", {34, version_created{7}}},
      {"change_version", {35, change_version{"w/llama", 6, version_change::move_alias, "prod"}}},
      {"resolve", {36, resolve{"w/llama@prod"}}},
      {"resolved", {37, resolved{7, 17, 0x00123456789ABCDE}}},
      {"list_versions", {38, list_versions{"w/llama"}}},
      {"versions",
       {39,
        versions{{{8, version_state::ending, true, 1'000'000'007, 5, {"latest", "prod"}},
                  {7, version_state::published, false, 4'096, 1, {}}}}}},
  };
}

std::vector<sample> at_the_limits() {
  const std::string longest(max_name_bytes, 'n');
  const std::vector<std::uint64_t> full_batch(max_batch, max64);
  std::vector<sample> result{
      {"empty hello", {0, hello{0, "", 0, 0}}},
      {"largest hello", {max64, hello{max32, std::string(4'096, 'b'), max64, INT32_MIN}}},
      {"largest welcome", {max64, welcome{max32, longest, {}, max64, max64, max32, true}}},
      {"hello of a client that takes tables",
       {1, hello{2, "", 0, 0, fence::none, {}, known_kinds, true}}},
      {"hello of a client that knows versions",
       {1, hello{2, "", 0, 0, fence::none, {}, known_kinds, true, true}}},
      {"welcome of a broker that has versions",
       {0,
        welcome{2, "default", {}, 1, 0, 253, true, fence::none, 0, {}, false, known_kinds, true}}},
      {"opened by an alias", {9, opened{2, some_segment(), {}, {}, {}, {}, max32, max64}}},
      {"largest create_version",
       {max64, create_version{longest, max64, std::vector<std::string>(max_parts, "p"), max32}}},
      {"empty create_version", {0, create_version{}}},
      {"empty versions", {0, versions{}}},
      {"withdraw", {1, change_version{longest, max64, version_change::withdraw}}},
      {"remove an alias", {1, change_version{"n", 0, version_change::remove_alias, "a"}}},
      {"building version",
       {1, versions{{{max64, version_state::building, true, max64, max32, {}}}}}},
      {"hello with a fence",
       {0,
        hello{1,
              "9e1f2c7a-7d1d-4c2b-8f0e-1c2d3e4f5a6b",
              4026531836,
              4711,
              fence::unproven,
              {9, 8, 7, 6, 5, 4, 3, 2, 1},
              max32}}},
      {"welcome with a fence",
       {0,
        welcome{
            1, "default", {1}, 65'536, 0, 253, true, fence::proven, max32, {16, 15, 14}, true}}},
      {"welcome of a broker that registers descriptors",
       {0, welcome{2, "default", {}, 1, 0, 253, true, fence::none, 0, {}, false, known_kinds}}},
      {"empty reserve", {0, reserve{}}},
      {"reserve of a registered descriptor",
       {0, reserve{{{".fd/4711", 1, 1, {}, 1, backend::descriptor}}}}},
      {"largest reserve",
       {max64,
        reserve{longest,
                max64,
                max64,
                longest_segment().device,
                max32,
                backend::cuda_pool,
                lifetime::persistent,
                max64,
                some_bytes(4'096)}}},
      {"largest reserved", {max64, reserved{max64, max32}}},
      {"reserve that hands back",
       {max64, reserve{{{longest, 1, 1, some_gpu(), 1}}, max64, max32, some_receipt()}}},
      {"reserve that replaces", {0, reserve{{{"w", 1, 1, some_gpu(), 1}, {}, max64}}}},
      {"reserved with a receipt", {0, reserved{1, 2, some_receipt()}}},
      {"opened with a receipt", {0, opened{0, some_segment(), {}, {}, {}, some_receipt()}}},
      {"empty attach", {0, attach{}}},
      {"largest attach", {max64, attach{max64, max32, full_batch}}},
      {"empty publish", {0, publish{}}},
      {"largest publish", {max64, publish{max64, some_bytes(max_metadata_bytes)}}},
      {"empty open", {0, open{}}},
      {"name of 256 bytes", {0, open{std::string(256, 'n'), 0, 0}}},
      {"name that is not UTF-8", {0, open{"\xff\x00\xfe", max64, max32}}},
      {"one name", {0, open_many{{""}, 0, 0}}},
      {"most names",
       {max64, open_many{std::vector<std::string>(max_open_many, "n"), max64, max32}}},
      {"opened nothing", {0, opened{}}},
      {"largest opened",
       {max64,
        opened{max32,
               longest_segment(),
               some_bytes(max_metadata_bytes),
               full_batch,
               some_bytes(4'096)}}},
      {"largest chunks", {max64, chunks{max64, max32, full_batch}}},
      {"largest release", {max64, release{max64, max32}}},
      {"empty listing", {0, listing{}}},
      {"full listing", {max64, listing{std::vector<segment>(180, longest_ending_segment()), true}}},
      {"reserve of an exporter's memory",
       {3,
        reserve{"kv",
                1'000,
                4'096,
                some_gpu(),
                0,
                backend::cuda_ipc,
                lifetime::leased,
                24,
                some_bytes(300)}}},
      {"opened of an exporter's memory", {9, opened{0, some_segment(), {}, {}, some_bytes(300)}}},
      {"remove of a generation", {13, remove{"kv", max64}}},
      {"largest confirm", {max64, confirm{full_batch, full_batch}}},
      {"empty report", {0, report{}}},
      {"largest report", {max64, report{full_batch, full_batch, max64, max64, max64, full_batch}}},
      {"largest confirmed",
       {max64, confirmed{full_batch, std::vector<verdict>(max_batch, verdict::not_shared)}}},
      {"empty keep", {0, keep{}}},
      {"largest keep",
       {max64,
        keep{std::vector<std::uint64_t>(max_keep, max64),
             std::vector<std::uint64_t>(max_keep, max64),
             true}}},
      {"largest unfence", {max64, unfence{longest}}},
      {"largest waiting", {max64, waiting{max32, {}, full_batch, {}}}},
      {"waiting for a name", {28, waiting{2}}},
      {"largest cancel", {max64, cancel{max64}}},
      {"largest too_late", {max64, too_late{max64}}},
      {"empty subscribed", {0, subscribed{}}},
      {"largest after in subscribed", {max64, subscribed{{}, true, max64}}},
      {"largest unsubscribe", {max64, unsubscribe{max64}}},
      {"failure with a future code", {0, failure{0, static_cast<errc>(65'535), "", ""}}},
  };
  for (const event_kind kind : {event_kind::published,
                                event_kind::opened,
                                event_kind::released,
                                event_kind::removed,
                                event_kind::peer_died,
                                event_kind::resync,
                                event_kind::unfenced,
                                event_kind::alias_moved}) {
    result.push_back(
        {"event",
         {max64, event{kind, longest, max64, max32, INT32_MAX, {base::loss_cause::xid, max32}}}});
  }
  return result;
}

std::vector<sample> past_the_limits() {
  const std::vector<std::uint64_t> too_many(max_batch + 1, 7);
  std::vector<sample> result{
      {"chunks in attach", {1, attach{1, 0, too_many}}},
      {"chunks in opened", {1, opened{0, some_segment(), {}, too_many}}},
      {"chunks in chunks", {1, chunks{1, 0, too_many}}},
      {"chunks in waiting", {1, waiting{0, some_segment(), too_many, {}}}},
      {"times in a report", {0, report{too_many, {}, 0}}},
      {"imports in a report", {0, report{{}, {}, 0, 0, 0, too_many}}},
      {"generations in a keep",
       {0,
        keep{std::vector<std::uint64_t>(max_keep + 1, 7),
             std::vector<std::uint64_t>(max_keep + 1, 7),
             false}}},
      {"failures in a report", {0, report{{}, too_many, 0}}},
      {"names", {1, open_many{std::vector<std::string>(max_open_many + 1, "n"), 0, 0}}},
      {"no names", {1, open_many{{}, 0, 0}}},
      {"metadata", {1, publish{1, some_bytes(max_packet_bytes)}}},
      {"a listing",
       {1, listing{std::vector<segment>(max_packet_bytes / 512, longest_ending_segment()), true}}},
      {"a snapshot",
       {1,
        subscribed{
            std::vector<segment>(max_packet_bytes / 512, longest_ending_segment()), true, 0}}},
      {"event kind 0", {1, event{static_cast<event_kind>(0), "n", 1, 0, 0}}},
      {"event kind 9", {1, event{static_cast<event_kind>(9), "n", 1, 0, 0}}},
      {"parts of a version",
       {1, create_version{"n", 1, std::vector<std::string>(max_parts + 1, "p")}}},
      {"a change of a version", {1, change_version{"n", 1, static_cast<version_change>(3)}}},
      {"aliases of a version",
       {1,
        versions{{{1,
                   version_state::published,
                   false,
                   1,
                   1,
                   std::vector<std::string>(max_batch + 1, "a")}}}}},
      {"the state of a version",
       {1, versions{{{1, static_cast<version_state>(3), false, 1, 1, {}}}}}},
      {"a fence", {1, hello{1, "", 0, 0, static_cast<fence>(3)}}},
      {"a verdict", {1, confirmed{{1}, {static_cast<verdict>(3)}}}},
      {"no questions", {1, confirm{}}},
      {"a question without its generation", {1, confirm{{1, 2}, {3}}}},
      {"questions in a confirm", {1, confirm{too_many, too_many}}},
      {"no verdicts", {1, confirmed{}}},
      {"one verdict too many", {1, confirmed{{1}, {verdict::unchanged, verdict::unchanged}}}},
      {"verdicts in a confirmed",
       {1, confirmed{too_many, std::vector<verdict>(max_batch + 1, verdict::unchanged)}}},
  };
  reserve wanted{"n", 1, 1, some_gpu(), 1, backend::host, lifetime::leased};
  wanted.backend = static_cast<backend>(7);
  result.push_back({"a backend", {1, wanted}});
  wanted.backend = backend::host;
  wanted.lifetime = static_cast<lifetime>(2);
  result.push_back({"a lifetime", {1, wanted}});
  wanted.lifetime = lifetime::leased;
  wanted.device.kind = static_cast<device_kind>(3);
  result.push_back({"a kind of device", {1, wanted}});
  segment shown = some_segment();
  shown.backend = static_cast<backend>(7);
  result.push_back({"a listed backend", {1, listing{{shown}, false}}});
  shown = some_segment();
  shown.ending_waits = static_cast<fence_wait>(3);
  result.push_back({"fence wait", {1, listing{{shown}, false}}});
  shown = some_segment();
  shown.lifetime = static_cast<lifetime>(2);
  result.push_back({"an opened lifetime", {1, opened{0, shown, {}, {}}}});
  return result;
}

}  // namespace gpushm::wire::samples
