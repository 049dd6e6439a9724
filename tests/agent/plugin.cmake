# SPDX-License-Identifier: Apache-2.0
# The device plugin's logic: configuration, plans, choice, health.
gpushm_test(gpushm_plugin_configuration_test LABEL unit SINGLE_THREADED
  SOURCES plugin_configuration_test.cpp MODULES kubelet_plugin)
target_compile_definitions(gpushm_plugin_configuration_test PRIVATE
  GPUSHM_PLUGIN_CONFIGURATIONS="${CMAKE_CURRENT_LIST_DIR}/plugin_configurations")
gpushm_test(gpushm_plugin_plan_test LABEL unit SINGLE_THREADED
  SOURCES plugin_plan_test.cpp plugin_allocate_test.cpp
  MODULES kubelet_plugin LIBRARIES gpushm_test_drivers gpushm_testing_process)
target_include_directories(gpushm_plugin_plan_test PRIVATE "${CMAKE_CURRENT_LIST_DIR}")
gpushm_test(gpushm_plugin_choice_test LABEL unit
  SOURCES plugin_choice_test.cpp plugin_health_test.cpp MODULES kubelet_plugin)
target_include_directories(gpushm_plugin_choice_test PRIVATE "${CMAKE_CURRENT_LIST_DIR}")
gpushm_test(gpushm_plugin_nvml_test LABEL unit
  SOURCES plugin_nvml_test.cpp
  MODULES kubelet_plugin LIBRARIES gpushm_test_drivers gpushm_testing_process)
target_include_directories(gpushm_plugin_nvml_test PRIVATE "${CMAKE_CURRENT_LIST_DIR}")
add_dependencies(gpushm_plugin_nvml_test gpushm_fake_nvml gpushm_fake_cuda)
