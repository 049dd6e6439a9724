// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "apps/gpushm/inspect/matrix/comparison.hpp"
#include "apps/gpushm/inspect/matrix/render.hpp"

namespace gpushm::cli::matrix {

namespace {

using json = nlohmann::ordered_json;

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

json or_null(const std::string& text) {
  return text.empty() ? json(nullptr) : json(text);
}

json cell_json(const cell& of) {
  json document{{"result", to_string(of.state)},
                {"side", or_null(of.side)},
                {"failure", or_null(of.failure)},
                {"text", or_null(of.text)},
                {"why", or_null(of.why)},
                {"open_seconds", nullptr},
                {"bytes_per_second", nullptr},
                {"exporter_pid", nullptr},
                {"importer_pid", nullptr},
                {"as_predicted", nullptr},
                {"predicted", nullptr}};
  if (of.state == cell_state::works) {
    document["open_seconds"] = seconds(of.open_time);
    if (of.bytes_per_second) {
      document["bytes_per_second"] = *of.bytes_per_second;
    }
  }
  if (of.exporter_pid > 0) {
    document["exporter_pid"] = of.exporter_pid;
  }
  if (of.importer_pid > 0) {
    document["importer_pid"] = of.importer_pid;
  }
  if (of.ran()) {
    const inspect::prediction& predicted = *of.predicted;
    document["as_predicted"] = of.as_predicted();
    document["predicted"] = {{"result",
                              predicted.works     ? "works"
                              : predicted.crashes ? "crashes"
                                                  : "fails"},
                             {"failure", or_null(predicted.failure)},
                             {"driver_failure", or_null(predicted.driver_failure)},
                             {"why", or_null(predicted.why)},
                             {"remedy", or_null(predicted.remedy)}};
  }
  return document;
}

json rows_json(const matrix_result& all) {
  json rows = json::array();
  for (const row_result& each : all.rows) {
    json row{{"number", each.setting.number},
             {"hostIPC", each.setting.host_ipc},
             {"hostPID", each.setting.host_pid},
             {"shareProcessNamespace", each.setting.share_processes},
             {"privileged", each.setting.privileged},
             {"gpus", to_string(each.setting.gpus)},
             {"pids", to_string(each.setting.pids)},
             {"seconds", seconds(each.time)},
             {"cells", json::object()}};
    for (const cell& one : each.cells) {
      row["cells"][std::string(to_string(one.how))] = cell_json(one);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

json published_json(const matrix_result& all) {
  json tables = json::array();
  for (const published_table& table : published_tables()) {
    json rows = json::array();
    for (const compared_row& each : compare(table, all)) {
      rows.push_back({{"row", each.measured->setting.number},
                      {"published", each.published},
                      {"here", or_null(each.here)},
                      {"differs", each.here.empty() ? json(nullptr) : json(each.differs())}});
    }
    tables.push_back({{"id", table.id},
                      {"title", table.title},
                      {"gpus", to_string(table.gpus)},
                      {"rows", std::move(rows)}});
  }
  return tables;
}

}  // namespace

json json_of(const matrix_result& all) {
  const totals sum = count(all);
  json ways = json::array();
  for (const inspect::way how : all.ways) {
    ways.push_back(to_string(how));
  }
  return {{"gpus", all.gpus},
          {"driver", or_null(all.driver)},
          {"runtime", all.runtime},
          {"kernel", all.kernel},
          {"date", all.date},
          {"remark", or_null(all.remark)},
          {"backends", std::move(ways)},
          {"measured_bytes", all.measured_bytes == 0 ? json(nullptr) : json(all.measured_bytes)},
          {"stopped", or_null(all.stopped)},
          {"summary",
           {{"ran", sum.ran},
            {"as_predicted", sum.as_predicted},
            {"not_run", sum.not_run},
            {"not_applicable", sum.not_applicable},
            {"seconds", seconds(all.time)}}},
          {"rows", rows_json(all)},
          {"published", published_json(all)}};
}

}  // namespace gpushm::cli::matrix
