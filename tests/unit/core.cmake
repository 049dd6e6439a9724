# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_core_test
  SOURCES core_budget_test.cpp core_domain_test.cpp core_fence_test.cpp core_model_test.cpp core_share_test.cpp
  MODULES core
  LABEL unit)
# Programs of their own: they replace operator new.
gpushm_test(gpushm_core_heap_test
  SOURCES core_heap_test.cpp hub_heap_test.cpp core_counting_new.cpp
  MODULES broker core
  LABEL unit SINGLE_THREADED)
gpushm_test(gpushm_broker_heap_test
  SOURCES broker_heap_test.cpp core_counting_new.cpp
  MODULES broker client
  LIBRARIES gpushm_testing_process
  LABEL unit)
