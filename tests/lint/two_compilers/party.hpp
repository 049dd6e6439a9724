// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <gpushm/gpushm.hpp>
#include <memory>
#include <string>
#include <vector>

/// What one compiler's code can do. One library of each compiler has it, and the program too, so
/// that each can throw and catch what another one catches and throws. Shared objects: one thread.
struct party {
  using thrower = void (*)(const char* object);

  const char* compiler;
  /// Throws an error that this code makes: not_exportable.
  thrower throw_own;
  /// Throws an error that libgpushm makes: broker_unreachable, for the socket `object`.
  thrower throw_of_library;
  /// Calls `throws`. How its exception is known here: by its type, its base, a pointer to it, and
  /// what it says. "error CODE MESSAGE", or what else it was.
  std::string (*caught)(thrower throws, const char* object);
  /// The same, of an exception that another thread, or nobody, has thrown.
  std::string (*caught_again)(const std::exception_ptr& failure);
  /// Lets what `throws` throws pass, and adds one to `unwound`.
  void (*pass)(thrower throws, const char* object, int& unwound);
  /// Catches it, and throws it told from another point of view.
  void (*told_anew)(thrower throws, const char* object);

  gpushm::subscription (*subscribe)(const char* socket, const std::string& prefix);
  /// Adds the names of the events to `seen`; calls `throws` for an event of the name `bad`.
  std::size_t (*dispatch)(gpushm::subscription& to,
                          thrower throws,
                          const std::string& bad,
                          std::vector<std::string>& seen);
  /// A sink that keeps the lines, and calls `throws` after each.
  void (*log_to)(const std::shared_ptr<std::vector<std::string>>& lines, thrower throws);
};

#define PARTY_EXPORT __attribute__((visibility("default")))
extern "C" {
PARTY_EXPORT extern const party party_of_gcc;
PARTY_EXPORT extern const party party_of_clang;
}
