# SPDX-License-Identifier: Apache-2.0
# The program: settings, brokers, HTTP, the hook's file, metrics.
gpushm_test(agent_parts_test LABEL unit
  SOURCES "${CMAKE_CURRENT_LIST_DIR}/agent_brokers_test.cpp" "${CMAKE_CURRENT_LIST_DIR}/agent_hook_file_test.cpp"
          "${CMAKE_CURRENT_LIST_DIR}/agent_metrics_test.cpp" "${CMAKE_CURRENT_LIST_DIR}/agent_settings_test.cpp"
          "${CMAKE_CURRENT_LIST_DIR}/agent_web_server_test.cpp"
  MODULES agent client LIBRARIES gpushm_testing_process)
