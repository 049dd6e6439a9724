# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_client_test
  SOURCES client_broker_test.cpp broker_statistics_test.cpp
  MODULES client broker
  LABEL unit)
gpushm_test(gpushm_import_cache_test
  SOURCES import_cache_test.cpp import_cache_parts_test.cpp
  MODULES client broker
  LIBRARIES gpushm_testing_process gpushm_testing_ptrace
  LABEL process)
# Started under ptrace by the test.
add_executable(import_cache_victim import_cache_victim.cpp)
target_include_directories(import_cache_victim PRIVATE "${PROJECT_SOURCE_DIR}/testing")
target_link_libraries(import_cache_victim PRIVATE gpushm_flags gpushm_client)
add_dependencies(gpushm_import_cache_test import_cache_victim)
