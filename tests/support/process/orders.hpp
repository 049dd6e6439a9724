// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "gpushm/error.hpp"

namespace gpushm_testing {

/// The words of an order after its name.
class order_words {
 public:
  explicit order_words(std::istringstream words) : words_(std::move(words)) {}

  /// The next word; empty after the last one.
  [[nodiscard]] std::string text() {
    std::string result;
    words_ >> result;
    return result;
  }
  /// The next word as a number; 0 after the last one.
  [[nodiscard]] std::uint64_t number() {
    std::uint64_t result = 0;
    words_ >> result;
    return result;
  }

 private:
  std::istringstream words_;
};

/// The orders of an agent, which is a process that a test starts: it reads one order a line from
/// standard input, and replies to each with one line, "ok TEXT" or "error CODE TEXT".
class order_table {
 public:
  /// `action` takes `order_words&` or nothing, and returns a text or nothing. What it throws is the
  /// reply.
  template <typename Action>
  void add(const std::string& name, Action&& action) {
    actions_[name] = [action = std::forward<Action>(action)](order_words& words) -> std::string {
      if constexpr (std::is_invocable_v<Action&, order_words&>) {
        return reply_of([&] { return action(words); });
      } else {
        return reply_of(action);
      }
    };
  }

  /// Executes orders until the end of the input.
  void run() {
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << reply(line) << std::endl;
    }
  }

 private:
  template <typename Action>
  static std::string reply_of(const Action& action) {
    if constexpr (std::is_void_v<decltype(action())>) {
      action();
      return {};
    } else {
      return action();
    }
  }

  std::string reply(const std::string& line) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    try {
      const auto action = actions_.find(name);
      if (action == actions_.end()) {
        throw gpushm::error(gpushm::errc::invalid_argument, "agent", name, "unknown order");
      }
      order_words rest(std::move(words));
      return "ok " + action->second(rest);
    } catch (const gpushm::error& failure) {
      return "error " + std::string(to_string(failure.code())) + " " + failure.what();
    } catch (const std::exception& failure) {
      return std::string("error exception ") + failure.what();
    }
  }

  std::map<std::string, std::function<std::string(order_words&)>> actions_;
};

}  // namespace gpushm_testing
