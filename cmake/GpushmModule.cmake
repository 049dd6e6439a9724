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

# Some ninety programs are linked; mold does each in a fraction of the time.
find_program(GPUSHM_MOLD mold)
if(GPUSHM_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# These apply to every target, test programs included.
if(GPUSHM_SANITIZE)
  add_compile_options(-fsanitize=${GPUSHM_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  # Clang 14 puts that check's data in front of coroutines in a way that it cannot assemble.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=function>)
  add_link_options(-fsanitize=${GPUSHM_SANITIZE})
endif()
if(GPUSHM_COVERAGE)
  # Tests count from several threads and processes at once.
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
  BRIEF_DOCS "of a test, of a benchmark, or of what stands in for something in tests")
add_library(gpushm_flags INTERFACE)
set(is_test_code "$<BOOL:$<TARGET_PROPERTY:GPUSHM_IS_TEST_CODE>>")
if(GPUSHM_SANITIZE)
  # What is tested keeps all checks. Of the time that the tests' own code takes, checks for undefined behaviour are a third
  # (five groups of sources: 102 s, without them 66 s).
  if(GPUSHM_SANITIZE MATCHES "undefined")
    target_compile_options(gpushm_flags INTERFACE $<${is_test_code}:-fno-sanitize=undefined>)
  endif()
endif()
# GCC's flow analysis of optimised code finds null pointers in libraries' inlined parts (istreambuf_iterator's, Asio's
# scheduler's) that cannot be null. The product's sources keep the warning; tests and benchmarks do not have it.
target_compile_options(gpushm_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wcast-qual -Wformat=2 -Wundef
  -Wdouble-promotion
  $<$<COMPILE_LANGUAGE:CXX>:-Wold-style-cast -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wduplicated-cond -Wduplicated-branches -Wlogical-op
    -Wimplicit-fallthrough=5 -Wsuggest-override
    $<$<NOT:${is_test_code}>:-Wnull-dereference>>
  # Of braces that C++ lets out.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-missing-braces>
  $<$<BOOL:${GPUSHM_WERROR}>:-Werror>
  # GCC 12 finds that text + std::string overlaps itself when it inlines that (its bug 105651).
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  # Sections let the linker leave out of the shared libraries what no public function needs. Unique
  # symbols would make them impossible to unload, and visible past the version script.
  -ffunction-sections -fdata-sections
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>)
# Clang 14 has coroutines that Asio does not recognise by itself.
target_compile_definitions(gpushm_flags INTERFACE
  ASIO_STANDALONE ASIO_DISABLE_VISIBILITY
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:ASIO_HAS_CO_AWAIT=1>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:ASIO_HAS_STD_COROUTINE=1>)
target_link_options(gpushm_flags INTERFACE LINKER:--gc-sections)
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

# gpushm_interface_sources(file...)
# Sources of this folder that define functions of gpushm.h or broker.h. build/dev describes their types for abidiff
# (tests/lint/abi_guard.sh): all of them, in a version of DWARF of which libabigail 2.2 knows in clang's output, too, which
# header declares what.
function(gpushm_interface_sources)
  if(GPUSHM_BUILD_TESTS AND CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT GPUSHM_SANITIZE AND NOT GPUSHM_COVERAGE)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS
      -g2 -gdwarf-4 $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fstandalone-debug>)
  endif()
endfunction()

# gpushm_test(NAME LABEL label [SINGLE_THREADED] [TIMEOUT seconds] SOURCES file... [MODULES module...] [LIBRARIES target...])
# A GoogleTest executable; every case becomes a CTest test with the label: unit, process, container or gpu, with "-grpc"
# after it where gRPC runs, which ThreadSanitizer leaves out (the distribution's gRPC isn't instrumented). One word,
# because gtest_discover_tests takes lists in properties apart.
#
# The tarball has what another machine can make a difference to: not what has one thread alone (SINGLE_THREADED).
#
# Instrumented builds have those tests that instrumentation says something of: of the labels unit and process, and no gRPC
# under ThreadSanitizer, nor what has one thread alone (SINGLE_THREADED). There a program of the label unit is one CTest
# test: a process of the sanitizers costs more than most of its cases. Builds for another machine have the programs that
# GPUSHM_EMULATED_TESTS names, also as one test each.
function(gpushm_test name)
  cmake_parse_arguments(arg "SINGLE_THREADED" "TIMEOUT;LABEL" "SOURCES;MODULES;LIBRARIES" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "gpushm_test(${name}): unknown: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  add_executable(${name} ${arg_SOURCES})
  gpushm_test_selected(${arg_LABEL} selected)
  if(arg_SINGLE_THREADED)
    set_target_properties(${name} PROPERTIES GPUSHM_NO_DIST ON)
    if(GPUSHM_SANITIZE MATCHES "thread")
      set(selected OFF)
    endif()
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY GPUSHM_TEST_LABELS "${name} ${arg_LABEL}\n")
  target_link_libraries(${name} PRIVATE gpushm_flags GTest::gtest GTest::gmock GTest::gtest_main ${arg_LIBRARIES})
  foreach(dep IN LISTS arg_MODULES)
    target_link_libraries(${name} PRIVATE gpushm_${dep})
  endforeach()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(GPUSHM_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 3")
  endif()
  if(CMAKE_CROSSCOMPILING AND NOT name IN_LIST GPUSHM_EMULATED_TESTS)
    set(selected OFF)
  endif()
  if(NOT selected)
    return()
  endif()
  gpushm_test_programs(${name})
  if((GPUSHM_SANITIZE OR CMAKE_CROSSCOMPILING) AND arg_LABEL MATCHES "^unit")
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT 600)
  else()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT})
  endif()
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

# gpushm_c_user(TARGET): a program in C11 that uses the shared libraries. What they have of the sanitizers' C++ parts is
# the program's to bring.
function(gpushm_c_user target)
  set_target_properties(${target} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF GPUSHM_NO_DIST ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef
    -Wstrict-prototypes -Wmissing-prototypes $<$<BOOL:${GPUSHM_WERROR}>:-Werror>)
  if(GPUSHM_SANITIZE)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
endfunction()

# gpushm_test_programs(TARGET...): what the target `test-programs` builds: the programs that are tests, and so whatever
# those depend on.
add_custom_target(test-programs)
function(gpushm_test_programs)
  add_dependencies(test-programs ${ARGN})
endfunction()

# gpushm_fuzzer(NAME SOURCES file... [MODULES module...])
# The libFuzzer program fuzz_NAME, with its corpus in corpus/NAME beside the calling CMakeLists.txt (`make fuzz`
# runs every program fuzz_*). Does nothing unless GPUSHM_FUZZ is on.
function(gpushm_fuzzer name)
  if(NOT GPUSHM_FUZZ)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;MODULES" ${ARGN})
  add_executable(fuzz_${name} ${arg_SOURCES})
  target_link_libraries(fuzz_${name} PRIVATE gpushm_flags)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  foreach(dep IN LISTS arg_MODULES)
    target_link_libraries(fuzz_${name} PRIVATE gpushm_${dep})
  endforeach()
  if(GPUSHM_BUILD_TESTS)
    add_test(NAME fuzz.${name}.corpus
             COMMAND fuzz_${name} -runs=0 "${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name}")
    set_tests_properties(fuzz.${name}.corpus PROPERTIES LABELS unit TIMEOUT 120)
  endif()
endfunction()

# gpushm_targets_below(DIRECTORY RESULT): all targets of a folder and of what is below it.
function(gpushm_targets_below directory result)
  get_property(targets DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
  get_property(children DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
  foreach(child IN LISTS children)
    gpushm_targets_below("${child}" below)
    list(APPEND targets ${below})
  endforeach()
  set(${result} ${targets} PARENT_SCOPE)
endfunction()
