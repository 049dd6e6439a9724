# SPDX-License-Identifier: Apache-2.0
# The part for device plugins, as a library for tests and as a program that can be killed.
find_package(nlohmann_json REQUIRED)
add_library(gpushm_fake_kubelet STATIC
  ${CMAKE_CURRENT_LIST_DIR}/device_accounts.cpp ${CMAKE_CURRENT_LIST_DIR}/fake_kubelet.cpp
  ${CMAKE_CURRENT_LIST_DIR}/fake_kubelet_allocation.cpp
  ${CMAKE_CURRENT_LIST_DIR}/plugin_client.cpp)
target_link_libraries(gpushm_fake_kubelet PUBLIC gpushm_test_code gpushm_kubernetes_device_plugin_resources gpushm_kubernetes_kubelet_api gpushm_base)

add_executable(fake_kubelet ${CMAKE_CURRENT_LIST_DIR}/fake_kubelet_program.cpp)
target_link_libraries(fake_kubelet PRIVATE gpushm_fake_kubelet nlohmann_json::nlohmann_json)
