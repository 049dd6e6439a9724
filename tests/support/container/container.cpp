// SPDX-License-Identifier: Apache-2.0
#include "tests/support/container/container.hpp"

#include <iostream>

#include "tests/support/container/support.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_testing {

void use_own_program(container_options& options, const std::string& name) {
  const auto path = own_program(name);
  const auto tree = tree_of_program(path);
  options.argv.insert(options.argv.begin(), path);
  if (tree != "/" && tree != "/usr") {
    options.mounts.push_back({tree, tree, false, true});
  }
}

container container::start(const container_options& options) {
  const auto runc = find_runc();
  if (!runc) {
    throw harness_error("no runc (install it, or set GPUSHM_RUNC)");
  }
  auto created = std::make_unique<gpushm::app::oci::bundle>(*runc, options, "gpushm-test");
  spawn_options run;
  run.argv = created->run_command();
  auto runtime = child::start(run);
  return {std::move(created), std::move(runtime)};
}

container::container(std::unique_ptr<gpushm::app::oci::bundle> created, child runtime)
    : bundle_(std::move(created)), runtime_(std::move(runtime)) {}

container::~container() {
  if (!bundle_) {
    return;
  }
  try {
    bundle_->remove([&] { return runtime_.running(); });
    runtime_.wait_exit(std::chrono::seconds(10));
  } catch (const std::exception& problem) {
    std::cerr << "container " << bundle_->id() << ": " << problem.what() << '\n';
  }
}

std::string container::log_text() const {
  return "\n--- runc's log\n" + bundle_->log_text() + "---";
}

std::string container::all_output() {
  return runtime_.output().all_output() + log_text();
}

std::string container::wait_for_line(const std::string& pattern,
                                     std::chrono::milliseconds timeout,
                                     stream stream) {
  try {
    return runtime_.wait_for_line(pattern, timeout, stream);
  } catch (const harness_error& problem) {
    throw harness_error("container " + bundle_->id() + ": " + problem.what() + log_text());
  }
}

exit_status container::wait_exit(std::chrono::milliseconds timeout) {
  return runtime_.wait_exit(timeout);
}

void container::kill(int signal_number) {
  spawn_options options;
  options.argv = bundle_->command({"kill", bundle_->id(), std::to_string(signal_number)});
  const auto done = run_program(options);
  if (!done.status.success() && running()) {
    throw harness_error("runc kill: " + done.status.text() + "\n" + done.err);
  }
}

run_result container::exec(const std::vector<std::string>& argv) const {
  spawn_options options;
  options.argv = bundle_->command({"exec", bundle_->id()});
  options.argv.insert(options.argv.end(), argv.begin(), argv.end());
  return run_program(options);
}

pid_t container::host_pid() const {
  // runc writes the file while the program is already running.
  std::optional<pid_t> pid;
  const auto written = [&] {
    pid = bundle_->host_pid();
    return pid.has_value();
  };
  if (!eventually(written, std::chrono::seconds(20))) {
    throw harness_error("container " + bundle_->id() + " has not started");
  }
  return *pid;
}

}  // namespace gpushm_testing
