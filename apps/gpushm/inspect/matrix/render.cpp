// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/matrix/render.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "apps/gpushm/inspect/matrix/comparison.hpp"
#include "apps/gpushm/inspect/matrix/footnotes.hpp"
#include "apps/support/duration.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text_layout.hpp"

namespace gpushm::cli::matrix {

namespace {

using cells = std::vector<std::string>;

std::string yes_no(bool value) {
  return value ? "yes" : "no";
}

std::string count_text(std::size_t count, const std::string& singular) {
  return fmt::format("{} {}{}", count, singular, count == 1 ? "" : "s");
}

std::string machine_line(const matrix_result& matrix) {
  return fmt::format("{}{}, {}, Linux {}, {}",
                     matrix.gpus.empty() ? "no GPU" : count_text(matrix.gpus.size(), "GPU"),
                     matrix.driver.empty() ? "" : ", driver " + matrix.driver,
                     matrix.runtime,
                     matrix.kernel,
                     matrix.date);
}

/// "!" marks a result that was not predicted.
std::string cell_text(const cell& cell, footnotes& notes) {
  const std::string letters = notes.mark(cell);
  std::string text = cell.ran() && !cell.as_predicted() ? "!" : "";
  text += cell.state == cell_state::not_applicable ? "n/a" : to_string(cell.state);
  return letters.empty() ? text : text + " " + letters;
}

/// A cell without the letters of its explanation.
std::string short_text(const cell& cell) {
  return (cell.ran() && !cell.as_predicted() ? "!" : "") + std::string(to_string(cell.state));
}

std::string open_times(const matrix_result& matrix) {
  std::string text;
  for (const inspect::way how : matrix.ways) {
    std::vector<std::chrono::nanoseconds> times;
    for (const row_result& row : matrix.rows) {
      for (const cell& each : row.cells) {
        if (each.how == how && each.state == cell_state::works) {
          times.push_back(each.open_time);
        }
      }
    }
    if (!times.empty()) {
      const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
      std::nth_element(times.begin(), middle, times.end());
      text += (text.empty() ? "" : ", ") + std::string(to_string(how)) + " " +
              app::duration_text(*middle);
    }
  }
  return text.empty() ? text : fmt::format("Time of an open alone, median: {}.", text);
}

std::string costs_title(const matrix_result& matrix) {
  return fmt::format(
      "Time of the open alone, and bandwidth of copies of {} out of the importer's mapping by its "
      "GPU.",
      base::size_text(matrix.measured_bytes));
}

/// "1.90 ms, 397 GB/s"; "-" for a cell that did not work.
std::string cost_text(const cell& cell) {
  if (cell.state != cell_state::works) {
    return "-";
  }
  return app::duration_text(cell.open_time) +
         (cell.bytes_per_second ? fmt::format(", {:.3g} GB/s", *cell.bytes_per_second / 1e9) : "");
}

/// The rows with a cell that works.
std::vector<const row_result*> working_rows(const matrix_result& matrix) {
  std::vector<const row_result*> rows;
  for (const row_result& each : matrix.rows) {
    if (std::any_of(each.cells.begin(), each.cells.end(), [](const cell& cell) {
          return cell.state == cell_state::works;
        })) {
      rows.push_back(&each);
    }
  }
  return rows;
}

/// Tables of text have the ways of one kind, so that they fit into a terminal: those that need
/// libgpushm-ipc.so, or the others.
bool has_kind(const matrix_result& matrix, bool needs_ipc) {
  return std::any_of(matrix.ways.begin(), matrix.ways.end(), [&](inspect::way sharing_way) {
    return inspect::needs_ipc_library(sharing_way) == needs_ipc;
  });
}

void add_columns(std::vector<base::table::column>& columns,
                 const matrix_result& matrix,
                 bool needs_ipc,
                 bool with_raw) {
  for (const inspect::way how : matrix.ways) {
    if (inspect::needs_ipc_library(how) == needs_ipc &&
        (with_raw || how != inspect::way::raw_legacy)) {
      columns.push_back({std::string(to_string(how))});
    }
  }
}

std::string text_table(const matrix_result& matrix, bool needs_ipc, footnotes& notes) {
  std::vector<base::table::column> columns{
      {"#", base::table::align::right}, {"IPC"}, {"PID"}, {"share"}, {"priv"}, {"GPUs"}, {"PIDs"}};
  add_columns(columns, matrix, needs_ipc, true);
  base::table table(columns);
  for (const row_result& each : matrix.rows) {
    const row& setting = each.setting;
    cells line{std::to_string(setting.number),
               yes_no(setting.host_ipc),
               yes_no(setting.host_pid),
               yes_no(setting.share_processes),
               yes_no(setting.privileged),
               setting.gpus == gpu_choice::one_each ? "each" : "same",
               setting.pids == pid_values::equal ? "equal" : "differ"};
    for (const cell& one : each.cells) {
      if (inspect::needs_ipc_library(one.how) == needs_ipc) {
        line.push_back(cell_text(one, notes));
      }
    }
    table.add(std::move(line));
  }
  return table.text();
}

/// The raw column, shortened to fit next to the published result.
std::string raw_text(const compared_row& row) {
  if (row.raw == nullptr) {
    return "omitted";
  }
  if (row.here.empty()) {
    return short_text(*row.raw);
  }
  return row.differs() ? "differs" : "the same";
}

std::string text_costs(const matrix_result& matrix, bool needs_ipc) {
  std::vector<base::table::column> columns{{"#", base::table::align::right}};
  add_columns(columns, matrix, needs_ipc, true);
  base::table table(columns);
  for (const row_result* each : working_rows(matrix)) {
    cells line{std::to_string(each->setting.number)};
    for (const cell& one : each->cells) {
      if (inspect::needs_ipc_library(one.how) == needs_ipc) {
        line.push_back(cost_text(one));
      }
    }
    table.add(std::move(line));
  }
  return table.text();
}

std::string comparison_table(const std::vector<compared_row>& rows,
                             const matrix_result& matrix,
                             bool needs_ipc) {
  std::vector<base::table::column> columns{
      {"row", base::table::align::right}, {"IPC"}, {"PID"}, {"share"}, {"priv"}, {"published"}};
  if (!needs_ipc) {
    columns.push_back({"here"});
  }
  add_columns(columns, matrix, needs_ipc, false);
  base::table table(columns);
  for (const compared_row& each : rows) {
    const row& setting = each.measured->setting;
    cells line{std::to_string(setting.number),
               yes_no(setting.host_ipc),
               yes_no(setting.host_pid),
               yes_no(setting.share_processes),
               yes_no(setting.privileged),
               each.published};
    if (!needs_ipc) {
      line.push_back(raw_text(each));
    }
    for (const cell& one : each.measured->cells) {
      if (inspect::needs_ipc_library(one.how) == needs_ipc && one.how != inspect::way::raw_legacy) {
        line.push_back(short_text(one));
      }
    }
    table.add(std::move(line));
  }
  return table.text();
}

std::string text_comparison(const published_table& published, const matrix_result& matrix) {
  const auto rows = compare(published, matrix);
  std::string text = fmt::format("{}: {}\n", published.id, published.title);
  for (const bool needs_ipc : {false, true}) {
    if (has_kind(matrix, needs_ipc)) {
      text += "\n" + comparison_table(rows, matrix, needs_ipc);
    }
  }
  for (const std::string& line : verdict_of(rows)) {
    text += base::wrapped({}, line, 2);
  }
  return text;
}

std::string markdown_row(const cells& texts) {
  std::string line = "|";
  for (const std::string& text : texts) {
    line += " " + text + " |";
  }
  return line + "\n";
}

std::string markdown_head(const cells& titles) {
  return markdown_row(titles) + markdown_row(cells(titles.size(), "---"));
}

cells setting_titles() {
  return {"hostIPC", "hostPID", "shareProcessNamespace", "privileged"};
}

cells setting_cells(const row& setting) {
  return {yes_no(setting.host_ipc),
          yes_no(setting.host_pid),
          yes_no(setting.share_processes),
          yes_no(setting.privileged)};
}

void append(cells& target, const cells& more) {
  target.insert(target.end(), more.begin(), more.end());
}

std::string markdown_costs(const matrix_result& matrix) {
  std::string text = "\n## Open time and bandwidth\n\n" + costs_title(matrix) + "\n\n";
  cells titles{"row"};
  append(titles, setting_titles());
  append(titles, {"GPUs", "PIDs"});
  for (const inspect::way how : matrix.ways) {
    titles.emplace_back(to_string(how));
  }
  text += markdown_head(titles);
  for (const row_result* each : working_rows(matrix)) {
    cells line{std::to_string(each->setting.number)};
    append(line, setting_cells(each->setting));
    line.emplace_back(to_string(each->setting.gpus));
    line.emplace_back(to_string(each->setting.pids));
    for (const cell& one : each->cells) {
      line.push_back(cost_text(one));
    }
    text += markdown_row(line);
  }
  return text;
}

std::string markdown_comparison(const published_table& published, const matrix_result& matrix) {
  const auto rows = compare(published, matrix);
  std::string text = fmt::format("### {}: {}\n\n", published.id, published.title);
  cells titles{"row"};
  append(titles, setting_titles());
  append(titles, {"published", "raw handle here"});
  for (const inspect::way how : matrix.ways) {
    if (how != inspect::way::raw_legacy) {
      titles.emplace_back(to_string(how));
    }
  }
  text += markdown_head(titles);
  for (const compared_row& each : rows) {
    cells line{std::to_string(each.measured->setting.number)};
    append(line, setting_cells(each.measured->setting));
    line.push_back(each.published);
    line.push_back(each.raw == nullptr ? "omitted"
                   : each.here.empty() ? short_text(*each.raw)
                   : each.differs()    ? "**" + each.here + "**"
                                       : each.here);
    for (const cell& one : each.measured->cells) {
      if (one.how != inspect::way::raw_legacy) {
        line.push_back(short_text(one));
      }
    }
    text += markdown_row(line);
  }
  text += "\n";
  for (const std::string& line : verdict_of(rows)) {
    text += line + "\n";
  }
  return text + "\n";
}

}  // namespace

std::vector<std::string> disagreements(const matrix_result& matrix) {
  std::vector<std::string> lines;
  for (const row_result& row : matrix.rows) {
    for (const cell& each : row.cells) {
      if (each.ran() && !each.as_predicted()) {
        lines.push_back(fmt::format(
            "row {}, {}: {}", row.setting.number, to_string(each.how), mismatch_of(each)));
      }
    }
  }
  return lines;
}

std::string summary_of(const matrix_result& matrix) {
  const totals sum = count(matrix);
  return fmt::format("{} ran, {} as predicted, {} not run, {} not applicable, {:.1f} s",
                     count_text(static_cast<std::size_t>(sum.ran), "cell"),
                     sum.as_predicted,
                     sum.not_run,
                     sum.not_applicable,
                     std::chrono::duration<double>(matrix.time).count());
}

std::string text_of(const matrix_result& matrix) {
  std::string text = base::wrapped({}, machine_line(matrix), 2);
  for (const std::string& each : matrix.gpus) {
    text += base::wrapped("  ", each, 4);
  }
  text += matrix.remark.empty() ? "" : base::wrapped("  ", matrix.remark, 4);
  text += "\n";
  text += base::wrapped(
      "Each row is one pair of containers; each column is one way of sharing memory between them, "
      "tested in these containers. IPC, PID, share and priv are hostIPC, hostPID, "
      "shareProcessNamespace and privileged. GPUs: one for each side, or the same for both. "
      "PIDs: of the two programs, each in its own PID namespace. The letters are explained below.",
      0);
  footnotes notes;
  for (const bool needs_ipc : {false, true}) {
    if (has_kind(matrix, needs_ipc)) {
      text += "\n" + text_table(matrix, needs_ipc, notes);
    }
  }
  text += "\n";
  for (std::size_t i = 0; i < notes.texts().size(); ++i) {
    std::string mark = footnotes::letters(i);
    mark.resize(std::max<std::size_t>(mark.size(), 2), ' ');
    text += base::wrapped(mark + "  ", notes.texts()[i] + ".", 4);
  }
  text += "\nComparison with the published tables (\"here\": raw handles, as published)\n";
  for (const published_table& table : published_tables()) {
    text += "\n" + text_comparison(table, matrix);
  }
  text += "\n";
  if (const std::string times = open_times(matrix); !times.empty()) {
    text += base::wrapped({}, times, 2);
  }
  if (matrix.measured_bytes > 0) {
    text += "\n" + base::wrapped({}, costs_title(matrix), 0);
    for (const bool needs_ipc : {false, true}) {
      if (has_kind(matrix, needs_ipc)) {
        text += "\n" + text_costs(matrix, needs_ipc);
      }
    }
    text += "\n";
  }
  for (const std::string& line : disagreements(matrix)) {
    text += base::wrapped("NOT AS PREDICTED: ", line, 2);
  }
  if (!matrix.stopped.empty()) {
    text += "Not everything was run: " + matrix.stopped + ".\n";
  }
  return text + summary_of(matrix) + "\n";
}

std::string markdown_of(const matrix_result& matrix) {
  std::string text = "# Which processes can share GPU memory\n\n";
  text += "Generated by `gpushm matrix --markdown`: " + machine_line(matrix) + ".\n\n";
  for (const std::string& each : matrix.gpus) {
    text += "- " + each + "\n";
  }
  text += matrix.remark.empty() ? "" : "- " + matrix.remark + "\n";
  text += matrix.gpus.empty() ? "" : "\n";
  text += "**" + summary_of(matrix) + ".**\n";
  if (!matrix.stopped.empty()) {
    text += "\nNot everything was run: " + matrix.stopped + ".\n";
  }
  for (const std::string& line : disagreements(matrix)) {
    text += "\n**Not as predicted:** " + line + "\n";
  }
  text +=
      "\n## How to read it\n\n"
      "Each row is one pair of containers with these settings. Each column is one way of sharing\n"
      "memory between the two, tested in these containers: one side creates the memory and\n"
      "shares it, the other opens it, checks every byte and writes a reply.\n\n"
      "- `raw-legacy` is plain CUDA IPC: `cudaIpcGetMemHandle` and `cudaIpcOpenMemHandle`. The\n"
      "  published tables were measured with it.\n"
      "- `cuda-ipc`, `cuda-vmm`, `cuda-pool` and `host` go through gpushm.\n"
      "- `unmodified`, `unmodified-event` and `unmodified-fd` are programs that use the driver's "
      "own\n"
      "  calls and do not know gpushm, with the library of the CDI device `gpushm.dev/ipc` "
      "preloaded\n"
      "  ([unmodified.md](unmodified.md)): the same handles as `raw-legacy`; the same with an\n"
      "  interprocess event before each use; and descriptors of memory that the importer fetches "
      "with\n"
      "  `pidfd_getfd`.\n"
      "- GPUs \"one each\": as a device plugin assigns them, the first to the exporter and the\n"
      "  second to the importer. \"same set\": both sides may open both, as with one\n"
      "  ResourceClaim.\n"
      "- PIDs: the PID of each program in its own PID namespace. The main programs of two\n"
      "  containers have the same PID, unless something makes them differ.\n"
      "- Containers that are not privileged have no capability, no-new-privileges, a system call\n"
      "  filter, different users, and only their own GPUs' device nodes.\n"
      "- Without shareProcessNamespace the two containers are two pods; with it they are one.\n"
      "- If the importer may not open the exporter's GPU, no way of sharing its memory works.\n"
      "  In T1 \"privileged\" helps by opening every node; the same GPU for both sides is the "
      "remedy.\n"
      "- \"not run\" and \"n/a\" (not applicable) are not successes. Letters refer to the\n"
      "  explanations at the end.\n\n"
      "## Comparison with the published tables\n\n";
  for (const published_table& table : published_tables()) {
    text += markdown_comparison(table, matrix);
  }
  text += "## All settings\n\n";
  footnotes notes;
  cells titles{"row"};
  append(titles, setting_titles());
  append(titles, {"GPUs", "PIDs"});
  for (const inspect::way how : matrix.ways) {
    titles.emplace_back(to_string(how));
  }
  text += markdown_head(titles);
  for (const row_result& each : matrix.rows) {
    cells line{std::to_string(each.setting.number)};
    append(line, setting_cells(each.setting));
    line.emplace_back(to_string(each.setting.gpus));
    line.emplace_back(to_string(each.setting.pids));
    for (const cell& one : each.cells) {
      line.push_back(cell_text(one, notes));
    }
    text += markdown_row(line);
  }
  text += "\n## Explanations\n\n";
  for (std::size_t i = 0; i < notes.texts().size(); ++i) {
    text += "- **" + footnotes::letters(i) + "**: " + notes.texts()[i] + ".\n";
  }
  if (const std::string times = open_times(matrix); !times.empty()) {
    text += "\n" + times + "\n";
  }
  return matrix.measured_bytes == 0 ? text : text + markdown_costs(matrix);
}

}  // namespace gpushm::cli::matrix
