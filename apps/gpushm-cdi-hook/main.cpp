// SPDX-License-Identifier: Apache-2.0
// The program `gpushm-cdi-hook NAME …`: what `gpushm cdi hook NAME …` does.
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "cdi/hook.hpp"
#include "commands.hpp"
#include "output.hpp"

int main(int argc, char** argv) {
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  try {
    return gpushm::cli::run_hook({words.begin() + (words.empty() ? 0 : 1), words.end()});
  } catch (const gpushm::cli::usage_error& failure) {
    gpushm::cli::note(failure.what());
    return gpushm::cli::exit_usage;
  } catch (const std::exception& failure) {
    gpushm::cli::note(failure.what());
    return gpushm::cli::exit_failed;
  }
}
