# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_base_test
  SOURCES base_error_test.cpp base_names_test.cpp base_size_text_test.cpp base_process_test.cpp
  MODULES base
  LABEL unit)
