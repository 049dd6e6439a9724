// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/session_script.hpp"

#include <algorithm>

namespace gpushm_fuzz {

namespace {

using namespace gpushm;

std::string some_name(script& from) {
  constexpr const char* usual[] = {"a", "b", "kv/0", "kv/1", "w/llama", "w/llama2"};
  const std::size_t which = from.pick(10);
  if (which < std::size(usual)) {
    return usual[which];
  }
  if (which == 6) {
    return std::string(255, 'n');
  }
  const auto raw = from.bytes(from.byte() * 2U);
  return {reinterpret_cast<const char*>(raw.data()), raw.size()};
}

generation some_generation(script& from, const std::vector<generation>& known) {
  const std::uint8_t which = from.byte();
  return which < 240 && !known.empty() ? known[known.size() - 1 - which % known.size()]
                                       : from.number();
}

std::vector<std::uint64_t> some_sizes(script& from) {
  const std::uint8_t count = from.byte();
  // Occasionally a full batch.
  std::vector<std::uint64_t> sizes(count < 250 ? count % 6 : 253, 4096);
  for (std::size_t i = 0; i < std::min<std::size_t>(sizes.size(), 3); ++i) {
    sizes[i] = from.pick(8) == 7 ? from.number() : 4096;
  }
  return sizes;
}

device_id some_device(script& from) {
  const std::size_t which = from.pick(8);
  if (which < 5) {
    return {};
  }
  if (which < 7) {
    return {device_kind::gpu, "GPU-0", "0000:18:00.0", 0};
  }
  return {device_kind::mig, std::string(from.byte(), 'u'), std::string(from.byte(), 'p'), 1};
}

wire::reserve some_reserve(script& from, const std::vector<generation>& known) {
  wire::reserve result;
  result.name = some_name(from);
  result.chunk_count = static_cast<std::uint32_t>(from.pick(8) == 7 ? from.number() : from.pick(5));
  result.allocated_bytes = from.pick(8) == 7 ? from.number() : 4096ULL * result.chunk_count;
  result.size_bytes = from.pick(8) == 7 ? from.number() : result.allocated_bytes;
  result.device = some_device(from);
  result.backend = from.pick(8) == 7 || result.device.kind != device_kind::host ? backend::cuda_vmm
                                                                                : backend::host;
  const std::size_t which = from.pick(8);
  result.lifetime = which % 2 == 0 ? lifetime::leased : lifetime::persistent;
  result.replaces = which < 6 ? 0 : some_generation(from, known);
  return result;
}

/// A reservation of exporter-bound memory.
wire::reserve some_bound_reserve(script& from) {
  wire::reserve result;
  result.name = some_name(from);
  const std::size_t which = from.pick(8);
  result.backend = which % 2 == 0 ? backend::cuda_ipc : backend::cuda_pool;
  result.chunk_count = which == 7 ? static_cast<std::uint32_t>(from.number())
                                  : static_cast<std::uint32_t>(which % 2);
  result.allocated_bytes = 4096;
  result.size_bytes = from.pick(8) == 7 ? from.number() : 1000;
  result.offset_bytes = from.pick(8) == 7 ? from.number() : 96;
  result.device =
      which == 6 ? some_device(from) : device_id{device_kind::gpu, "GPU-0", "0000:18:00.0", 0};
  result.lifetime = from.pick(8) == 7 ? lifetime::persistent : lifetime::leased;
  // 255: more than the limit; 0: missing.
  const std::uint8_t size = from.byte();
  result.ticket.assign(size == 255 ? 4097 : size, std::byte{size});
  return result;
}

wire::verdict some_verdict(script& from) {
  const std::size_t which = from.pick(8);
  return which < 6    ? wire::verdict::unchanged
         : which == 6 ? wire::verdict::changed
                      : wire::verdict::not_shared;
}

}  // namespace

std::uint8_t script::byte() {
  if (left_.empty()) {
    return 0;
  }
  const std::uint8_t value = left_.front();
  left_ = left_.subspan(1);
  return value;
}

std::uint64_t script::number() {
  switch (pick(3)) {
    case 0:
      return byte();
    case 1:
      return (std::uint64_t{1} << (byte() & 63U)) - byte() % 3U;
    default: {
      std::uint64_t value = 0;
      for (int i = 0; i < 8; ++i) {
        value = value << 8U | byte();
      }
      return value;
    }
  }
}

std::span<const std::byte> script::bytes(std::size_t size) {
  const auto part = left_.first(std::min(size, left_.size()));
  left_ = left_.subspan(part.size());
  return std::as_bytes(part);
}

gpushm::wire::body some_body(script& from, const std::vector<gpushm::generation>& known) {
  const auto small = [&] { return static_cast<std::uint32_t>(from.byte()); };
  switch (from.pick(28)) {
    case 0:
      return wire::hello{from.byte(), "boot", 1, 1};
    case 1:
    case 2:
      return some_reserve(from, known);
    case 3:
    case 4: {
      const auto generation = some_generation(from, known);
      const std::uint32_t first = from.pick(4) == 3 ? small() : 0;
      return wire::attach{generation, first, some_sizes(from)};
    }
    case 5:
    case 6: {
      const auto generation = some_generation(from, known);
      // 255: more than the limit.
      const std::uint8_t size = from.byte();
      return wire::publish{generation, std::vector<std::byte>(size == 255 ? 65'537 : size)};
    }
    case 7:
    case 8: {
      auto name = some_name(from);
      const std::uint64_t expected = from.pick(8) == 7 ? from.number() : 0;
      return wire::open{std::move(name), expected, small()};
    }
    case 9: {
      wire::open_many result;
      for (std::size_t i = 1 + from.pick(5); i > 0; --i) {
        result.names.push_back(some_name(from));
      }
      result.timeout_ms = small();
      return result;
    }
    case 10: {
      const auto generation = some_generation(from, known);
      return wire::fetch_chunks{generation, static_cast<std::uint32_t>(from.number())};
    }
    case 11:
    case 12: {
      const auto generation = some_generation(from, known);
      return wire::release{generation, static_cast<std::uint32_t>(from.number())};
    }
    case 13: {
      auto name = some_name(from);
      return wire::remove{std::move(name), from.pick(4) == 3 ? some_generation(from, known) : 0};
    }
    case 14: {
      auto prefix = some_name(from);
      return wire::list{from.pick(2) == 0 ? "" : std::move(prefix), some_name(from)};
    }
    case 15:
      return wire::stat{some_name(from)};
    case 16:
      return wire::subscribe{from.pick(2) == 0 ? "" : some_name(from)};
    case 17:
      return wire::unsubscribe{from.number()};
    case 18:
      return wire::bye{};
    // Messages that only brokers send.
    case 19:
      return wire::done{};
    case 20:
      return wire::reserved{1, 1};
    case 21:
      return wire::opened{};
    case 22:
      return from.pick(4) == 0 ? wire::body{wire::listing{}}
                               : wire::body{wire::cancel{from.byte()}};
    case 23:
      return from.pick(2) == 0 ? wire::body{wire::event{}} : wire::body{wire::confirm{{1}, {1}}};
    case 24:
      return wire::report{{from.number(), from.number()}, {from.number()}, from.number()};
    case 26: {
      wire::keep result;
      for (std::size_t i = from.pick(4); i > 0; --i) {
        result.generations.push_back(some_generation(from, known));
        result.counts.push_back(from.number());
      }
      result.more = from.pick(4) == 3;
      return result;
    }
    case 27:
      return wire::unfence{some_name(from)};
    default:
      return some_bound_reserve(from);
  }
}

gpushm::wire::confirmed some_confirmed(script& from, std::uint64_t question) {
  wire::confirmed result{{question}, {some_verdict(from)}};
  while (from.pick(8) == 7 && result.questions.size() < wire::max_batch) {
    result.questions.push_back(from.pick(2) == 0 ? question : from.number());
    result.verdicts.push_back(some_verdict(from));
  }
  return result;
}

}  // namespace gpushm_fuzz
