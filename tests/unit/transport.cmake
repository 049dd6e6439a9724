# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_transport_test
  SOURCES transport_test.cpp transport_principal_test.cpp
  MODULES transport
  LIBRARIES gpushm_testing_process
  LABEL unit)
