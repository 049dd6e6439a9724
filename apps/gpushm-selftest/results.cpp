// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-selftest/results.hpp"

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "base/files/syscall.hpp"

namespace gpushm::selftest {

std::string last_lines(const std::string& text, int count) {
  std::size_t start = text.size();
  for (int i = 0; i <= count && start != 0 && start != std::string::npos; ++i) {
    start = text.rfind('\n', start - 1);
  }
  return start == std::string::npos || start == 0 ? text : text.substr(start + 1);
}

results::results(std::string file, json machine, std::vector<std::string> names)
    : file_(std::move(file)), machine_(std::move(machine)), not_run_(std::move(names)) {
  write();
}

void results::add(const std::string& name, const outcome& ended, std::chrono::nanoseconds took) {
  ++counts_[ended.result];
  json entry{{"name", name},
             {"result", to_string(ended.result)},
             {"detail", ended.detail},
             {"seconds", std::chrono::duration<double>(took).count()},
             {"data", ended.data}};
  if (ended.result == verdict::failed) {
    entry["output"] = last_lines(ended.output, 400);
  }
  checks_.push_back(std::move(entry));
  std::erase(not_run_, name);
  write();
}

void results::finish() {
  finished_ = true;
  write();
}

int results::count(verdict value) const {
  const auto found = counts_.find(value);
  return found == counts_.end() ? 0 : found->second;
}

void results::write() const {
  if (file_.empty()) {
    return;
  }
  const json document{{"gpushm_version", GPUSHM_VERSION},
                      {"machine", machine_},
                      {"finished", finished_},
                      {"passed", count(verdict::passed)},
                      {"failed", count(verdict::failed)},
                      {"skipped", count(verdict::skipped)},
                      {"not_run", not_run_},
                      {"checks", checks_}};
  // Renamed into place, so that readers always find a complete document.
  const std::string part = file_ + ".part";
  std::ofstream file(part);
  file << document.dump(1, ' ', false, json::error_handler_t::replace) << "\n";
  file.close();
  if (!file || std::rename(part.c_str(), file_.c_str()) != 0) {
    base::throw_errno(errno, "write results", file_, "rename");
  }
}

}  // namespace gpushm::selftest
