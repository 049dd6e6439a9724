# SPDX-License-Identifier: Apache-2.0
# The device plugin service of a resource, keeping it registered, and the fake kubelet that this is proved with.
gpushm_test(kubelet_server_test LABEL unit-grpc TIMEOUT 180
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/server_allocation_test.cpp ${CMAKE_CURRENT_LIST_DIR}/server_hostile_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/server_instances_test.cpp ${CMAKE_CURRENT_LIST_DIR}/server_leaks_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/server_lifecycle_test.cpp ${CMAKE_CURRENT_LIST_DIR}/server_parts_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/server_resources_test.cpp ${CMAKE_CURRENT_LIST_DIR}/server_service_test.cpp
  MODULES kubelet_server LIBRARIES gpushm_fake_kubelet gpushm_testing_process)

gpushm_test(kubelet_restart_test LABEL process-grpc TIMEOUT 180
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/server_restart_test.cpp
  MODULES kubelet_server LIBRARIES gpushm_fake_kubelet gpushm_testing_process nlohmann_json::nlohmann_json)
add_dependencies(kubelet_restart_test fake_kubelet)

gpushm_test(directory_watch_test LABEL unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/server_directory_watch_test.cpp
  MODULES base LIBRARIES gpushm_testing_process)
