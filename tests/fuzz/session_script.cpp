// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/session_script.hpp"

#include <algorithm>

namespace gpushm_fuzz {

namespace {

using namespace gpushm;

std::string some_name(script& script) {
  constexpr const char* usual[] = {"a", "b", "kv/0", "kv/1", "w/llama", "w/llama2"};
  const std::size_t which = script.pick(10);
  if (which < std::size(usual)) {
    return usual[which];
  }
  if (which == 6) {
    return std::string(255, 'n');
  }
  const auto raw = script.bytes(script.byte() * 2U);
  return {reinterpret_cast<const char*>(raw.data()), raw.size()};
}

std::vector<std::uint64_t> some_sizes(script& script) {
  const std::uint8_t count = script.byte();
  // Occasionally a full batch.
  std::vector<std::uint64_t> sizes(count < 250 ? count % 6 : 253, 4096);
  for (std::size_t i = 0; i < std::min<std::size_t>(sizes.size(), 3); ++i) {
    sizes[i] = script.pick(8) == 7 ? script.number() : 4096;
  }
  return sizes;
}

device_id some_device(script& script) {
  const std::size_t which = script.pick(8);
  if (which < 5) {
    return {};
  }
  if (which < 7) {
    return {device_kind::gpu, "GPU-0", "0000:18:00.0", 0};
  }
  return {device_kind::mig, std::string(script.byte(), 'u'), std::string(script.byte(), 'p'), 1};
}

wire::reserve some_reserve(script& script, const std::vector<generation>& known) {
  wire::reserve result;
  result.name = some_name(script);
  result.chunk_count =
      static_cast<std::uint32_t>(script.pick(8) == 7 ? script.number() : script.pick(5));
  result.allocated_bytes = script.pick(8) == 7 ? script.number() : 4096ULL * result.chunk_count;
  result.size_bytes = script.pick(8) == 7 ? script.number() : result.allocated_bytes;
  result.device = some_device(script);
  result.backend = script.pick(8) == 7 || result.device.kind != device_kind::host
                       ? backend::cuda_vmm
                       : backend::host;
  const std::size_t which = script.pick(8);
  result.lifetime = which % 2 == 0 ? lifetime::leased : lifetime::persistent;
  result.replaces = which < 6 ? 0 : some_generation(script, known);
  return result;
}

/// A reservation of exporter-bound memory.
wire::reserve some_bound_reserve(script& script) {
  wire::reserve result;
  result.name = some_name(script);
  const std::size_t which = script.pick(8);
  result.backend = which % 2 == 0 ? backend::cuda_ipc : backend::cuda_pool;
  result.chunk_count = which == 7 ? static_cast<std::uint32_t>(script.number())
                                  : static_cast<std::uint32_t>(which % 2);
  result.allocated_bytes = 4096;
  result.size_bytes = script.pick(8) == 7 ? script.number() : 1000;
  result.offset_bytes = script.pick(8) == 7 ? script.number() : 96;
  result.device =
      which == 6 ? some_device(script) : device_id{device_kind::gpu, "GPU-0", "0000:18:00.0", 0};
  result.lifetime = script.pick(8) == 7 ? lifetime::persistent : lifetime::leased;
  // 255: more than the limit; 0: missing.
  const std::uint8_t size = script.byte();
  result.ticket.assign(size == 255 ? 4097 : size, std::byte{size});
  return result;
}

wire::verdict some_verdict(script& script) {
  const std::size_t which = script.pick(8);
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

gpushm::generation some_generation(script& script, const std::vector<gpushm::generation>& known) {
  const std::uint8_t which = script.byte();
  return which < 240 && !known.empty() ? known[known.size() - 1 - which % known.size()]
                                       : script.number();
}

gpushm::wire::body some_body(script& script, const std::vector<gpushm::generation>& known) {
  const auto small = [&] { return static_cast<std::uint32_t>(script.byte()); };
  switch (script.pick(28)) {
    case 0:
      return wire::hello{script.byte(), "boot", 1, 1};
    case 1:
    case 2:
      return some_reserve(script, known);
    case 3:
    case 4: {
      const auto generation = some_generation(script, known);
      const std::uint32_t first = script.pick(4) == 3 ? small() : 0;
      return wire::attach{generation, first, some_sizes(script)};
    }
    case 5:
    case 6: {
      const auto generation = some_generation(script, known);
      // 255: more than the limit.
      const std::uint8_t size = script.byte();
      return wire::publish{generation, std::vector<std::byte>(size == 255 ? 65'537 : size)};
    }
    case 7:
    case 8: {
      auto name = some_name(script);
      const std::uint64_t expected = script.pick(8) == 7 ? script.number() : 0;
      return wire::open{std::move(name), expected, small()};
    }
    case 9: {
      wire::open_many result;
      for (std::size_t i = 1 + script.pick(5); i > 0; --i) {
        result.names.push_back(some_name(script));
      }
      result.timeout_ms = small();
      return result;
    }
    case 10: {
      const auto generation = some_generation(script, known);
      return wire::fetch_chunks{generation, static_cast<std::uint32_t>(script.number())};
    }
    case 11:
    case 12: {
      const auto generation = some_generation(script, known);
      return wire::release{generation, static_cast<std::uint32_t>(script.number())};
    }
    case 13: {
      auto name = some_name(script);
      return wire::remove{std::move(name),
                          script.pick(4) == 3 ? some_generation(script, known) : 0};
    }
    case 14: {
      auto prefix = some_name(script);
      return wire::list{script.pick(2) == 0 ? "" : std::move(prefix), some_name(script)};
    }
    case 15:
      return wire::stat{some_name(script)};
    case 16:
      return wire::subscribe{script.pick(2) == 0 ? "" : some_name(script)};
    case 17:
      return wire::unsubscribe{script.number()};
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
      return script.pick(4) == 0 ? wire::body{wire::listing{}}
                                 : wire::body{wire::cancel{script.byte()}};
    case 23:
      return script.pick(2) == 0 ? wire::body{wire::event{}} : wire::body{wire::confirm{{1}, {1}}};
    case 24:
      return wire::report{{script.number(), script.number()}, {script.number()}, script.number()};
    case 26: {
      wire::keep result;
      for (std::size_t i = script.pick(4); i > 0; --i) {
        result.generations.push_back(some_generation(script, known));
        result.counts.push_back(script.number());
      }
      result.more = script.pick(4) == 3;
      return result;
    }
    case 27:
      return wire::unfence{some_name(script)};
    default:
      return some_bound_reserve(script);
  }
}

gpushm::wire::confirmed some_confirmed(script& script, std::uint64_t question) {
  wire::confirmed result{{question}, {some_verdict(script)}};
  while (script.pick(8) == 7 && result.questions.size() < wire::max_batch) {
    result.questions.push_back(script.pick(2) == 0 ? question : script.number());
    result.verdicts.push_back(some_verdict(script));
  }
  return result;
}

}  // namespace gpushm_fuzz
