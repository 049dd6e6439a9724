// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "apps/gpushm/arguments.hpp"

namespace gpushm::cli {

/// Adds the command `name` to `cdi`: `add` declares its options, which fill an `Arguments`, and
/// `run` executes the command and returns the exit status. `Arguments` has a member `json` if the
/// command can report errors as JSON.
template <typename Arguments>
CLI::App* add_command(CLI::App& cdi,
                      request& parsed,
                      const char* name,
                      const char* description,
                      void (*add)(CLI::App&, Arguments&),
                      int (*run)(const Arguments&)) {
  // The parser keeps references to the members that it fills.
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* app = cdi.add_subcommand(name, description);
  app->footer("");
  add(*app, *arguments);
  app->callback([&parsed, arguments, run] {
    parsed.run = [arguments, run] { return run(*arguments); };
    if constexpr (requires { arguments->json; }) {
      parsed.json = arguments->json;
    }
  });
  return app;
}

}  // namespace gpushm::cli
