# SPDX-License-Identifier: Apache-2.0
gpushm_test(gpushm_hub_test
  SOURCES hub_conversation_test.cpp hub_chunks_test.cpp hub_fence_test.cpp hub_share_test.cpp broker_turns_test.cpp
          broker_deadlines_test.cpp broker_end_watch_test.cpp broker_fence_watch_test.cpp broker_sender_test.cpp
          wire_samples.cpp
  MODULES broker
  LIBRARIES gpushm_testing_process
  LABEL unit)
# Parts of the server are made with Asio, as the broker is.
target_include_directories(gpushm_hub_test SYSTEM PRIVATE "${GPUSHM_ASIO_INCLUDE}")
target_compile_definitions(gpushm_hub_test PRIVATE $<TARGET_PROPERTY:gpushm_broker,COMPILE_DEFINITIONS>)
gpushm_test(gpushm_broker_poll_test
  SOURCES broker_poll_test.cpp
  MODULES broker client
  LIBRARIES gpushm_testing_process
  LABEL unit)
