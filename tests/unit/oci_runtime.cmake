# SPDX-License-Identifier: Apache-2.0
gpushm_test(oci_runtime_unit_test
  SOURCES oci_runtime_arguments_test.cpp oci_runtime_diff_test.cpp oci_runtime_request_test.cpp
          oci_runtime_selection_test.cpp
  LIBRARIES gpushm_oci_runtime gpushm_testing_process
  LABEL unit SINGLE_THREADED)
