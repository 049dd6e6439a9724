// SPDX-License-Identifier: Apache-2.0
#include "tests/wire/ticket_samples.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "protocol/wire/crc32.hpp"

namespace gpushm::wire::ticket_samples {

// ---- hand-written bytes ----

bytes of(std::string_view text) {
  bytes result(text.size());
  std::transform(text.begin(), text.end(), result.begin(), [](char each) {
    return static_cast<std::byte>(each);
  });
  return result;
}

bytes little(std::uint64_t value, std::size_t size) {
  bytes result;
  for (std::size_t i = 0; i < size; ++i) {
    result.push_back(static_cast<std::byte>(value & 0xFFU));
    value >>= 8U;
  }
  return result;
}

bytes counting(unsigned first, std::size_t count) {
  bytes result;
  for (unsigned i = 0; i < count; ++i) {
    result.push_back(static_cast<std::byte>(first + i));
  }
  return result;
}

void add(bytes& target, const bytes& more) {
  target.insert(target.end(), more.begin(), more.end());
}

bytes one_field(std::uint16_t number, const bytes& value) {
  bytes result = little(number, 2);
  add(result, little(value.size(), 4));
  add(result, value);
  return result;
}

std::uint32_t slow_crc(const bytes& data) {
  std::uint32_t value = 0xFFFFFFFFU;
  for (const std::byte each : data) {
    value ^= std::to_integer<std::uint32_t>(each);
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1U) ^ ((value & 1U) != 0 ? 0xEDB88320U : 0U);
    }
  }
  return value ^ 0xFFFFFFFFU;
}

void put(bytes& target, std::size_t offset, const bytes& value) {
  std::copy(value.begin(), value.end(), target.begin() + static_cast<std::ptrdiff_t>(offset));
}

bytes refit(bytes data) {
  EXPECT_GE(data.size(), header_bytes);
  put(data, 0, of("GPUSHMD\n"));
  put(data, 12, little(data.size(), 4));
  bytes covered(data.begin(), data.begin() + 16);
  covered.insert(covered.end(), data.begin() + header_bytes, data.end());
  put(data, 16, little(crc32(covered), 4));
  return data;
}

bytes whole(const bytes& fields, std::uint16_t version, std::uint16_t oldest) {
  bytes result(8);
  add(result, little(version, 2));
  add(result, little(oldest, 2));
  result.resize(header_bytes);
  add(result, fields);
  return refit(result);
}

bytes place::flat() const {
  bytes result;
  for (const auto& [number, value] : fields) {
    add(result, one_field(number, value));
  }
  add(result, tail);
  return result;
}

place parts::all() const {
  place result = top;
  const std::array<std::pair<std::uint16_t, const place*>, 6> inner{
      {{5, &device}, {6, &exporter}, {16, &legacy}, {17, &pool}, {18, &broker}, {20, &word}}};
  for (const auto& [number, part] : inner) {
    if (auto flat = part->flat(); !flat.empty()) {
      result.fields.try_emplace(number, std::move(flat));
    }
  }
  return result;
}

bytes parts::whole() const {
  return ticket_samples::whole(all().flat());
}

// ---- samples ----

namespace {

ticket with_device(gpushm::backend backend) {
  ticket value;
  value.backend = backend;
  value.size_bytes = 0x1234;
  value.offset_bytes = 0x200;
  value.allocated_bytes = 0x200000;
  value.device = {device_kind::gpu, "GPU-01234567-89ab-cdef-0123-456789abcdef", "0000:18:00.0", 3};
  value.exporter = {"3f0e6d5c-0000-4000-8000-0123456789ab",
                    4026531836,
                    4711,
                    987654321,
                    counting<std::uint8_t, 16>(0xA0)};
  value.address = 0x7F0012345000;
  value.buffer_id = 42;
  return value;
}

broker_reference reference() {
  return {"/run/gpushm/d/default/socket",
          counting<std::uint8_t, 16>(0x10),
          "w/llama-\xC3\xA9",
          0x00F1F2F3F4F5F6F7};
}

}  // namespace

std::vector<named> of_each_kind() {
  std::vector<named> result;
  auto legacy = with_device(backend::cuda_ipc);
  legacy.legacy = {counting<std::byte, 64>(1), std::uint16_t{8}};
  result.push_back({"legacy", legacy});
  legacy.legacy->pid_offset.reset();
  result.push_back({"legacy_unproved", legacy});
  auto pool = with_device(backend::cuda_pool);
  pool.pool = {counting<std::byte, 64>(0x80), 7};
  result.push_back({"pool", pool});
  auto vmm = with_device(backend::cuda_vmm);
  vmm.device.kind = device_kind::mig;
  vmm.device.uuid = "MIG-01234567-89ab-cdef-0123-456789abcdef";
  vmm.broker = reference();
  result.push_back({"vmm_broker", vmm});
  ticket timeline;
  timeline.backend = backend::timeline;
  timeline.size_bytes = timeline.allocated_bytes = 8;
  timeline.exporter = with_device(backend::cuda_ipc).exporter;
  timeline.word = {5, 0x1234, 0xABCDEF0123, 6, 511};
  result.push_back({"timeline", timeline});
  ticket host;
  host.size_bytes = host.allocated_bytes = 4096;
  host.exporter.epoch = counting<std::uint8_t, 16>(0x55);
  host.broker = {"socket", counting<std::uint8_t, 16>(0x10), "table", 1};
  result.push_back({"host_broker", host});
  return result;
}

parts every_field() {
  parts p;
  p.top.fields = {{1, little(2, 1)},
                  {2, little(0x1234, 8)},
                  {3, little(0x200, 8)},
                  {4, little(0x200000, 8)},
                  {7, little(0x7F0012345000, 8)},
                  {8, little(42, 8)}};
  p.device.fields = {{1, little(1, 1)},
                     {2, of("GPU-01234567-89ab-cdef-0123-456789abcdef")},
                     {3, of("0000:18:00.0")},
                     {4, little(3, 4)}};
  p.exporter.fields = {{1, of("3f0e6d5c-0000-4000-8000-0123456789ab")},
                       {2, little(4026531836, 8)},
                       {3, little(4711, 4)},
                       {4, little(987654321, 8)},
                       {5, counting(0xA0, 16)}};
  p.legacy.fields = {{1, counting(1, 64)}, {2, little(8, 2)}};
  p.pool.fields = {{1, counting(0x80, 64)}, {2, little(7, 8)}};
  p.broker.fields = {{1, of("/run/gpushm/d/default/socket")},
                     {2, counting(0x10, 16)},
                     {3, of("w/llama-\xC3\xA9")},
                     {4, little(0x00F1F2F3F4F5F6F7, 8)}};
  return p;
}

parts of_timeline() {
  parts p;
  p.top.fields = {{1, little(5, 1)}, {2, little(8, 8)}, {4, little(8, 8)}};
  p.device.fields = {{4, little(0xFFFFFFFF, 4)}};
  p.exporter.fields = {{5, counting(0xA0, 16)}};
  p.word.fields = {{1, little(5, 4)},
                   {2, little(0x1234, 8)},
                   {3, little(0xABCDEF0123, 8)},
                   {4, little(6, 4)},
                   {5, little(511, 4)}};
  return p;
}

ticket value_of_every_field() {
  auto value = with_device(backend::cuda_ipc);
  value.legacy = {counting<std::byte, 64>(1), std::uint16_t{8}};
  value.pool = {counting<std::byte, 64>(0x80), 7};
  value.broker = reference();
  return value;
}

bytes future() {
  parts p = every_field();
  p.device.tail = one_field(7, of("what a device has then"));
  p.exporter.tail = one_field(6, little(1, 1));
  p.legacy.tail = one_field(3, {});
  p.pool.tail = one_field(40000, of("x"));
  p.broker.tail = one_field(5, one_field(1, one_field(1, of("deep"))));
  place place = p.all();
  place.fields[9] = little(99, 8);
  place.fields[19] = one_field(1, of("a way of the future"));
  place.fields[65535] = {};
  bytes fields;
  for (auto at = place.fields.rbegin(); at != place.fields.rend(); ++at) {
    add(fields, one_field(at->first, at->second));
  }
  return whole(fields, 2, 1);
}

bytes too_new() {
  return whole(of("no fields as version 1 has them"), 3, 2);
}

// ---- helpers ----

ticket decode_exactly(std::span<const std::byte> data) {
  const bytes copy(data.begin(), data.end());
  return decode_ticket(copy);
}

std::optional<error> rejection(std::span<const std::byte> data) {
  try {
    static_cast<void>(decode_exactly(data));
  } catch (const error& why) {
    EXPECT_EQ(why.operation(), "read ticket");
    EXPECT_EQ(why.object(), "");
    return why;
  }
  return std::nullopt;
}

namespace {

void expect_rejected(std::span<const std::byte> data, errc code, const std::string& text) {
  const auto why = rejection(data);
  ASSERT_TRUE(why) << "was read: " << text;
  EXPECT_EQ(why->code(), code) << why->what();
  EXPECT_EQ(why->what(), text);
}

}  // namespace

void expect_invalid(std::span<const std::byte> data, const std::string& cause) {
  expect_rejected(
      data,
      errc::invalid_ticket,
      "read ticket: " + cause + " (transfer the exporter's bytes completely and unchanged)");
}

void expect_unsupported(std::span<const std::byte> data, const std::string& cause) {
  expect_rejected(data,
                  errc::unsupported_version,
                  "read ticket: " + cause + " (update gpushm here, or export with version 1)");
}

std::string golden_path(const std::string& name) {
  return std::string(GPUSHM_GOLDEN_DIR) + "/tickets/" + name + ".bin";
}

bytes golden(const std::string& name) {
  std::ifstream file(golden_path(name), std::ios::binary);
  EXPECT_TRUE(file) << golden_path(name);
  return of(std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
}

std::vector<std::string> golden_names() {
  std::vector<std::string> result{"future", "too_new"};
  for (const auto& each : of_each_kind()) {
    result.emplace_back(each.name);
  }
  return result;
}

}  // namespace gpushm::wire::ticket_samples
