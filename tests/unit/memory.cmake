# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_memory_test
  SOURCES memory_chunk_plan_test.cpp memory_host_backend_test.cpp memory_remote_test.cpp
          memory_shared_table_test.cpp memory_host_room_test.cpp
  MODULES memory
  LIBRARIES gpushm_testing_process
  LABEL unit)
gpushm_test(gpushm_memory_large_pages_test
  SOURCES memory_large_pages_test.cpp
  MODULES memory
  LIBRARIES gpushm_testing_process
  LABEL unit SINGLE_THREADED)
target_link_options(gpushm_memory_large_pages_test PRIVATE LINKER:--wrap=sysconf)
