// SPDX-License-Identifier: Apache-2.0
#include <exception>

#include "apps/gpushm/command_line.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/end_signal.hpp"

namespace gpushm::cli {

namespace {

int fail(const error& failure, bool as_json, int status) {
  note(failure.what());
  if (as_json) {
    print_json(json{{"error", to_json(failure)}});
  }
  return status;
}

int run(const request& parsed) {
  try {
    const int status = parsed.run();
    flush_output();
    return status;
  } catch (const usage_error& failure) {
    return fail(failure, parsed.json, exit_usage);
  } catch (const not_compared& failure) {
    return fail(failure, parsed.json, exit_not_compared);
  } catch (const error& failure) {
    return fail(failure, parsed.json, exit_failed);
  } catch (const std::bad_alloc&) {
    return fail(error(errc::out_of_memory, {}, {}, "this process is out of memory"),
                parsed.json,
                exit_failed);
  } catch (const std::exception& failure) {
    return fail(error(errc::system_error, {}, {}, failure.what()), parsed.json, exit_failed);
  }
}

}  // namespace

}  // namespace gpushm::cli

int main(int argc, char** argv) {
  gpushm::app::end_on_signals();
  try {
    const gpushm::cli::request parsed = gpushm::cli::parse(argc, argv);
    return parsed.run ? gpushm::cli::run(parsed) : parsed.status;
  } catch (const std::exception& failure) {
    gpushm::cli::note(failure.what());
    return gpushm::cli::exit_failed;
  }
}
