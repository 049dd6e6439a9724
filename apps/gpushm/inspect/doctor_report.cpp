// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/doctor_report.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/style.hpp"
#include "base/text/text.hpp"
#include "base/text/text_layout.hpp"
#include "inspect/doctor/json.hpp"
#include "inspect/facts/json.hpp"

namespace gpushm::cli {

namespace {

using inspect::check;
using inspect::verdict;

constexpr std::size_t verdict_columns = 10;
constexpr std::size_t id_columns = 18;
constexpr std::size_t text_indent = 2 + verdict_columns + id_columns;

std::string verdict_text(verdict value, const app::style& style) {
  std::string text = base::padded(
      value == verdict::not_applicable ? "-" : std::string(to_string(value)), verdict_columns);
  switch (value) {
    case verdict::ok:
      return style.green(text);
    case verdict::warning:
      return style.yellow(text);
    case verdict::problem:
      return style.red(text);
    case verdict::not_applicable:
      return style.dim(text);
    case verdict::note:
      return text;
  }
  return text;
}

/// Prints one finding: the first line starts with `label`, the verdict, and the name; the following
/// lines are indented.
void print_entry(const std::string& label,
                 verdict value,
                 const std::string& name,
                 const check& check) {
  const std::string seen = base::wrapped(base::printable(check.seen), text_indent);
  print("  " + label + base::padded(base::printable(name), id_columns) +
        seen.substr(std::min(text_indent, seen.size())));
  const auto part = [&](const char* before, const std::string& text) {
    if (!text.empty()) {
      print(base::wrapped(std::string(before) + base::printable(text), text_indent + 2));
    }
  };
  if (value == verdict::warning || value == verdict::problem) {
    part("why: ", check.why);
    part("do:  ", check.remedy);
  } else {
    part("", check.why);
    part("if you need it: ", value == verdict::note ? check.remedy : std::string());
  }
}

void print_entry(verdict value,
                 const std::string& name,
                 const check& check,
                 const app::style& style) {
  print_entry(verdict_text(value, style), value, name, check);
}

std::string device_text(const doctor_report& report, const std::string& uuid) {
  for (const inspect::cuda_gpu_view& each : report.facts.driver.cuda.gpus) {
    if (each.uuid == uuid) {
      return "GPU " + std::to_string(each.ordinal);
    }
  }
  return uuid;
}

/// Whether memory that gpushm created in a trial is RDMA capable.
std::optional<bool> is_rdma_capable(const selftest_finding& finding) {
  return finding.how == inspect::way::vmm ? finding.outcome.exporter_rdma : std::nullopt;
}

std::string outcome_text(const selftest_finding& finding) {
  const std::string how(to_string(finding.how));
  if (finding.outcome.result == trial_result::works) {
    const auto rdma = is_rdma_capable(finding);
    return how + " works" + (rdma ? (*rdma ? " (RDMA capable)" : " (not RDMA capable)") : "");
  }
  if (finding.outcome.result == trial_result::not_run) {
    return how + " not run: " + finding.outcome.failure;
  }
  return how + " " + std::string(to_string(finding.outcome.result)) + " with " +
         finding.outcome.failure + (finding.as_expected() ? ", as predicted" : "");
}

/// Whether CUDA reports that the device supports RDMA capable memory.
bool supports_rdma(const doctor_report& report, const std::string& uuid) {
  for (const inspect::cuda_gpu_view& each : report.facts.driver.cuda.gpus) {
    if (each.uuid == uuid) {
      return each.rdma_vmm == true;
    }
  }
  return false;
}

constexpr const char* not_run_unknown = "it is unknown whether skipped trials would work";

/// Combines the trials on one device with the same kind of PIDs into one check.
check trials_check(const std::vector<const selftest_finding*>& trials, bool rdma_supported) {
  const selftest_finding& first = *trials.front();
  if (!first.not_permitted.empty()) {
    return inspect::finding(verdict::not_applicable, "not run: " + first.not_permitted);
  }
  const auto not_run = [&](const selftest_finding* each) {
    return each->outcome.result == trial_result::not_run &&
           each->outcome.failure == first.outcome.failure;
  };
  if (std::all_of(trials.begin(), trials.end(), not_run)) {
    return inspect::finding(verdict::warning,
                            "not run: " + first.outcome.failure,
                            not_run_unknown,
                            "fix the reason above");
  }
  check check = inspect::finding(verdict::ok, {});
  bool lesson = false;
  for (const selftest_finding* each : trials) {
    check.seen += (check.seen.empty() ? "" : "; ") + outcome_text(*each);
    if (each->unexpected()) {
      check.result = verdict::problem;
      check.why += (check.why.empty() ? "" : " ") + each->outcome.text;
      check.remedy = "gpushm explain \"" + each->outcome.failure + "\"";
    } else if (each->outcome.result == trial_result::not_run && check.result == verdict::ok) {
      check.result = verdict::warning;
      check.why = not_run_unknown;
    }
    if (rdma_supported && is_rdma_capable(*each) == false && check.result == verdict::ok) {
      check.result = verdict::warning;
      check.why = "the GPU supports RDMA capable memory, but cuMemCreate did not allocate any";
      check.remedy = "use a newer NVIDIA driver if RDMA libraries use segments";
    }
    lesson = lesson || (each->as_expected() && each->outcome.result != trial_result::works);
  }
  if (lesson && check.result == verdict::ok) {
    check.why =
        "raw handles never work with equal PIDs; through gpushm (cuda-ipc) the same memory works";
  }
  return check;
}

struct trial_group {
  std::string name;
  check found;
};

std::vector<trial_group> group_trials(const doctor_report& report) {
  std::vector<std::pair<std::pair<std::string, bool>, std::vector<const selftest_finding*>>> groups;
  for (const selftest_finding& each : report.selftest) {
    const std::pair key{each.device, each.equal_pids};
    if (groups.empty() || groups.back().first != key) {
      groups.push_back({key, {}});
    }
    groups.back().second.push_back(&each);
  }
  std::vector<trial_group> named;
  named.reserve(groups.size());
  for (const auto& [key, trials] : groups) {
    named.push_back({device_text(report, key.first) + (key.second ? ", PIDs =" : ", PIDs !="),
                     trials_check(trials, supports_rdma(report, key.first))});
  }
  return named;
}

void print_peer(const doctor_report& report, const app::style& style) {
  const inspect::process_facts& peer = *report.facts.peer;
  print("\n" + style.bold("peer") + "  " +
        base::printable("PID " + std::to_string(peer.pid) + " (" + peer.name + "), PID " +
                        std::to_string(peer.nspid.empty() ? peer.pid : peer.nspid.back()) +
                        " in its namespace, uid " + std::to_string(peer.uid)) +
        "\n");
  if (!report.peer_minors.minors) {
    const check unknown =
        inspect::finding(verdict::warning,
                         "GPUs that it may open: unknown (" + report.peer_minors.problem + ")",
                         "the predictions below assume that it may open all GPUs",
                         "run this as root on the node");
    print_entry(unknown.result, "GPUs of the peer", unknown, style);
  }
  for (const inspect::peer_prediction& each : report.predictions) {
    check check;
    const inspect::prediction& expected = each.expected;
    const std::string where =
        each.how == inspect::way::host
            ? std::string()
            : " on /dev/nvidia" + std::to_string(report.facts.gpus[each.gpu].minor);
    check.seen = std::string(each.to_peer ? "to the peer" : "from the peer") + where + ": " +
                 (expected.works ? "works" : "fails with " + expected.failure);
    check.why = expected.why;
    if (!expected.driver_failure.empty() && expected.driver_failure != expected.failure) {
      check.why += "; the driver's error without gpushm: " + expected.driver_failure;
    }
    check.remedy = expected.remedy;
    // Not a verdict on this machine: different GPUs on the two sides are usually intended.
    print_entry(expected.works ? style.green(base::padded("works", verdict_columns))
                               : style.red(base::padded("fails", verdict_columns)),
                expected.works ? verdict::ok : verdict::problem,
                std::string(to_string(each.how)),
                check);
  }
}

std::string counted(std::size_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

json selftest_json(const selftest_finding& finding) {
  return {{"device", finding.device},
          {"way", to_string(finding.how)},
          {"equal_pids", finding.equal_pids},
          {"not_permitted", finding.not_permitted},
          {"result", to_string(finding.outcome.result)},
          {"failure", finding.outcome.failure},
          {"side", finding.outcome.side},
          {"message", finding.outcome.text},
          {"exporter_pid", finding.outcome.exporter_pid},
          {"importer_pid", finding.outcome.importer_pid},
          {"open_ns", finding.outcome.open_time.count()},
          {"exporter_rdma", json_or_null(finding.outcome.exporter_rdma)},
          {"importer_rdma", json_or_null(finding.outcome.importer_rdma)},
          {"predicted_to_work", finding.expected.works},
          {"predicted_failure", finding.expected.failure},
          {"as_predicted", finding.as_expected()},
          {"why", finding.expected.why}};
}

json prediction_json(const doctor_report& report, const inspect::peer_prediction& prediction) {
  const bool host = prediction.how == inspect::way::host;
  return {{"direction", prediction.to_peer ? "to peer" : "from peer"},
          {"way", to_string(prediction.how)},
          {"gpu", host ? json(nullptr) : json(report.facts.gpus[prediction.gpu].uuid)},
          {"works", prediction.expected.works},
          {"failure", prediction.expected.failure},
          {"driver_failure", prediction.expected.driver_failure},
          {"why", prediction.expected.why},
          {"remedy", prediction.expected.remedy}};
}

/// Prints the problems to act on, before all checks; root causes first.
void print_causes(const doctor_report& report, const app::style& style) {
  std::vector<std::string> explaining;
  for (const check& each : report.checks) {
    explaining.push_back(each.follows);
  }
  const auto explains = [&](const check& each) {
    return std::find(explaining.begin(), explaining.end(), each.id) != explaining.end();
  };
  for (const bool root : {true, false}) {
    for (const check& each : report.checks) {
      if (each.result != verdict::problem || explains(each) != root) {
        continue;
      }
      const std::string head =
          (root ? "Root cause: " : "Problem: ") + base::printable(each.seen) + " [" + each.id + "]";
      const std::string text = base::wrapped(head, 0);
      print(style.red(text.substr(0, text.size() - 1)) + "\n");
      print(base::wrapped("do: " + base::printable(each.remedy), 2) + "\n");
    }
  }
}

/// One line: whether sharing should work.
std::string conclusion(const doctor_report& report) {
  const auto result_of = [&](std::string_view id) {
    const auto found = std::find_if(report.checks.begin(),
                                    report.checks.end(),
                                    [id](const check& each) { return each.id == id; });
    return found == report.checks.end() ? verdict::not_applicable : found->result;
  };
  if (report.problems() > 0) {
    return "sharing may fail here: fix the problems above, then rerun gpushm doctor";
  }
  const bool host_only = result_of("device-nodes") == verdict::not_applicable;
  const std::string subject =
      host_only ? "sharing host memory through gpushm" : "sharing through gpushm";
  return subject + " should work here" +
         (result_of("broker") == verdict::warning ? ", once a broker can be reached" : "");
}

}  // namespace

std::size_t doctor_report::count(verdict value) const {
  return static_cast<std::size_t>(std::count_if(
      checks.begin(), checks.end(), [&](const check& each) { return each.result == value; }));
}

std::size_t doctor_report::problems() const {
  const auto surprises =
      std::count_if(selftest.begin(), selftest.end(), [](const selftest_finding& each) {
        return each.unexpected();
      });
  return count(verdict::problem) + static_cast<std::size_t>(surprises);
}

namespace {

void print_report(const doctor_report& report) {
  const app::style style = app::style::of(STDOUT_FILENO);
  print_causes(report, style);
  std::string section;
  for (const check& each : report.checks) {
    if (each.section != section) {
      print((section.empty() ? "" : "\n") + style.bold(each.section) + "\n");
      section = each.section;
    }
    print_entry(each.result, each.id, each, style);
  }
  if (report.facts.peer) {
    print_peer(report, style);
  }
  if (report.tried) {
    print("\n" + style.bold("self-test") +
          "  two processes share memory, with equal and with different PIDs, every byte checked\n");
    for (const trial_group& each : group_trials(report)) {
      print_entry(each.found.result, each.name, each.found, style);
    }
  }
  const std::size_t problems = report.problems();
  const std::string summary =
      counted(problems, "problem") + ", " + counted(report.count(verdict::warning), "warning") +
      ", " + counted(report.count(verdict::note), "note") + ", " +
      std::to_string(report.count(verdict::ok)) + " ok, " +
      std::to_string(report.count(verdict::not_applicable)) + " not applicable";
  print("\n" + (problems == 0 ? style.green(summary) : style.red(summary)) + " (" +
        app::duration_text(report.whole) +
        (report.tried ? ", " + app::duration_text(report.check_time) + " for the checks" : "") +
        ")\n");
  print((report.ipc ? report.conclusion : conclusion(report)) + "\n");
  flush_output();
}

void print_report_json(const doctor_report& report) {
  json checks = json::array();
  for (const check& each : report.checks) {
    checks.push_back(json(nlohmann::json(each)));
  }
  json trials = json::array();
  for (const selftest_finding& each : report.selftest) {
    trials.push_back(selftest_json(each));
  }
  json predictions = json::array();
  for (const inspect::peer_prediction& each : report.predictions) {
    predictions.push_back(prediction_json(report, each));
  }
  const auto seconds = [](std::chrono::nanoseconds value) {
    return std::chrono::duration<double>(value).count();
  };
  json document{{"summary",
                 {{"problems", report.problems()},
                  {"warnings", report.count(verdict::warning)},
                  {"notes", report.count(verdict::note)},
                  {"ok", report.count(verdict::ok)},
                  {"not_applicable", report.count(verdict::not_applicable)},
                  {"checks_s", seconds(report.check_time)},
                  {"whole_s", seconds(report.whole)}}},
                {"checks", checks}};
  if (report.ipc) {
    document["conclusion"] = report.conclusion;
  } else {
    document["selftest"] = report.tried ? trials : json(nullptr);
    document["peer"] = report.facts.peer ? predictions : json(nullptr);
    document["facts"] = json(nlohmann::json(report.facts));
    document["recording"] = json(report.recording);
  }
  print_json(document);
}

}  // namespace

int finish_report(doctor_report& report,
                  std::chrono::steady_clock::time_point begin,
                  bool as_json) {
  report.whole = std::chrono::steady_clock::now() - begin;
  if (as_json) {
    print_report_json(report);
  } else {
    print_report(report);
  }
  return report.problems() == 0 ? exit_ok : exit_failed;
}

}  // namespace gpushm::cli
