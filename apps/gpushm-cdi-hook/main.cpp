// SPDX-License-Identifier: Apache-2.0
// The program `gpushm-cdi-hook NAME …`: the same as `gpushm cdi hook NAME …`.
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "apps/gpushm-cdi-hook/run_hook.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "containers/hook/hook.hpp"

int main(int argc, char** argv) {
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  try {
    return gpushm::cdi_hook::run_hook({words.begin() + (words.empty() ? 0 : 1), words.end()});
  } catch (const gpushm::cli::usage_error& failure) {
    gpushm::hook::warn(failure.what());
    return gpushm::cli::exit_usage;
  } catch (const std::exception& failure) {
    gpushm::hook::warn(failure.what());
    return gpushm::cli::exit_failed;
  }
}
