# SPDX-License-Identifier: Apache-2.0
gpushm_test(inspect_topology_test SOURCES inspect_topology_test.cpp
  MODULES inspect LIBRARIES gpushm_test_machines LABEL unit SINGLE_THREADED)
target_compile_definitions(inspect_topology_test
  PRIVATE GPUSHM_GOLDEN_DIR="${CMAKE_CURRENT_LIST_DIR}/golden/topo")
