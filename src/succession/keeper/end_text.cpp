// SPDX-License-Identifier: Apache-2.0
#include "succession/keeper/end_text.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string_view>
#include <utility>

#include "base/text/size_text.hpp"

namespace gpushm::keeper {

namespace {

/// The signals that end a process. (sigabbrev_np is missing in C libraries that this code
/// supports.)
constexpr std::array<std::pair<int, std::string_view>, 17> names{{{SIGABRT, "SIGABRT"},
                                                                  {SIGALRM, "SIGALRM"},
                                                                  {SIGBUS, "SIGBUS"},
                                                                  {SIGFPE, "SIGFPE"},
                                                                  {SIGHUP, "SIGHUP"},
                                                                  {SIGILL, "SIGILL"},
                                                                  {SIGINT, "SIGINT"},
                                                                  {SIGKILL, "SIGKILL"},
                                                                  {SIGPIPE, "SIGPIPE"},
                                                                  {SIGQUIT, "SIGQUIT"},
                                                                  {SIGSEGV, "SIGSEGV"},
                                                                  {SIGSYS, "SIGSYS"},
                                                                  {SIGTERM, "SIGTERM"},
                                                                  {SIGTRAP, "SIGTRAP"},
                                                                  {SIGUSR1, "SIGUSR1"},
                                                                  {SIGXCPU, "SIGXCPU"},
                                                                  {SIGXFSZ, "SIGXFSZ"}}};

std::string signal_text(int number) {
  std::string text = "signal " + std::to_string(number);
  const auto* const name = std::find_if(
      names.begin(), names.end(), [&](const auto& each) { return each.first == number; });
  if (name != names.end()) {
    text.append(" (").append(name->second).append(")");
  }
  return text;
}

}  // namespace

std::string end_text(int status, const std::optional<base::container_memory>& memory) {
  if (WIFEXITED(status)) {
    return "has ended with status " + std::to_string(WEXITSTATUS(status));
  }
  if (WTERMSIG(status) != SIGKILL) {
    return "has ended with " + signal_text(WTERMSIG(status));
  }
  std::string text = "was killed (SIGKILL)";
  if (memory) {
    text += "; memory of the container " + base::size_text(memory->used_bytes) + " of " +
            base::size_text(memory->limit_bytes) + " now, " + std::to_string(memory->kills) +
            " kills for lack of memory";
  }
  return text;
}

std::string end_text(int status) {
  const bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  return end_text(status, is_killed ? base::memory_of_container() : std::nullopt);
}

}  // namespace gpushm::keeper
