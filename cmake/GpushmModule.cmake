# SPDX-License-Identifier: Apache-2.0
# Compiler settings, and functions that declare targets.
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

# About ninety programs are linked; mold links each in a fraction of the time.
find_program(GPUSHM_MOLD mold)
if(GPUSHM_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# These apply to every target, test programs included.
if(GPUSHM_SANITIZE)
  add_compile_options(-fsanitize=${GPUSHM_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  # Clang 14 emits this check's data before coroutines in a form that it cannot assemble.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=function>)
  add_link_options(-fsanitize=${GPUSHM_SANITIZE})
endif()
if(GPUSHM_COVERAGE)
  # Several threads and processes update the counters concurrently.
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()
if(GPUSHM_HARDEN)
  # Some distributions define _FORTIFY_SOURCE themselves; defining it twice is a warning.
  add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-clash-protection
                      -fstack-protector-strong)
  add_link_options(LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    add_compile_options(-fcf-protection)
  elseif(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    add_compile_options(-mbranch-protection=standard)
  endif()
endif()

define_property(TARGET PROPERTY GPUSHM_IS_TEST_CODE INITIALIZE_FROM_VARIABLE GPUSHM_IS_TEST_CODE
  BRIEF_DOCS "a test, a benchmark, or test support")
add_library(gpushm_flags INTERFACE)
set(is_test_code "$<BOOL:$<TARGET_PROPERTY:GPUSHM_IS_TEST_CODE>>")
if(GPUSHM_SANITIZE)
  # Tested code keeps all checks. For the tests' own code, checks for undefined behaviour take a third of the compile time
  # (five groups of sources: 102 s, without the checks 66 s).
  if(GPUSHM_SANITIZE MATCHES "undefined")
    target_compile_options(gpushm_flags INTERFACE $<${is_test_code}:-fno-sanitize=undefined>)
  endif()
endif()
# GCC's flow analysis of optimised code reports false null pointers in inlined library code (istreambuf_iterator, Asio's
# scheduler). The product's sources keep the warning; tests and benchmarks are compiled without it.
# A parameter may be called as its type ("lease& lease"): GCC's -Wshadow reports that for nested types and aliases, clang's only reports
# variables.
target_compile_options(gpushm_flags INTERFACE
  -Wall -Wextra -Wpedantic $<IF:$<COMPILE_LANG_AND_ID:CXX,GNU>,-Wshadow=local,-Wshadow> -Wconversion -Wsign-conversion -Wcast-qual -Wformat=2 -Wundef
  -Wdouble-promotion
  $<$<COMPILE_LANGUAGE:CXX>:-Wold-style-cast -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wduplicated-cond -Wduplicated-branches -Wlogical-op
    -Wimplicit-fallthrough=5 -Wsuggest-override
    $<$<NOT:${is_test_code}>:-Wnull-dereference>>
  # About braces that C++ allows to omit.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-missing-braces>
  $<$<BOOL:${GPUSHM_WERROR}>:-Werror>
  # GCC 12 falsely reports that an inlined text + std::string overlaps itself (GCC bug 105651).
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  # Sections let the linker drop code from the shared libraries that no public function needs. Unique
  # symbols would prevent unloading, and would be visible despite the version script.
  -ffunction-sections -fdata-sections
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>)
# Asio does not detect the coroutines of clang 14.
target_compile_definitions(gpushm_flags INTERFACE
  ASIO_STANDALONE ASIO_DISABLE_VISIBILITY
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:ASIO_HAS_CO_AWAIT=1>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:ASIO_HAS_STD_COROUTINE=1>)
target_link_options(gpushm_flags INTERFACE LINKER:--gc-sections)
target_include_directories(gpushm_flags INTERFACE "${PROJECT_SOURCE_DIR}/include")
target_link_libraries(gpushm_flags INTERFACE Threads::Threads)

# gpushm_include_root(TARGET ROOT PREFIX DIRECTORY)
# Users of the INTERFACE library TARGET include the files of DIRECTORY, and no others, as "PREFIX/file": a folder of the build
# tree contains only a symbolic link with that name. This is how the compiler enforces the layers.
function(gpushm_include_root target root prefix directory)
  set(base "${PROJECT_BINARY_DIR}/roots/${root}")
  cmake_path(GET prefix PARENT_PATH parent)
  file(MAKE_DIRECTORY "${base}/${parent}")
  file(CREATE_LINK "${directory}" "${base}/${prefix}" SYMBOLIC)
  target_include_directories(${target} INTERFACE "${base}")
endfunction()

# gpushm_module(NAME SOURCES file... [DEPENDS module...] [LIBRARIES target...])
# Creates the static library gpushm_NAME (alias gpushm::NAME). A module and the modules that link to it include its headers by
# their path below src/. A module can include only headers of the modules in DEPENDS and of their dependencies: these lists
# define the layers. gpushm_NAME_headers provides the headers without the library.
function(gpushm_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/src" OUTPUT_VARIABLE folder)
  string(REPLACE "/" "_" folder_name "${folder}")
  set(headers gpushm_${folder_name}_headers)
  if(NOT TARGET ${headers})
    add_library(${headers} INTERFACE)
    target_link_libraries(${headers} INTERFACE gpushm_flags)
    gpushm_include_root(${headers} ${folder_name} "${folder}" "${CMAKE_CURRENT_SOURCE_DIR}")
    foreach(dep IN LISTS arg_DEPENDS)
      target_link_libraries(${headers} INTERFACE gpushm_${dep}_headers)
    endforeach()
  endif()
  string(JOIN " " uses ${arg_DEPENDS})
  set_property(GLOBAL APPEND_STRING PROPERTY GPUSHM_MODULES "${name} ${folder} ${uses}\n")
  add_library(gpushm_${name} STATIC ${arg_SOURCES})
  add_library(gpushm::${name} ALIAS gpushm_${name})
  target_link_libraries(gpushm_${name} PUBLIC ${headers})
  foreach(dep IN LISTS arg_DEPENDS)
    target_link_libraries(gpushm_${name} PUBLIC gpushm_${dep})
  endforeach()
  target_link_libraries(gpushm_${name} PUBLIC ${arg_LIBRARIES})
endfunction()

# gpushm_rooms(NAME ROOM...)
# Adds the subfolders ROOM..., which are the modules NAME_ROOM: each may use only those before it. gpushm_NAME is all of them, and
# gpushm_NAME_headers their headers, so that NAME can be in DEPENDS.
function(gpushm_rooms name)
  add_library(gpushm_${name} INTERFACE)
  add_library(gpushm_${name}_headers INTERFACE)
  foreach(room IN LISTS ARGN)
    add_subdirectory(${room})
    target_link_libraries(gpushm_${name} INTERFACE gpushm_${name}_${room})
    target_link_libraries(gpushm_${name}_headers INTERFACE gpushm_${name}_${room}_headers)
    set_property(TARGET gpushm_${name} APPEND PROPERTY GPUSHM_ROOMS gpushm_${name}_${room})
  endforeach()
endfunction()

# gpushm_interface_sources(file...)
# Sources of this folder that define functions of gpushm.h or broker.h. In build/dev they have debug information about all
# types for abidiff (tests/lint/abi_guard.sh), in DWARF 4: libabigail 2.2 finds the header of each declaration in it, also
# in clang's output.
function(gpushm_interface_sources)
  if(GPUSHM_BUILD_TESTS AND CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT GPUSHM_SANITIZE AND NOT GPUSHM_COVERAGE)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS
      -g2 -gdwarf-4 $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fstandalone-debug>)
  endif()
endfunction()

# gpushm_test(NAME LABEL label [SINGLE_THREADED] [NO_TSAN] [SHARDS number] SOURCES file... [MODULES module...]
#             [LIBRARIES target...])
# A GoogleTest program. It is one CTest test, or SHARDS tests (NAME.1, NAME.2, …) that run concurrently and contain every nth
# case each: for programs that run longer than about 15 s. Label: unit, process, container or gpu, followed by "-grpc" if
# the program uses gRPC, which is excluded under ThreadSanitizer (the distribution's gRPC is not instrumented).
#
# The test kit contains the tests whose results can differ on another machine: not single-threaded ones (SINGLE_THREADED).
#
# Instrumented builds contain only the tests labelled unit and process; with ThreadSanitizer, neither gRPC nor single-threaded
# tests, nor those with NO_TSAN: of programs whose only threads are those of a library that has other tests. Cross builds
# contain the programs in GPUSHM_EMULATED_TESTS.
function(gpushm_test name)
  cmake_parse_arguments(arg "SINGLE_THREADED;NO_TSAN" "LABEL;SHARDS" "SOURCES;MODULES;LIBRARIES" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "gpushm_test(${name}): unknown: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  add_executable(${name} ${arg_SOURCES})
  gpushm_test_selected(${arg_LABEL} selected)
  if(arg_SINGLE_THREADED)
    set_target_properties(${name} PROPERTIES GPUSHM_NO_DIST ON)
  endif()
  if(GPUSHM_SANITIZE MATCHES "thread" AND (arg_SINGLE_THREADED OR arg_NO_TSAN))
    set(selected OFF)
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY GPUSHM_TEST_LABELS "${name} ${arg_LABEL}\n")
  target_link_libraries(${name} PRIVATE gpushm_test_code GTest::gtest GTest::gmock GTest::gtest_main ${arg_LIBRARIES})
  foreach(dep IN LISTS arg_MODULES)
    target_link_libraries(${name} PRIVATE gpushm_${dep})
  endforeach()
  if(CMAKE_CROSSCOMPILING AND NOT name IN_LIST GPUSHM_EMULATED_TESTS)
    set(selected OFF)
  endif()
  if(NOT selected)
    return()
  endif()
  gpushm_test_programs(${name})
  set(timeout 300)
  if(GPUSHM_SANITIZE OR CMAKE_CROSSCOMPILING)
    set(timeout 900)
  endif()
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${arg_SHARDS})
    set(test ${name})
    set(cost 1)
    if(arg_SHARDS GREATER 1)
      set(test ${name}.${shard})
      set(cost 20)
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${test} COMMAND ${name} --gtest_brief=1)
    # Long ones start first, also in a tree whose tests never ran.
    set_tests_properties(${test} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${timeout} COST ${cost}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# Whether tests of a label run in this build.
function(gpushm_test_selected label result)
  set(selected ON)
  if(GPUSHM_SANITIZE AND NOT label MATCHES "^(unit|process)")
    set(selected OFF)
  elseif(GPUSHM_SANITIZE MATCHES "thread" AND label MATCHES "grpc")
    set(selected OFF)
  endif()
  set(${result} ${selected} PARENT_SCOPE)
endfunction()

# gpushm_c_user(TARGET): a program in C11 that uses the shared libraries. With sanitizers it is linked as C++, because the
# libraries need the sanitizers' C++ runtime.
function(gpushm_c_user target)
  set_target_properties(${target} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF GPUSHM_NO_DIST ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef
    -Wstrict-prototypes -Wmissing-prototypes $<$<BOOL:${GPUSHM_WERROR}>:-Werror>)
  if(GPUSHM_SANITIZE)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
endfunction()

# Headers of the programs by their path ("apps/support/duration.hpp"), and of the tests ("tests/…", "bench/…").
add_library(gpushm_apps_headers INTERFACE)
target_link_libraries(gpushm_apps_headers INTERFACE gpushm_flags)
gpushm_include_root(gpushm_apps_headers apps apps "${PROJECT_SOURCE_DIR}/apps")
add_library(gpushm_test_code INTERFACE)
target_link_libraries(gpushm_test_code INTERFACE gpushm_apps_headers)
foreach(folder tests bench)
  gpushm_include_root(gpushm_test_code tests ${folder} "${PROJECT_SOURCE_DIR}/${folder}")
endforeach()

# gpushm_test_programs(TARGET...): adds programs to the target `test-programs`, which builds all tests and their dependencies.
add_custom_target(test-programs)
function(gpushm_test_programs)
  add_dependencies(test-programs ${ARGN})
endfunction()

# gpushm_fuzzer(NAME SOURCES file... [MODULES module...])
# With GPUSHM_FUZZ (clang): the libFuzzer program fuzz_NAME; `make fuzz` runs every program fuzz_*. Without: a program that
# replays the committed corpus, corpus/NAME.tar.xz next to the calling CMakeLists.txt (scripts/fuzz_corpus.sh changes it). The
# corpus is unpacked into corpus/NAME of the build tree.
function(gpushm_fuzzer name)
  cmake_parse_arguments(arg "" "" "SOURCES;MODULES" ${ARGN})
  set(archive "${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name}.tar.xz")
  set(corpus "${CMAKE_CURRENT_BINARY_DIR}/corpus/${name}")
  if("${archive}" IS_NEWER_THAN "${corpus}.unpacked")
    file(REMOVE_RECURSE "${corpus}")
    file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${CMAKE_CURRENT_BINARY_DIR}/corpus")
    file(TOUCH "${corpus}.unpacked")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${archive}")
  if(GPUSHM_SANITIZE MATCHES "thread")  # each has one thread
    return()
  endif()
  if(GPUSHM_FUZZ)
    set(program fuzz_${name})
    add_executable(${program} ${arg_SOURCES})
    target_link_options(${program} PRIVATE -fsanitize=fuzzer)
    set(command ${program} -runs=0)
  else()
    set(program gpushm_fuzz_replay_${name})
    add_executable(${program} ${arg_SOURCES} replay.cpp)
    set_target_properties(${program} PROPERTIES GPUSHM_NO_DIST ON)
    gpushm_test_programs(${program})
    set(command ${program})
  endif()
  target_link_libraries(${program} PRIVATE gpushm_test_code)
  foreach(dep IN LISTS arg_MODULES)
    target_link_libraries(${program} PRIVATE gpushm_${dep})
  endforeach()
  if(GPUSHM_BUILD_TESTS)
    add_test(NAME fuzz_corpus.${name} COMMAND ${command} "${corpus}")
    set_tests_properties(fuzz_corpus.${name} PROPERTIES LABELS unit TIMEOUT 120)
  endif()
endfunction()

# gpushm_targets_below(DIRECTORY RESULT): all targets of a folder and its subfolders.
function(gpushm_targets_below directory result)
  get_property(targets DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
  get_property(children DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
  foreach(child IN LISTS children)
    gpushm_targets_below("${child}" below)
    list(APPEND targets ${below})
  endforeach()
  set(${result} ${targets} PARENT_SCOPE)
endfunction()

# gpushm_list_programs(): writes the paths of all programs and shared libraries to programs.txt, where tests find them
# (tests/support/process/programs.cpp).
function(gpushm_list_programs)
  gpushm_targets_below("${PROJECT_SOURCE_DIR}" below)
  set(lines "")
  foreach(target IN LISTS below)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "^(EXECUTABLE|MODULE_LIBRARY|SHARED_LIBRARY)$")
      string(APPEND lines "$<TARGET_FILE:${target}>\n")
    endif()
    if(type STREQUAL "SHARED_LIBRARY")
      string(APPEND lines "$<TARGET_SONAME_FILE:${target}>\n")
    endif()
  endforeach()
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/programs.txt" CONTENT "${lines}")
endfunction()
