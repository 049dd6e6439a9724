// SPDX-License-Identifier: Apache-2.0
#include "broker/descriptor_shelf.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <utility>

#include "base/log.hpp"

namespace gpushm::broker_detail {

namespace {

using std::chrono::milliseconds;

/// How long the keeper may take to read a notification, before that fails.
constexpr milliseconds put_timeout{2'000};
constexpr milliseconds barrier_timeout{5'000};
constexpr int base_of_numbers = 36;  // short names: systemd has little room for them
constexpr char descriptor_mark = '.';
constexpr char journal_mark = '+';

}  // namespace

descriptor_shelf descriptor_shelf::another() const {
  auto store = keeper::descriptor_store::from_environment();
  if (!store) {
    throw error(errc::broker_unreachable,
                "store descriptors",
                {},
                "NOTIFY_SOCKET is not set any longer",
                "do not change the environment of a running broker");
  }
  return {std::move(*store), domain_, next_};
}

std::string descriptor_shelf::name_of(char what, std::uint64_t number) const {
  std::array<char, 16> digits{};
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), number, base_of_numbers).ptr;
  return domain_ + what + std::string(digits.data(), end);
}

std::optional<descriptor_shelf::label> descriptor_shelf::parse(std::string_view name) {
  const auto mark = name.find_last_of(".+");
  if (mark == std::string_view::npos || mark == 0) {
    return std::nullopt;
  }
  label result{std::string(name.substr(0, mark)), name[mark] == journal_mark, 0};
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + mark + 1, end, result.number, base_of_numbers);
  return read.ec == std::errc() && read.ptr == end ? std::optional(std::move(result))
                                                   : std::nullopt;
}

records::descriptor_id descriptor_shelf::put(int descriptor) {
  const records::descriptor_id number = next_->fetch_add(1, std::memory_order_relaxed);
  store_.put(name_of(descriptor_mark, number), std::span(&descriptor, 1), put_timeout);
  return number;
}

void descriptor_shelf::put_journal(int descriptor, std::uint64_t sequence) {
  store_.put(name_of(journal_mark, sequence), std::span(&descriptor, 1), put_timeout);
}

void descriptor_shelf::remove_journal(std::uint64_t sequence) {
  store_.remove(name_of(journal_mark, sequence), put_timeout);
}

bool descriptor_shelf::remove(records::descriptor_id number) noexcept {
  try {
    store_.remove(name_of(descriptor_mark, number), milliseconds(0));
    return true;
  } catch (const error& why) {
    if (why.code() != errc::timed_out) {
      base::log(log_level::warning, why.what());
    }
    return why.code() != errc::timed_out;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void descriptor_shelf::remove_and_wait(std::span<const records::descriptor_id> numbers) {
  for (const records::descriptor_id each : numbers) {
    while (each != 0 && !remove(each)) {
      store_.barrier(barrier_timeout);
    }
  }
  store_.barrier(barrier_timeout);
}

}  // namespace gpushm::broker_detail
