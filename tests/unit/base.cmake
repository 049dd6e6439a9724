# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_base_test
  SOURCES base_error_test.cpp base_file_test.cpp base_names_test.cpp base_size_text_test.cpp base_text_test.cpp
          base_process_test.cpp base_fork_test.cpp base_cpu_limit_test.cpp
  MODULES base
  LIBRARIES gpushm_testing_process
  LABEL unit)
