# SPDX-License-Identifier: Apache-2.0
gpushm_test(driver_test LABEL unit SOURCES driver_test.cpp MODULES driver)

if(CMAKE_CROSSCOMPILING)  # emulated are programs of one process
  return()
endif()
# On the fake driver: started under run-with-fake-gpus, so as one CTest test and not one a case.
add_executable(driver_fake_test driver_fake_test.cpp)
target_link_libraries(driver_fake_test PRIVATE
  gpushm_flags gpushm_driver gpushm_fake_gpus GTest::gtest GTest::gtest_main)
add_test(NAME driver_fake
  COMMAND run-with-fake-gpus --gpus 2 --size 64MiB -- $<TARGET_FILE:driver_fake_test>)
gpushm_test_programs(driver_fake_test run-with-fake-gpus)
set_tests_properties(driver_fake PROPERTIES LABELS unit TIMEOUT 120)
