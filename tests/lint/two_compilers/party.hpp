// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <gpushm/gpushm.hpp>
#include <memory>
#include <string>
#include <vector>

/// Functions compiled by one compiler. One library of each compiler has this table, and so does the
/// program, so that each can throw exceptions that another one catches.
/// Thread-safety: shared objects: one thread.
struct party {
  using thrower = void (*)(const char* object);

  const char* compiler;
  /// Throws an error created by this code: not_exportable.
  thrower throw_own;
  /// Throws an error created by libgpushm: broker_unreachable, for the socket `object`.
  thrower throw_of_library;
  /// Calls `throws` and describes its exception by type, base class, pointer to it, and message:
  /// "error CODE MESSAGE", or another description.
  std::string (*caught)(thrower throws, const char* object);
  /// As `caught`, for an exception that another thread has thrown, or an exception_ptr without a
  /// throw.
  std::string (*caught_again)(const std::exception_ptr& failure);
  /// Lets the exception of `throws` pass, and adds one to `unwound`.
  void (*pass)(thrower throws, const char* object, int& unwound);
  /// Catches it, and throws it with another operation as context.
  void (*rethrow_in_context)(thrower throws, const char* object);

  gpushm::subscription (*subscribe)(const char* socket, const std::string& prefix);
  /// Adds the names of the events to `seen`; calls `throws` for an event named `bad`.
  std::size_t (*dispatch)(gpushm::subscription& subscription,
                          thrower throws,
                          const std::string& bad,
                          std::vector<std::string>& seen);
  /// Installs a log sink that keeps the lines and calls `throws` after each.
  void (*log_to)(const std::shared_ptr<std::vector<std::string>>& lines, thrower throws);
};

#define PARTY_EXPORT __attribute__((visibility("default")))
extern "C" {
PARTY_EXPORT extern const party party_of_gcc;
PARTY_EXPORT extern const party party_of_clang;
}
