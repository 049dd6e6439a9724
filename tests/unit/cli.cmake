# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_cli_parts_test
  SOURCES cli_parts_test.cpp cli_near_name_test.cpp cli_output_test.cpp
  LIBRARIES gpushm_command gpushm_exchange gpushm_client gpushm_broker gpushm_app_support
  LABEL unit SINGLE_THREADED)
target_include_directories(gpushm_cli_parts_test PRIVATE
  "${PROJECT_SOURCE_DIR}/apps/gpushm" "${PROJECT_SOURCE_DIR}/apps")
