# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_client_test
  SOURCES client_broker_test.cpp
  MODULES client broker
  LABEL unit)
