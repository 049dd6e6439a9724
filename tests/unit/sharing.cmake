# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_client_test
  SOURCES client_broker_test.cpp client_registry_test.cpp broker_statistics_test.cpp
  MODULES exchange client broker
  LIBRARIES gpushm_testing_process
  LABEL unit)
gpushm_test(gpushm_moved_from_test
  SOURCES moved_from_test.cpp
  MODULES exchange client broker
  LIBRARIES gpushm_testing_process
  LABEL unit)
gpushm_test(gpushm_import_cache_test
  SOURCES import_cache_test.cpp import_cache_parts_test.cpp prefetch_test.cpp scripted_broker.cpp
  MODULES client broker
  LIBRARIES gpushm_testing_process gpushm_testing_ptrace
  LABEL process)
# Started under ptrace by the test.
add_executable(import_cache_victim import_cache_victim.cpp)
target_include_directories(import_cache_victim PRIVATE "${PROJECT_SOURCE_DIR}/testing")
target_link_libraries(import_cache_victim PRIVATE gpushm_flags gpushm_client)
add_dependencies(gpushm_import_cache_test import_cache_victim)
gpushm_test(gpushm_client_connection_test
  SOURCES client_answers_test.cpp client_connection_test.cpp client_lanes_test.cpp scripted_broker.cpp
  MODULES client broker
  LIBRARIES gpushm_testing_process
  LABEL process)

if(CMAKE_CROSSCOMPILING)  # emulated are programs of one process
  return()
endif()
# On the fake driver: each case in a process of its own, because calls that are to fail are counted.
add_executable(client_log_fake_test client_log_fake_test.cpp)
target_link_libraries(client_log_fake_test PRIVATE
  gpushm_flags gpushm_client gpushm_broker gpushm_testing_process GTest::gtest GTest::gtest_main)
foreach(case may_call_the_client_that_logs may_wait_for_a_lock_that_is_held_over_calls)
  add_test(NAME client_log_fake.${case}
    COMMAND run-with-fake-gpus -- $<TARGET_FILE:client_log_fake_test> --gtest_filter=log_sink.${case})
  set_tests_properties(client_log_fake.${case} PROPERTIES LABELS process TIMEOUT 120
    ENVIRONMENT "GPUSHM_FAKE_FAIL=cuMemMap:4=1,cuMemUnmap:1=700")
endforeach()
gpushm_test_programs(client_log_fake_test run-with-fake-gpus)
