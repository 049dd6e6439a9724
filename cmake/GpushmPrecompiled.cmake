# SPDX-License-Identifier: Apache-2.0
# GPUSHM_PRECOMPILED: clang precompiles the headers of the standard library, JSON and GoogleTest, with their templates; sources
# that include them then compile in about 0.4 of the time. (g++ would save 13 to 22 %.) `make coverage` compiles
# file by file without precompiled headers, as `make aarch64` does changed files; they detect missing includes.
include_guard(GLOBAL)

if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "GPUSHM_PRECOMPILED is for clang (this is ${CMAKE_CXX_COMPILER_ID}). "
                      "Pass -DCMAKE_CXX_COMPILER=clang++, or -DGPUSHM_PRECOMPILED=OFF")
endif()

# All sources are compiled with the same options: with -fPIE, or without threads, they could not use headers precompiled for a
# library.
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
add_compile_options(-fPIC -pthread)

set(GPUSHM_PRECOMPILED_HEADERS
  <algorithm> <array> <atomic> <charconv> <chrono> <condition_variable> <cstring> <deque> <filesystem> <fstream>
  <functional> <iostream> <iterator> <limits> <map> <memory> <mutex> <optional> <random> <set> <span> <sstream>
  <stdexcept> <string> <string_view> <thread> <tuple> <unordered_map> <utility> <variant> <vector>
  <fmt/core.h> <nlohmann/json.hpp>)

# gpushm_precompile(NAME IS_TEST_CODE value HEADERS header... [LIBRARIES target...])
# Creates the target NAME: headers, precompiled with the options of the product or of the tests. Sets ${NAME_FILE} in the caller
# to the path of the result.
function(gpushm_precompile name)
  cmake_parse_arguments(arg "" "IS_TEST_CODE" "HEADERS;LIBRARIES" ${ARGN})
  set(source "${PROJECT_BINARY_DIR}/precompiled/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "")
  add_library(${name} OBJECT "${source}")
  set_target_properties(${name} PROPERTIES GPUSHM_IS_TEST_CODE ${arg_IS_TEST_CODE})
  target_link_libraries(${name} PRIVATE gpushm_flags ${arg_LIBRARIES})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
  set(file "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${name}.dir/cmake_pch.hxx.pch")
  # ccache uses this checksum in place of the precompiled header, which contains this tree's path and so differs in each clone.
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

# Call after all targets are declared.
function(gpushm_use_precompiled)
  gpushm_targets_below("${PROJECT_SOURCE_DIR}" below)
  gpushm_precompile(gpushm_precompiled IS_TEST_CODE OFF HEADERS ${GPUSHM_PRECOMPILED_HEADERS})
  if(GPUSHM_BUILD_TESTS)
    find_package(GTest REQUIRED)  # targets found in tests/ are not visible here
    gpushm_precompile(gpushm_precompiled_tests IS_TEST_CODE ON HEADERS ${GPUSHM_PRECOMPILED_HEADERS} <gmock/gmock.h> <gtest/gtest.h>
      LIBRARIES GTest::gtest GTest::gmock)
  endif()
  foreach(target IN LISTS below)
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "EXECUTABLE|(STATIC|SHARED|MODULE|OBJECT)_LIBRARY")
      continue()
    endif()
    get_target_property(options ${target} COMPILE_OPTIONS)
    if(options MATCHES "-fno-sanitize=all")  # incompatible
      continue()
    endif()
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.(cpp|cc)$")
    get_target_property(is_test ${target} GPUSHM_IS_TEST_CODE)
    set(precompiled gpushm_precompiled)
    if(is_test AND GPUSHM_BUILD_TESTS)
      set(precompiled gpushm_precompiled_tests)
    endif()
    get_target_property(directory ${target} SOURCE_DIR)
    # Not REUSE_FROM: it passes the path to -Xclang, where ccache does not make it relative.
    foreach(source IN LISTS sources)
      # TARGET_DIRECTORY does not apply to the path: a relative one would name a file of this folder.
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${directory}" NORMALIZE)
      get_source_file_property(own "${source}" TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
      if(own MATCHES "-include-pch|-O[0-9]")  # set for another target of the same folder, or incompatible
        continue()
      endif()
      set_property(SOURCE "${source}" TARGET_DIRECTORY ${target} APPEND PROPERTY
        COMPILE_OPTIONS -include-pch "${${precompiled}_FILE}")
      set_property(SOURCE "${source}" TARGET_DIRECTORY ${target} APPEND PROPERTY OBJECT_DEPENDS "${${precompiled}_FILE}")
    endforeach()
  endforeach()
endfunction()
