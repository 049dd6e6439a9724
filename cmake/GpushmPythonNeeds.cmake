# SPDX-License-Identifier: Apache-2.0
# What a build of the Python package needs of the machine, beyond the Python packages in pyproject.toml: reports all that is
# missing at once, with the names of distributions' packages. The wheel needs none of it.
include_guard(GLOBAL)

set(missing "")
set(debian "")
set(fedora "")
# gpushm_python_needs(FILE KIND DEBIAN FEDORA): KIND is path (a header), program or library.
macro(gpushm_python_needs file kind debian_package fedora_package)
  string(MAKE_C_IDENTIFIER "GPUSHM_NEEDS_${file}" found)
  if("${kind}" STREQUAL "path")
    find_path(${found} "${file}")
  elseif("${kind}" STREQUAL "program")
    find_program(${found} "${file}")
  else()
    find_library(${found} "${file}")
  endif()
  mark_as_advanced(${found})
  if(NOT ${found})
    list(APPEND missing "${file}")
    list(APPEND debian "${debian_package}")
    list(APPEND fedora "${fedora_package}")
  endif()
endmacro()

gpushm_python_needs(asio.hpp path libasio-dev asio-devel)
gpushm_python_needs(flatc program flatbuffers-compiler flatbuffers-compiler)
gpushm_python_needs(flatbuffers/flatbuffers.h path libflatbuffers-dev flatbuffers-devel)
gpushm_python_needs(nlohmann/json.hpp path nlohmann-json3-dev json-devel)
gpushm_python_needs(xxhash.h path libxxhash-dev xxhash-devel)
if(NOT GPUSHM_COMMAND)
  gpushm_python_needs(CLI/CLI.hpp path libcli11-dev cli11-devel)
  gpushm_python_needs(fmt/core.h path libfmt-dev fmt-devel)
  gpushm_python_needs(yaml.h path libyaml-dev libyaml-devel)
  gpushm_python_needs(yaml library libyaml-dev libyaml-devel)
endif()

if(NOT missing STREQUAL "")
  list(REMOVE_DUPLICATES debian)
  list(REMOVE_DUPLICATES fedora)
  list(JOIN missing ", " missing)
  list(JOIN debian " " debian)
  list(JOIN fedora " " fedora)
  message(FATAL_ERROR
    "gpushm cannot be built from source here. Missing: ${missing}\n"
    "Install them:\n"
    "  Debian, Ubuntu:  apt install ${debian}\n"
    "  Fedora, RHEL:    dnf install ${fedora}\n"
    "or install the wheel, which needs none of them, on x86_64 or aarch64 with glibc 2.28 or later: "
    "pip install --only-binary=:all: gpushm")
endif()
