# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_memory_test
  SOURCES memory_chunk_plan_test.cpp memory_host_backend_test.cpp memory_remote_test.cpp
  MODULES memory
  LABEL unit)
