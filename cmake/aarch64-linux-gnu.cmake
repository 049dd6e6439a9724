# SPDX-License-Identifier: Apache-2.0
# Toolchain file: aarch64 with the cross compiler of Debian and Ubuntu (g++-aarch64-linux-gnu), which finds the headers of
# header-only libraries (Asio, CLI11, JSON, FlatBuffers) where the native compiler finds them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# Header-only here, but the distribution installs their CMake files with its libraries.
set(native_cmake "/usr/lib/${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu/cmake")
set(fmt_DIR "${native_cmake}/fmt")
# libyaml, the only library with object code (scripts/foreign_packages.sh).
list(APPEND CMAKE_LIBRARY_PATH "${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-packages/usr/lib/aarch64-linux-gnu")

# The cross compiler's glibc.
set(CMAKE_CROSSCOMPILING_EMULATOR "${CMAKE_CURRENT_LIST_DIR}/../scripts/one_table.py" qemu-aarch64 -L /usr/aarch64-linux-gnu)
