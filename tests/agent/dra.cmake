# SPDX-License-Identifier: Apache-2.0
# The DRA driver.
add_library(gpushm_dra_test_support STATIC dra_world.cpp)
target_include_directories(gpushm_dra_test_support PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(gpushm_dra_test_support PUBLIC gpushm_kubelet_dra gpushm_broker gpushm_testing_process)

gpushm_test(agent_dra_parts_test LABEL unit
  SOURCES dra_parts_test.cpp dra_claims_test.cpp dra_isolation_test.cpp LIBRARIES gpushm_dra_test_support)

add_executable(dra_victim dra_victim.cpp)
target_include_directories(dra_victim PRIVATE "${PROJECT_SOURCE_DIR}/testing")
target_link_libraries(dra_victim PRIVATE gpushm_flags gpushm_dra_test_support)
gpushm_test(agent_dra_kill_test LABEL process SOURCES dra_kill_test.cpp TIMEOUT 300
  LIBRARIES gpushm_dra_test_support gpushm_testing_ptrace)
add_dependencies(agent_dra_kill_test dra_victim)

gpushm_test(agent_dra_driver_test LABEL process-grpc SOURCES dra_driver_test.cpp dra_slices_test.cpp TIMEOUT 300
  MODULES client LIBRARIES gpushm_dra_test_support gpushm_testing_dra_kubelet)

if(TARGET gpushm_fake_kube_api)
  gpushm_test(agent_dra_cluster_test LABEL process-grpc SOURCES dra_cluster_test.cpp TIMEOUT 300
    LIBRARIES gpushm_dra_test_support gpushm_testing_dra_kubelet gpushm_fake_kube_api)

  # Beside the tests, because it needs what they stand on; prints percentiles when run by itself.
  add_executable(gpushm_bench_agent_prepare "${PROJECT_SOURCE_DIR}/bench/agent_prepare.cpp")
  target_link_libraries(gpushm_bench_agent_prepare PRIVATE
    gpushm_flags gpushm_dra_test_support gpushm_testing_dra_kubelet gpushm_fake_kube_api)
endif()
