# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_docs_test
  SOURCES docs_test.cpp docs_text.cpp
  MODULES core wire
  LABEL unit SINGLE_THREADED)
target_compile_definitions(gpushm_docs_test
  PRIVATE GPUSHM_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
