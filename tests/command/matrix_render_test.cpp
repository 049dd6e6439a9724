// SPDX-License-Identifier: Apache-2.0
// The output of `gpushm matrix`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/gpushm/inspect/matrix/footnotes.hpp"
#include "apps/gpushm/inspect/matrix/render.hpp"
#include "tests/command/matrix_world.hpp"

namespace gpushm::cli::matrix {
namespace {

using inspect::way;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t longest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) {
    longest = std::max(longest, line.size());
  }
  return longest;
}

/// One prediction was wrong, as when a newer driver behaves differently.
matrix_result with_wrong_prediction() {
  auto matrix = predicted_matrix(world());
  const row setting = row_numbered(47);
  auto outcome = outcome_for(setting);
  outcome.result = trial_result::fails;
  outcome.side = "importer";
  outcome.failure = "driver_error";
  outcome.text = "open \"x\": cuMemMap: CUDA_ERROR_UNKNOWN (999)";
  matrix.rows[46].cells[2] = judge(setting, way::vmm, sides_of(setting, world()), outcome);
  return matrix;
}
const std::string wrong_prediction =
    "row 47, cuda-vmm: predicted \"works\" because descriptors contain no PID; "
    "the importer may open the GPU. Actual result: fails (importer, driver_error): open \"x\": "
    "cuMemMap: "
    "CUDA_ERROR_UNKNOWN (999)";

TEST(matrix_footnotes, are_unique_and_have_letters) {
  EXPECT_EQ(footnotes::letters(0), "a");
  EXPECT_EQ(footnotes::letters(25), "z");
  EXPECT_EQ(footnotes::letters(26), "aa");
  EXPECT_EQ(footnotes::letters(53), "bb");
  footnotes notes;
  const auto cells = unused_cells({way::vmm, way::host}, cell_state::not_run, "no GPU");
  EXPECT_EQ(notes.mark(cells[0]), "a");
  EXPECT_EQ(notes.mark(unused_cells({way::vmm}, cell_state::not_run, "another")[0]), "b");
  EXPECT_EQ(notes.mark(cells[1]), "a");
  EXPECT_EQ(notes.mark({}), "");
  EXPECT_THAT(notes.texts(), ElementsAre("no GPU", "another"));
}

TEST(matrix_text, shows_table_explanations_and_published_tables) {
  const auto text = text_of(predicted_matrix(world()));
  EXPECT_THAT(text,
              ::testing::StartsWith(
                  "2 GPUs, driver 580.159.04, runc version 1.1.5, Linux 6.1.0, 2026-01-31\n"
                  "  GPU A (GPU-aaaaaaaa-0000, /dev/nvidia0)\n"
                  "  GPU B (GPU-bbbbbbbb-0000, /dev/nvidia1)\n\n"));
  EXPECT_THAT(text,
              HasSubstr(" #  IPC  PID  share  priv  GPUs  PIDs    raw-legacy  cuda-ipc  cuda-vmm  "
                        "cuda-pool  host\n"
                        " 1  yes  yes  no     yes   each  equal   n/a a       n/a a     n/a a     "
                        "n/a a      n/a a\n"
                        " 2  yes  yes  no     yes   each  differ  works b     works c   works d   "
                        "works d    works e\n"
                        " 3  no   yes  no     yes   each  equal   n/a a       n/a a     n/a a     "
                        "n/a a      n/a a\n"
                        " 4  no   yes  no     yes   each  differ  works b     works c   works d   "
                        "works d    works e\n"
                        " 5  yes  no   no     yes   each  equal   fails f     works g   works d   "
                        "works d    works e\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "\na   two processes of one PID namespace never have the same PID.\n"
          "b   the importer may open the GPU, and the two PIDs differ in value.\n"
          "c   the importer may open the GPU.\n"
          "d   descriptors contain no PID; the importer may open the GPU.\n"
          "e   host memory is shared as a descriptor: both sides need the domain's socket, no "
          "GPU.\n"
          "f   CUDA_ERROR_INVALID_CONTEXT (201): both processes have PID 7 in their "
          "namespaces: the driver\n"
          "    treats the handle as one of the importer's own. Remedy: preload "
          "libgpushm-ipc.so (the CDI device"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "\nT1: two pods, a shared volume, one GPU each from the device plugin\n\n"
          "row  IPC  PID  share  priv  published               here      cuda-ipc  cuda-vmm  "
          "cuda-pool  host\n"
          "  2  yes  yes  no     yes   success                 the same  works     works     works "
          "     works\n"
          "  4  no   yes  no     yes   success                 the same  works     works     works "
          "     works\n"
          "  5  yes  no   no     yes   invalid device context  the same  works     works     works "
          "     works\n"
          "  8  yes  yes  no     no    invalid argument        the same  fails     fails     fails "
          "     works\n"));
  EXPECT_THAT(text, HasSubstr("\n8 of 8 rows ran, all as published.\n"));
  EXPECT_THAT(text, HasSubstr("\n9 of 9 rows ran, all as published.\n"));
  EXPECT_THAT(text,
              HasSubstr("\nTime of an open alone, median: raw-legacy 43.0 us, cuda-ipc 43.0 us, "
                        "cuda-vmm 43.0 us, cuda-pool\n  43.0 us, host 43.0 us.\n"));
  EXPECT_THAT(text,
              ::testing::EndsWith("\n160 cells ran, 160 as predicted, 0 not run, 160 not "
                                  "applicable, 31.5 s\n"));
  EXPECT_THAT(text, Not(HasSubstr("NOT AS PREDICTED")));
  EXPECT_THAT(disagreements(predicted_matrix(world())), ::testing::IsEmpty());
}

TEST(matrix_text, fits_100_columns) {
  EXPECT_LE(longest_line(text_of(predicted_matrix(world()))), 100U);
  auto matrix = with_wrong_prediction();
  // A different reason for each row requires two-letter marks.
  for (row_result& row : matrix.rows) {
    row.cells = unused_cells(matrix.ways,
                             cell_state::not_run,
                             "container " + std::to_string(row.setting.number) +
                                 " could not be started, for a reason that is long enough to be "
                                 "wrapped into more than one line");
  }
  EXPECT_LE(longest_line(text_of(matrix)), 100U);
}

TEST(matrix_text, wrong_prediction_is_reported_everywhere) {
  const auto matrix = with_wrong_prediction();
  EXPECT_THAT(disagreements(matrix), ElementsAre(wrong_prediction));
  const auto text = text_of(matrix);
  EXPECT_THAT(text, HasSubstr("!fails "));
  EXPECT_THAT(text, HasSubstr("NOT AS PREDICTED: predicted \"works\""));
  EXPECT_THAT(text, HasSubstr("NOT AS PREDICTED: row 47, cuda-vmm:"));
  EXPECT_THAT(text, HasSubstr("160 cells ran, 159 as predicted"));
  EXPECT_THAT(markdown_of(matrix), HasSubstr("\n**Not as predicted:** " + wrong_prediction + "\n"));
  const auto cell = json_of(matrix)["rows"][46]["cells"]["cuda-vmm"];
  EXPECT_EQ(cell["as_predicted"], false);
  EXPECT_EQ(cell["result"], "fails");
  EXPECT_EQ(cell["predicted"]["result"], "works");
}

TEST(matrix_text, cells_that_did_not_run_are_marked) {
  auto matrix = predicted_matrix(world());
  matrix.rows[1].cells = unused_cells(matrix.ways, cell_state::not_run, "interrupted by a signal");
  matrix.stopped = "interrupted by a signal";
  const auto text = text_of(matrix);
  EXPECT_THAT(text, HasSubstr(" 2  yes  yes  no     yes   each  differ  not run b"));
  EXPECT_THAT(text, HasSubstr("\nb   interrupted by a signal.\n"));
  EXPECT_THAT(text, HasSubstr("\n7 of 8 rows ran, all as published.\n"));
  EXPECT_THAT(
      text,
      ::testing::EndsWith("\nNot everything was run: interrupted by a signal.\n155 cells "
                          "ran, 155 as predicted, 5 not run, 160 not applicable, 31.5 s\n"));
}

TEST(matrix_text, remark_is_shown) {
  auto matrix = predicted_matrix(world());
  EXPECT_EQ(json_of(matrix)["remark"], nullptr);
  matrix.remark = "Something else.";
  EXPECT_THAT(text_of(matrix), HasSubstr("/dev/nvidia1)\n  Something else.\n\n"));
  EXPECT_THAT(markdown_of(matrix), HasSubstr("/dev/nvidia1)\n- Something else.\n\n"));
  EXPECT_EQ(json_of(matrix)["remark"], "Something else.");
}

TEST(matrix_text, ways_of_unchanged_programs_have_tables_of_their_own) {
  const auto matrix = predicted_matrix(world(), true);
  const auto text = text_of(matrix);
  EXPECT_LE(longest_line(text), 100U);
  EXPECT_THAT(text,
              HasSubstr("\n #  IPC  PID  share  priv  GPUs  PIDs    unmodified  unmodified-event  "
                        "unmodified-fd\n"));
  EXPECT_THAT(text, HasSubstr("\n 5  yes  no   no     yes   each  equal   works "));
  EXPECT_THAT(text,
              HasSubstr("libgpushm-ipc.so rewrites the PID in the handle that equals the "
                        "importer's"));
  // Rows whose importer may open the GPU work, all others fail as with different PIDs.
  for (const row_result& row : matrix.rows) {
    for (const cell& each : row.cells) {
      if (!inspect::needs_ipc_library(each.how) || !each.ran()) {
        continue;
      }
      const bool sees_gpu = row.setting.privileged || row.setting.gpus == gpu_choice::same_set;
      EXPECT_EQ(each.state == cell_state::works, sees_gpu) << row.setting.number;
      EXPECT_EQ(each.failure,
                sees_gpu                                 ? ""
                : each.how == way::unmodified_descriptor ? "CUDA_ERROR_INVALID_DEVICE (101)"
                                                         : "CUDA_ERROR_INVALID_VALUE (1)");
    }
  }
  EXPECT_THAT(markdown_of(matrix),
              HasSubstr("| host | unmodified | unmodified-event | unmodified-fd |\n"));
  EXPECT_EQ(json_of(matrix)["rows"][46]["cells"]["unmodified"]["result"], "works");
}

TEST(matrix_text, measured_costs_are_shown_for_rows_that_work) {
  auto matrix = predicted_matrix(world(), true);
  EXPECT_THAT(text_of(matrix), Not(HasSubstr("bandwidth")));
  EXPECT_THAT(markdown_of(matrix), Not(HasSubstr("## Open time and bandwidth")));
  EXPECT_EQ(json_of(matrix)["measured_bytes"], nullptr);
  matrix.measured_bytes = 256UL << 20U;
  for (row_result& row : matrix.rows) {
    for (cell& each : row.cells) {
      if (each.state == cell_state::works && each.how != way::host) {
        each.bytes_per_second = 397e9;
      }
    }
  }
  const auto text = text_of(matrix);
  EXPECT_LE(longest_line(text), 100U);
  EXPECT_THAT(text, HasSubstr("bandwidth of copies of 256 MiB"));
  EXPECT_THAT(text, HasSubstr("\n47  -                  43.0 us, 397 GB/s"));
  const auto markdown = markdown_of(matrix);
  EXPECT_THAT(markdown, HasSubstr("\n## Open time and bandwidth\n"));
  EXPECT_THAT(
      markdown,
      HasSubstr("\n| 47 | no | no | no | no | same set | equal | - | 43.0 us, 397 GB/s | "));
  EXPECT_THAT(markdown, HasSubstr("| 43.0 us | 43.0 us, 397 GB/s |"));
  const auto document = json_of(matrix);
  EXPECT_EQ(document["measured_bytes"], 256UL << 20U);
  EXPECT_EQ(document["rows"][46]["cells"]["unmodified"]["bytes_per_second"], 397e9);
  EXPECT_EQ(document["rows"][46]["cells"]["host"]["bytes_per_second"], nullptr);
}

TEST(matrix_markdown, has_all_sections) {
  const auto text = markdown_of(predicted_matrix(world()));
  EXPECT_THAT(
      text,
      ::testing::StartsWith(
          "# Which processes can share GPU memory\n\n"
          "Generated by `gpushm matrix --markdown`: 2 GPUs, driver 580.159.04, runc version "
          "1.1.5, Linux 6.1.0, 2026-01-31.\n\n"
          "- GPU A (GPU-aaaaaaaa-0000, /dev/nvidia0)\n"));
  EXPECT_THAT(text, HasSubstr("\n## How to read it\n"));
  EXPECT_THAT(
      text,
      HasSubstr("### T2: two pods, one ResourceClaim with two GPUs for both\n\n"
                "| row | hostIPC | hostPID | shareProcessNamespace | privileged | published | raw "
                "handle here | cuda-ipc | cuda-vmm | cuda-pool | host |\n"
                "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
                "| 34 | yes | yes | no | yes | success | success | works | works | works | works "
                "|\n"));
  EXPECT_THAT(text,
              HasSubstr("| 37 | yes | no | no | yes | same set | equal | fails f | works g | works "
                        "d | works d | works e |\n"));
  EXPECT_THAT(text,
              HasSubstr("\n- **a**: two processes of one PID namespace never have the same "
                        "PID.\n"));
}

TEST(matrix_json, has_all_documented_keys) {
  auto some = predicted_matrix(world());
  some.rows[3].cells = unused_cells(some.ways, cell_state::not_run, "no GPU");
  const auto json = json_of(some);
  EXPECT_EQ(json["rows"].size(), 64U);
  EXPECT_EQ(json["published"].size(), 3U);
  EXPECT_EQ(json["summary"]["as_predicted"], 155);
  EXPECT_EQ(json["stopped"], nullptr);
  const auto& row = json["rows"][46];
  EXPECT_EQ(row["number"], 47);
  EXPECT_EQ(row["hostPID"], false);
  EXPECT_EQ(row["pids"], "equal");
  EXPECT_EQ(row["cells"]["raw-legacy"]["failure"], "CUDA_ERROR_INVALID_CONTEXT (201)");
  EXPECT_EQ(row["cells"]["raw-legacy"]["open_seconds"], nullptr);
  EXPECT_EQ(row["cells"]["cuda-vmm"]["failure"], nullptr);
  EXPECT_EQ(row["cells"]["cuda-vmm"]["importer_pid"], 7);
  EXPECT_DOUBLE_EQ(row["cells"]["cuda-vmm"]["open_seconds"].get<double>(), 43e-6);
  EXPECT_EQ(json["rows"][0]["cells"]["host"]["result"], "not applicable");
  EXPECT_EQ(json["rows"][3]["cells"]["host"]["result"], "not run");
  EXPECT_EQ(json["rows"][3]["cells"]["host"]["as_predicted"], nullptr);
  EXPECT_EQ(json["published"][0]["rows"][1]["here"], nullptr);
  EXPECT_EQ(json["published"][0]["rows"][1]["differs"], nullptr);
  EXPECT_EQ(json["published"][0]["rows"][2]["here"], "invalid device context");
  EXPECT_EQ(json["published"][0]["rows"][2]["differs"], false);
}

}  // namespace
}  // namespace gpushm::cli::matrix
