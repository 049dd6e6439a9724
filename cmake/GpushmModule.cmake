# SPDX-License-Identifier: Apache-2.0
# Compiler settings and the one way to declare a folder under src/ as a target.
include_guard(GLOBAL)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(GPUSHM_CCACHE ccache)
if(GPUSHM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER "${GPUSHM_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${GPUSHM_CCACHE}")
endif()

add_library(gpushm_flags INTERFACE)
target_compile_options(gpushm_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wcast-qual -Wformat=2 -Wundef
  -Wdouble-promotion
  $<$<COMPILE_LANGUAGE:CXX>:-Wold-style-cast -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wduplicated-cond -Wduplicated-branches -Wlogical-op
    -Wnull-dereference -Wimplicit-fallthrough=5 -Wsuggest-override>
  $<$<BOOL:${GPUSHM_WERROR}>:-Werror>)
target_include_directories(gpushm_flags INTERFACE
  "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src" "${PROJECT_BINARY_DIR}/generated")
target_link_libraries(gpushm_flags INTERFACE Threads::Threads)

# gpushm_module(NAME SOURCES file... [DEPENDS module...] [LIBRARIES target...])
# Makes the static target gpushm_NAME (alias gpushm::NAME). DEPENDS names the other folders whose headers this one
# may use; the layering of the design is exactly these lists.
function(gpushm_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_library(gpushm_${name} STATIC ${arg_SOURCES})
  add_library(gpushm::${name} ALIAS gpushm_${name})
  target_link_libraries(gpushm_${name} PUBLIC gpushm_flags)
  foreach(dep IN LISTS arg_DEPENDS)
    target_link_libraries(gpushm_${name} PUBLIC gpushm_${dep})
  endforeach()
  target_link_libraries(gpushm_${name} PUBLIC ${arg_LIBRARIES})
endfunction()

# gpushm_test(NAME LABEL label... SOURCES file... [MODULES module...] [LIBRARIES target...])
# A GoogleTest executable; every case becomes a CTest test with the given labels (unit, process, container, gpu, slow).
function(gpushm_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;MODULES;LIBRARIES;LABEL" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE gpushm_flags GTest::gtest GTest::gmock GTest::gtest_main ${arg_LIBRARIES})
  foreach(dep IN LISTS arg_MODULES)
    target_link_libraries(${name} PRIVATE gpushm_${dep})
  endforeach()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${arg_LABEL}" TIMEOUT ${arg_TIMEOUT})
endfunction()
