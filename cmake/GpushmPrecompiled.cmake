# SPDX-License-Identifier: Apache-2.0
# GPUSHM_PRECOMPILED: the standard library's headers, JSON's and GoogleTest's are compiled once, by clang, with their
# templates; what includes them then takes some 0.4 of the time. (g++ would save 13 to 22 %.) Builds without this, file by
# file (aarch64, coverage), show a source that includes less than it uses.
include_guard(GLOBAL)

if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "GPUSHM_PRECOMPILED is for clang (this is ${CMAKE_CXX_COMPILER_ID}). "
                      "Give -DCMAKE_CXX_COMPILER=clang++, or -DGPUSHM_PRECOMPILED=OFF")
endif()

# Every source is compiled alike: with -fPIE, or without threads, it could not use what is compiled for a library.
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
add_compile_options(-fPIC -pthread)

set(GPUSHM_PRECOMPILED_HEADERS
  <algorithm> <array> <atomic> <charconv> <chrono> <condition_variable> <cstring> <deque> <filesystem> <fstream>
  <functional> <iostream> <iterator> <limits> <map> <memory> <mutex> <optional> <random> <set> <span> <sstream>
  <stdexcept> <string> <string_view> <thread> <tuple> <unordered_map> <utility> <variant> <vector>
  <nlohmann/json.hpp>)

# gpushm_precompile(NAME IS_TEST_CODE value HEADERS header... [LIBRARIES target...])
# The target NAME: headers, compiled as the product is or as the tests are. ${NAME_FILE} of the caller: the path of that.
function(gpushm_precompile name)
  cmake_parse_arguments(arg "" "IS_TEST_CODE" "HEADERS;LIBRARIES" ${ARGN})
  set(source "${PROJECT_BINARY_DIR}/precompiled/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "")
  add_library(${name} OBJECT "${source}")
  set_target_properties(${name} PROPERTIES GPUSHM_IS_TEST_CODE ${arg_IS_TEST_CODE})
  target_link_libraries(${name} PRIVATE gpushm_flags ${arg_LIBRARIES})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
  set(file "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${name}.dir/cmake_pch.hxx.pch")
  # ccache takes the sum for what was compiled, which has this tree's path in it, and so is another in each clone.
  list(TRANSFORM arg_HEADERS PREPEND "#include " OUTPUT_VARIABLE text)
  list(JOIN text "\n" text)
  file(WRITE "${source}.in" "${text}\n")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS}")
  execute_process(
    COMMAND "${CMAKE_CXX_COMPILER}" ${flags} -std=c++20 -fPIC -pthread -x c++ -E -P "${source}.in"
    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(SHA256 sum "${text}")
  file(WRITE "${file}.sum" "${sum}\n")
  set(${name}_FILE "${file}" PARENT_SCOPE)
endfunction()

# After all targets are there.
function(gpushm_use_precompiled)
  gpushm_targets_below("${PROJECT_SOURCE_DIR}" below)
  gpushm_precompile(gpushm_precompiled IS_TEST_CODE OFF HEADERS ${GPUSHM_PRECOMPILED_HEADERS})
  if(GPUSHM_BUILD_TESTS)
    find_package(GTest REQUIRED)  # what tests/ finds is known there alone
    gpushm_precompile(gpushm_precompiled_tests IS_TEST_CODE ON HEADERS ${GPUSHM_PRECOMPILED_HEADERS} <gmock/gmock.h> <gtest/gtest.h>
      LIBRARIES GTest::gtest GTest::gmock)
  endif()
  foreach(target IN LISTS below)
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "EXECUTABLE|(STATIC|SHARED|MODULE|OBJECT)_LIBRARY")
      continue()
    endif()
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.(cpp|cc)$")
    get_target_property(is_test ${target} GPUSHM_IS_TEST_CODE)
    set(precompiled gpushm_precompiled)
    if(is_test AND GPUSHM_BUILD_TESTS)
      set(precompiled gpushm_precompiled_tests)
    endif()
    add_dependencies(${target} ${precompiled})
    # Not by REUSE_FROM: that gives the path to -Xclang, where ccache does not make it relative.
    foreach(source IN LISTS sources)
      get_source_file_property(own "${source}" TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
      if(own MATCHES "-include-pch|-O[0-9]")  # a target beside this one has it, too; or it cannot be used
        continue()
      endif()
      set_property(SOURCE "${source}" TARGET_DIRECTORY ${target} APPEND PROPERTY
        COMPILE_OPTIONS -include-pch "${${precompiled}_FILE}")
    endforeach()
  endforeach()
endfunction()
