// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process/child_output.hpp"

#include <poll.h>
#include <unistd.h>

#include <regex>

#include "base/files/syscall.hpp"
#include "tests/support/process/harness_error.hpp"

namespace gpushm_testing {

child_output::child_output(gpushm::base::unique_fd out, gpushm::base::unique_fd err) {
  state(stream::out).fd = std::move(out);
  state(stream::err).fd = std::move(err);
}

void child_output::take(stream_state& state) {
  std::array<char, 16'384> buffer{};
  while (state.fd) {
    const auto count =
        gpushm::base::retry([&] { return ::read(state.fd.get(), buffer.data(), buffer.size()); });
    if (count > 0) {
      state.text.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EAGAIN) {
      state.fd.reset();
    } else {
      return;
    }
  }
}

bool child_output::read_some(clock::time_point deadline) {
  std::array<pollfd, 2> waits{};
  for (std::size_t i = 0; i < waits.size(); ++i) {
    // The fd of an ended stream is -1, which poll ignores.
    waits.at(i) = {states_.at(i).fd.get(), POLLIN, 0};
  }
  if (!states_[0].fd && !states_[1].fd) {
    return false;
  }
  gpushm::base::retry(
      [&] { return ::poll(waits.data(), waits.size(), milliseconds_until(deadline)); });
  for (auto& one : states_) {
    take(one);
  }
  return static_cast<bool>(states_[0].fd) || static_cast<bool>(states_[1].fd);
}

bool child_output::read_to_end(clock::time_point deadline) {
  while (read_some(deadline)) {
    if (clock::now() >= deadline) {
      return false;
    }
  }
  return true;
}

std::string child_output::wait_for_line(const std::string& pattern,
                                        std::chrono::milliseconds timeout,
                                        stream stream) {
  const std::regex expression(pattern);
  const auto deadline = deadline_after(timeout);
  auto& source = state(stream);
  while (true) {
    for (auto end = source.text.find('\n', source.searched); end != std::string::npos;
         end = source.text.find('\n', source.searched)) {
      auto line = source.text.substr(source.searched, end - source.searched);
      source.searched = end + 1;
      if (std::regex_search(line, expression)) {
        return line;
      }
    }
    if (!source.fd) {
      throw harness_error("the output ended without a line matching /" + pattern + "/\n" +
                          all_output());
    }
    if (clock::now() >= deadline) {
      throw harness_error("no line matching /" + pattern + "/ in time\n" + all_output());
    }
    read_some(deadline);
  }
}

std::string child_output::all_output() const {
  return "--- standard output\n" + text(stream::out) + "--- standard error\n" + text(stream::err) +
         "---";
}

}  // namespace gpushm_testing
