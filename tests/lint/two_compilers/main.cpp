// SPDX-License-Identifier: Apache-2.0
// Errors between the libraries of two compilers and the program, in all combinations.
//
//   program SOCKET                               linked with both libraries
//   program SOCKET GCC_LIBRARY CLANG_LIBRARY     loads them (RTLD_LOCAL)
#include <dlfcn.h>
#include <poll.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <gpushm/broker.hpp>
#include <thread>

#include "party.hpp"

extern "C" {
extern const party party_of_program;
GPUSHM_API void gpushm_private_log(gpushm_log_level level, gpushm_string text) noexcept;
}

namespace {

int failures = 0;

void expect_equal(const std::string& actual, const std::string& expected, const std::string& name) {
  if (actual != expected) {
    std::fprintf(
        stderr, "%s:\n  %s\ninstead of\n  %s\n", name.c_str(), actual.c_str(), expected.c_str());
    ++failures;
  }
}

#ifndef LINKED
const party& loaded(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* const symbol = handle == nullptr ? nullptr : dlsym(handle, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(1);
  }
  return *static_cast<const party*>(symbol);
}
#endif

void throw_number(const char* /*object*/) {
  throw 42;
}

void thrown_and_caught(const party& source, const party& target, const party& between) {
  const std::string name =
      std::string(source.compiler) + " to " + target.compiler + " by " + between.compiler;
  const std::string own = "error not_exportable try \"x\": it is a test (go on)";
  expect_equal(target.caught(source.throw_own, "x"), own, name);

  const std::string of_library = target.caught(source.throw_of_library, "/nowhere/socket");
  expect_equal(of_library.substr(0, of_library.find('"')),
               "error broker_unreachable connect ",
               name + ", by libgpushm");

  // Stack frames of another compiler between the two.
  static party::thrower thrower;
  static const party* passes;
  static int unwound;
  thrower = source.throw_own;
  passes = &between;
  unwound = 0;
  expect_equal(
      target.caught([](const char* object) { passes->pass(thrower, object, unwound); }, "x"),
      own,
      name + ", through");
  expect_equal(std::to_string(unwound), "1", name + ", destructors");
  expect_equal(
      target.caught([](const char* object) { passes->rethrow_in_context(thrower, object); }, "x"),
      "error not_exportable rethrow \"x\": it is a test (go on)",
      name + ", with new context");
  expect_equal(target.caught(throw_number, "x"), "number 42", name + ", a number");

  // From another thread, which has exited.
  std::exception_ptr kept;
  std::thread([&] {
    try {
      source.throw_own("x");
    } catch (...) {
      kept = std::current_exception();
    }
  }).join();
  expect_equal(target.caught_again(kept), own, name + ", from a thread");
}

std::string joined(const std::vector<std::string>& texts) {
  std::string result;
  for (const auto& text : texts) {
    result += text + ";";
  }
  return result;
}

// `partner` dispatches the events of `owner`'s subscription; its handler calls `thrower`.
void dispatched(const party& owner,
                const party& partner,
                const party& thrower,
                const char* socket) {
  const std::string case_name = std::string("dispatch of ") + owner.compiler + "'s by " +
                                partner.compiler + ", " + thrower.compiler + " throws";
  static int round = 0;
  const std::string prefix =
      std::to_string(++round) + "/";  // events of earlier rounds may still arrive
  auto events = owner.subscribe(socket, prefix);
  gpushm::connect_options connecting;
  connecting.socket_path = socket;
  auto producer = gpushm::client::connect(connecting);
  gpushm::create_options creating;
  creating.size_bytes = 4096;
  creating.device = "host";
  std::vector<gpushm::segment> kept;
  for (const char* name : {"one", "two", "three"}) {
    kept.push_back(producer.create(prefix + name, creating));
    kept.back().publish();
  }
  std::vector<std::string> seen;
  std::string failed;
  std::size_t rest = 0;
  while (seen.size() < 3) {
    pollfd ready{events.descriptor(), POLLIN, 0};
    if (poll(&ready, 1, 20'000) != 1) {
      break;
    }
    try {
      rest += partner.dispatch(events, thrower.throw_own, prefix + "two", seen);
    } catch (...) {
      failed += partner.caught_again(std::current_exception());
      // The program catches it by its type, too.
      expect_equal(party_of_program.caught_again(std::current_exception()), failed, case_name);
      rest = 0;
    }
  }
  expect_equal(
      joined(seen), prefix + "one;" + prefix + "two;" + prefix + "three;", case_name + ": events");
  expect_equal(failed,
               "error not_exportable try \"" + prefix + "two\": it is a test (go on)",
               case_name + ": error");
  expect_equal(std::to_string(rest), "1", case_name + ": events after the error");
}

void logged(const party& partner, const party& next, const party& thrower) {
  const std::string name =
      std::string("log to ") + partner.compiler + ", " + thrower.compiler + " throws";
  const auto lines = std::make_shared<std::vector<std::string>>();
  const auto of_next = std::make_shared<std::vector<std::string>>();
  const auto log = [](std::string_view text) {
    gpushm_private_log(GPUSHM_LOG_WARNING, {text.data(), text.size()});
  };
  partner.log_to(lines, thrower.throw_own);
  log("first");
  log("second");
  next.log_to(of_next, throw_number);
  log("third");
  expect_equal(joined(*lines), "first;second;", name);
  expect_equal(joined(*of_next), "third;", name + ", then to " + next.compiler);
  expect_equal(std::to_string(lines.use_count()), "1", name + ": uses of a replaced sink");
  gpushm::set_log_sink({});
  expect_equal(std::to_string(of_next.use_count()), "1", name + ": uses of a removed sink");
}

}  // namespace

int main(int argc, char** argv) {
#ifdef LINKED
  const party& gcc = party_of_gcc;
  const party& clang = party_of_clang;
  if (argc != 2) {
    return 2;
  }
#else
  if (argc != 4) {
    return 2;
  }
  const party& gcc = loaded(argv[2], "party_of_gcc");
  const party& clang = loaded(argv[3], "party_of_clang");
#endif
  expect_equal(gcc.compiler, "gcc", "the first library");
  expect_equal(clang.compiler, "clang", "the second library");
  gpushm::broker_options serving;
  serving.socket_path = argv[1];
  const auto broker = gpushm::broker::start(serving);

  const std::array<const party*, 3> parties{&gcc, &clang, &party_of_program};
  for (const party* one : parties) {
    for (const party* other : parties) {
      for (const party* third : parties) {
        thrown_and_caught(*one, *other, *third);
        dispatched(*one, *other, *third, argv[1]);
        logged(*one, *other, *third);
      }
    }
  }
  if (failures == 0) {
    std::printf("program compiled by %s: every error was caught by its type\n",
                party_of_program.compiler);
  }
  return failures == 0 ? 0 : 1;
}
