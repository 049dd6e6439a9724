# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_discover_test
  SOURCES discover_files_test.cpp discover_formats_test.cpp discover_devices_test.cpp discover_hook_root_test.cpp
          "${PROJECT_SOURCE_DIR}/apps/gpushm/cdi/hook_root.cpp"
          "${PROJECT_SOURCE_DIR}/apps/gpushm/cdi/hook_sandbox.cpp"
  MODULES discover
  LIBRARIES gpushm_test_drivers gpushm_testing_process
  LABEL unit SINGLE_THREADED)
target_include_directories(gpushm_discover_test PRIVATE "${PROJECT_SOURCE_DIR}/apps/gpushm")
