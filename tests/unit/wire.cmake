# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_wire_test
  SOURCES wire_codec_test.cpp wire_hostile_test.cpp wire_layout_test.cpp wire_samples.cpp
          wire_ticket_hostile_test.cpp wire_ticket_samples.cpp wire_ticket_test.cpp
  MODULES wire
  LABEL unit SINGLE_THREADED)
target_compile_definitions(gpushm_wire_test PRIVATE
  GPUSHM_GOLDEN_DIR="${CMAKE_CURRENT_SOURCE_DIR}/golden")
