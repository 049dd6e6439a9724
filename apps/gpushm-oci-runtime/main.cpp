// SPDX-License-Identifier: Apache-2.0
// A container runtime that adds GPUs to containers and delegates the rest to runc or crun.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "apps/gpushm-oci-runtime/command_line.hpp"
#include "apps/gpushm-oci-runtime/injection.hpp"
#include "apps/gpushm-oci-runtime/journal.hpp"
#include "apps/gpushm-oci-runtime/low_level.hpp"
#include "apps/gpushm-oci-runtime/settings.hpp"

namespace gpushm::oci_runtime {

namespace {

int run(const command_line& called, const settings& chosen) {
  journal log(called, chosen);
  try {
    refuse_recursion();
    if (called.dry_run) {
      // A dry run does nothing worth logging.
      settings quiet = chosen;
      quiet.log.clear();
      journal none(called, quiet);
      const std::string text = difference(called, quiet, none);
      std::fwrite(text.data(), 1, text.size(), stdout);
      return std::fflush(stdout) == 0 ? 0 : 1;
    }
    // Before any change: without a runtime, the bundle must stay unchanged.
    const std::string runtime = find_low_level(chosen);
    if (called.creates_container()) {
      edit_bundle(called, chosen, log);
    }
    execute_runtime(runtime, called.forwarded);
  } catch (const std::exception& failure) {
    log.fail(failure.what());
    return 1;
  }
}

}  // namespace

}  // namespace gpushm::oci_runtime

int main(int argc, char** argv) {
  namespace runtime = gpushm::oci_runtime;
  runtime::command_line called;
  try {
    called = runtime::read_command_line({argv + 1, argv + argc});
    return runtime::run(called, runtime::load_settings());
  } catch (const std::exception& failure) {
    // The settings, including the log, are unknown.
    const runtime::settings none;
    runtime::journal(called, none).fail(failure.what());
    return 1;
  }
}
