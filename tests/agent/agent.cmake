# SPDX-License-Identifier: Apache-2.0
# The program: settings, brokers, HTTP, the hook's file, metrics.
gpushm_test(agent_parts_test LABEL unit
  SOURCES "${CMAKE_CURRENT_LIST_DIR}/agent_brokers_test.cpp" "${CMAKE_CURRENT_LIST_DIR}/agent_hook_file_test.cpp"
          "${CMAKE_CURRENT_LIST_DIR}/agent_metrics_test.cpp" "${CMAKE_CURRENT_LIST_DIR}/agent_settings_test.cpp"
          "${CMAKE_CURRENT_LIST_DIR}/agent_web_server_test.cpp"
  MODULES agent client wire LIBRARIES gpushm_testing_process)
target_compile_definitions(agent_parts_test PRIVATE GPUSHM_SOURCE_DIR="${PROJECT_SOURCE_DIR}")

if(TARGET gpushmd)
  add_library(gpushm_agent_test_support STATIC
    "${CMAKE_CURRENT_LIST_DIR}/support/agent_node.cpp" "${PROJECT_SOURCE_DIR}/tests/container/cdi_machine.cpp")
  target_include_directories(gpushm_agent_test_support PUBLIC "${CMAKE_CURRENT_LIST_DIR}" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(gpushm_agent_test_support PUBLIC
    gpushm_dra_test_support gpushm_testing_dra_kubelet gpushm_fake_kubelet gpushm_fake_kube_api gpushm_testing_container
    gpushm_fake_gpus gpushm_client gpushm_broker GTest::gtest)

  gpushm_test(agent_process_test LABEL process-grpc TIMEOUT 180
    SOURCES "${CMAKE_CURRENT_LIST_DIR}/agent_process_test.cpp" LIBRARIES gpushm_agent_test_support)
  add_dependencies(agent_process_test gpushmd gpushm-cdi-hook gpushm_fake_cuda gpushm_fake_nvml)

  gpushm_test(agent_share_test LABEL container-grpc TIMEOUT 300
    SOURCES "${CMAKE_CURRENT_LIST_DIR}/agent_share_test.cpp" "${PROJECT_SOURCE_DIR}/tests/container/cdi_container.cpp"
    LIBRARIES gpushm_agent_test_support)
  target_include_directories(agent_share_test PRIVATE "${PROJECT_SOURCE_DIR}/tests/container")
  add_dependencies(agent_share_test gpushmd gpushm gpushm-cdi-hook gpushm_fake_cuda gpushm_fake_nvml)
endif()
