# SPDX-License-Identifier: Apache-2.0
gpushm_test(inject_test
  SOURCES inject_apply_test.cpp inject_config_test.cpp inject_reference_test.cpp
  MODULES spec
  LIBRARIES gpushm_testing_process
  LABEL unit SINGLE_THREADED)
target_compile_definitions(inject_test
  PRIVATE GPUSHM_INJECTIONS_DIR="${PROJECT_SOURCE_DIR}/tests/cdi/injections")
