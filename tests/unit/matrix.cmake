# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_matrix_test
  SOURCES matrix_test.cpp matrix_render_test.cpp
  LIBRARIES gpushm_command gpushm_exchange gpushm_client gpushm_broker gpushm_testing_process
  LABEL unit SINGLE_THREADED)
target_include_directories(gpushm_matrix_test PRIVATE
  "${PROJECT_SOURCE_DIR}/apps/gpushm" "${PROJECT_SOURCE_DIR}/apps")
