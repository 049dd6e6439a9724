// SPDX-License-Identifier: Apache-2.0
// Compiled by each compiler into a library, and into the program. PARTY: name of the table.
#include "party.hpp"

#include <stdexcept>

namespace {

void throw_own(const char* object) {
  throw gpushm::error(gpushm::errc::not_exportable, "try", object, "it is a test", "go on");
}

void throw_of_library(const char* object) {
  gpushm::connect_options options;
  options.socket_path = object;
  const auto connection = gpushm::client::connect(options);
}

std::string described(const gpushm::error& failure) {
  return "error " + std::string(gpushm::to_string(failure.code())) + " " + failure.what();
}

/// Describes the exception that is being handled.
std::string describe_current() {
  std::string by_type;
  try {
    throw;
  } catch (const gpushm::error& failure) {
    by_type = described(failure);
  } catch (const std::exception& failure) {
    by_type = std::string("exception ") + failure.what();
  } catch (int number) {
    by_type = "number " + std::to_string(number);
  } catch (...) {
    by_type = "something";
  }
  try {
    throw;
  } catch (const std::exception& failure) {
    const auto* const derived = dynamic_cast<const gpushm::error*>(&failure);
    const bool same = typeid(failure) == typeid(gpushm::error);
    if ((derived == nullptr ? std::string("exception ") + failure.what() : described(*derived)) !=
            by_type ||
        same != (derived != nullptr)) {
      return "differs when caught as base class: " + by_type;
    }
  } catch (...) {
  }
  return by_type;
}

std::string caught(party::thrower throws, const char* object) {
  try {
    throws(object);
  } catch (...) {
    return describe_current();
  }
  return "nothing";
}

std::string caught_again(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (...) {
    return describe_current();
  }
}

void pass(party::thrower throws, const char* object, int& unwound) {
  struct counter {
    int& count;
    ~counter() { ++count; }
  } const one{unwound};
  throws(object);
}

void rethrow_in_context(party::thrower throws, const char* object) {
  try {
    throws(object);
  } catch (const gpushm::error& failure) {
    throw failure.in("rethrow", failure.object());
  }
}

gpushm::subscription subscribe(const char* socket, const std::string& prefix) {
  gpushm::connect_options options;
  options.socket_path = socket;
  return gpushm::client::connect(options).subscribe(prefix);
}

std::size_t dispatch(gpushm::subscription& subscription,
                     party::thrower throws,
                     const std::string& bad,
                     std::vector<std::string>& seen) {
  return subscription.dispatch([&](const gpushm::event& happened) {
    seen.push_back(happened.name);
    if (happened.name == bad) {
      throws(bad.c_str());
    }
  });
}

void log_to(const std::shared_ptr<std::vector<std::string>>& lines, party::thrower throws) {
  gpushm::set_log_sink([lines, throws](gpushm::log_level, std::string_view line) {
    lines->emplace_back(line);
    throws("a log sink");
  });
}

}  // namespace

extern "C" {
PARTY_EXPORT extern const party PARTY;
}
const party PARTY{
#ifdef __clang__
    "clang",
#else
    "gcc",
#endif
    throw_own,
    throw_of_library,
    caught,
    caught_again,
    pass,
    rethrow_in_context,
    subscribe,
    dispatch,
    log_to};
