# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_k8s_lint_test LABEL unit SINGLE_THREADED
  SOURCES k8s_lint_test.cpp
  LIBRARIES gpushm_k8s_lint)
target_compile_definitions(gpushm_k8s_lint_test PRIVATE GPUSHM_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
gpushm_test(gpushm_k8s_lint_cli_test LABEL process
  SOURCES k8s_lint_cli_test.cpp
  LIBRARIES gpushm_testing_process nlohmann_json::nlohmann_json)
add_dependencies(gpushm_k8s_lint_cli_test gpushm)
