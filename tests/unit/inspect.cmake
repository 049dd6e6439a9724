# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_inspect_test
  SOURCES inspect_facts_test.cpp inspect_rules_test.cpp
  MODULES inspect
  LIBRARIES gpushm_test_machines
  LABEL unit SINGLE_THREADED)
