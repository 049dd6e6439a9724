# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_hub_test
  SOURCES hub_conversation_test.cpp hub_chunks_test.cpp hub_share_test.cpp wire_samples.cpp
  MODULES broker
  LABEL unit)
