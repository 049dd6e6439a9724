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

json cell_json(const cell& cell) {
  json document{{"result", to_string(cell.state)},
                {"side", or_null(cell.side)},
                {"failure", or_null(cell.failure)},
                {"text", or_null(cell.text)},
                {"why", or_null(cell.why)},
                {"open_seconds", nullptr},
                {"bytes_per_second", nullptr},
                {"exporter_pid", nullptr},
                {"importer_pid", nullptr},
                {"as_predicted", nullptr},
                {"predicted", nullptr}};
  if (cell.state == cell_state::works) {
    document["open_seconds"] = seconds(cell.open_time);
    if (cell.bytes_per_second) {
      document["bytes_per_second"] = *cell.bytes_per_second;
    }
  }
  if (cell.exporter_pid > 0) {
    document["exporter_pid"] = cell.exporter_pid;
  }
  if (cell.importer_pid > 0) {
    document["importer_pid"] = cell.importer_pid;
  }
  if (cell.ran()) {
    const inspect::prediction& predicted = *cell.predicted;
    document["as_predicted"] = cell.as_predicted();
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

json rows_json(const matrix_result& matrix) {
  json rows = json::array();
  for (const row_result& each : matrix.rows) {
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

json published_json(const matrix_result& matrix) {
  json tables = json::array();
  for (const published_table& table : published_tables()) {
    json rows = json::array();
    for (const compared_row& each : compare(table, matrix)) {
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

json json_of(const matrix_result& matrix) {
  const totals sum = count(matrix);
  json ways = json::array();
  for (const inspect::way how : matrix.ways) {
    ways.push_back(to_string(how));
  }
  return {
      {"gpus", matrix.gpus},
      {"driver", or_null(matrix.driver)},
      {"runtime", matrix.runtime},
      {"kernel", matrix.kernel},
      {"date", matrix.date},
      {"remark", or_null(matrix.remark)},
      {"backends", std::move(ways)},
      {"measured_bytes", matrix.measured_bytes == 0 ? json(nullptr) : json(matrix.measured_bytes)},
      {"stopped", or_null(matrix.stopped)},
      {"summary",
       {{"ran", sum.ran},
        {"as_predicted", sum.as_predicted},
        {"not_run", sum.not_run},
        {"not_applicable", sum.not_applicable},
        {"seconds", seconds(matrix.time)}}},
      {"rows", rows_json(matrix)},
      {"published", published_json(matrix)}};
}

}  // namespace gpushm::cli::matrix
