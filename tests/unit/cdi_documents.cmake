# SPDX-License-Identifier: Apache-2.0
find_package(nlohmann_json REQUIRED)
gpushm_test(gpushm_cdi_documents_test
  SOURCES cdi_documents_test.cpp cdi_parse_test.cpp cdi_write_test.cpp cdi_registry_test.cpp cdi_watch_test.cpp
          docs_text.cpp
  MODULES spec
  LIBRARIES nlohmann_json::nlohmann_json
  LABEL unit)
target_compile_definitions(gpushm_cdi_documents_test PRIVATE
  GPUSHM_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
  GPUSHM_CDI_CASES="${PROJECT_SOURCE_DIR}/tests/cdi/documents/cases.json")
