#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cmake/floor, with the shipped build's compiler: programs and libraries for the old glibc have only its symbols, the
# replacements do what glibc's functions do, exceptions arrive, also in programs with sanitizers, and what is too new is refused
# by the linker and by check_floor.py.
#
#   tests/lint/floor.sh SOURCE_DIR
set -euo pipefail

root=$1
here=$root/tests/lint/floor
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() {
  echo "floor: $*" >&2
  exit 1
}
check() {
  python3 "$root/scripts/check_floor.py" "$@"
}
for tool in gcc g++; do
  command -v "$tool" >/dev/null || { echo "floor: skipped: no $tool"; exit 0; }
done

for source in "$root"/cmake/floor/*.c; do
  gcc -D_GNU_SOURCE -std=c11 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -Wpedantic -Werror -c "$source" -o "$(basename "$source" .c).o"
done
ar rc libreplacements.a ./*.o
python3 "$root/cmake/floor/stubs.py" "$scratch/floor" gcc 2.28 3.4.24 1.3.11 "$scratch/libreplacements.a"

# The options of gpushm_floor (cmake/GpushmFloor.cmake).
old=("-L$scratch/floor" "-Wl,--exclude-libs,ALL")
program=(-static-libgcc "-Wl,--allow-shlib-undefined")
gcc -D_GNU_SOURCE -std=c11 -O1 -Wall -Wextra -Werror -I"$root/cmake/floor" "$here/replacements.c" "${old[@]}" "${program[@]}" -o replacements -pthread
./replacements
if nm -D --undefined-only replacements | grep -w pthread_atfork; then
  fail "pthread_atfork is not that of libc_nonshared.a"
fi
echo '{ global: floor_library_run; local: *; };' >library.map
g++ -std=c++20 -O1 -fPIC -shared -fvisibility=hidden -static-libstdc++ -Wl,--version-script,library.map "$here/library.cpp" "${old[@]}" -o liblibrary.so
g++ -std=c++20 -O1 -c "$here/program.cpp" -o program.o
g++ -static-libstdc++ program.o liblibrary.so -Wl,-rpath,"$scratch" "${old[@]}" "${program[@]}" -o program
./program
# Several linkers: mold links the programs, GNU ld the shared libraries.
for linker in mold lld; do
  if command -v "ld.$linker" >/dev/null; then
    g++ -fuse-ld=$linker -static-libstdc++ program.o liblibrary.so -Wl,-rpath,"$scratch" "${old[@]}" "${program[@]}" -o "program-$linker"
    "./program-$linker"
  fi
done
check replacements program program-* liblibrary.so

# A module that shares libstdc++.so.6 throws what the program catches.
g++ -std=c++20 -O1 -fPIC -shared -fvisibility=hidden -Wl,--version-script,library.map "$here/library.cpp" "${old[@]}" -o libshared.so
readelf -d libshared.so | grep -q 'libstdc++.so.6' || fail "libshared.so does not use libstdc++.so.6"
g++ program.o libshared.so -Wl,-rpath,"$scratch" -o with-shared
./with-shared
check libshared.so

# The library in programs with sanitizers.
for sanitizer in address thread; do
  if g++ -std=c++20 -O1 -g1 -fsanitize=$sanitizer "$here/program.cpp" liblibrary.so -Wl,-rpath,"$scratch" -o "with-$sanitizer" 2>log; then
    ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:intercept_tls_get_addr=0 "./with-$sanitizer"
  elif ! grep -q 'cannot find' log; then
    cat log >&2
    fail "the program does not compile with -fsanitize=$sanitizer"
  fi
done

# What is too new is found: functions of this machine's glibc, and packed relocations, which old dynamic linkers do not read.
must_fail() { # MESSAGE PATH
  if check "$2" >log 2>&1; then
    fail "check_floor.py accepts $2"
  fi
  grep -q "$1" log || { cat log >&2; fail "check_floor.py does not say \"$1\""; }
}
newer=$(printf '%s\n' 2.36 "$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)" | sort -V | head -n 1)
if [ "$newer" = 2.36 ]; then
  gcc -D_GNU_SOURCE -std=c11 -I"$root/cmake/floor" "$here/replacements.c" libreplacements.a -o as-always -pthread
  must_fail 'as-always: pthread_create needs GLIBC_2.34 of libc.so.6' as-always
  g++ program.o liblibrary.so -Wl,-rpath,"$scratch" -o as-always-2
  must_fail 'as-always-2: __libc_start_main needs GLIBC_2.34 of libc.so.6' as-always-2
  # In a directory, and in a wheel.
  mkdir -p tree/bin
  cp as-always tree/bin/one
  must_fail 'bin/one: pthread_create needs' tree
  python3 -m zipfile -c tree.whl tree/
  must_fail 'tree/bin/one: pthread_create needs' tree.whl
  check --allow 'bin/*' 2.36 tree >log
  grep -q '0 programs and libraries .* 1 others' log || fail "--allow does not count: $(cat log)"
  if check --allow 'bin/*' 2.33 tree 2>/dev/null || check --allow 'sbin/*' 2.36 program 2>/dev/null; then
    fail "--allow accepts anything"
  fi
fi
echo 'extern int posix_spawn_file_actions_addclosefrom_np(void*, int); int main(void) { return posix_spawn_file_actions_addclosefrom_np(0, 1); }' >refused.c
if gcc refused.c "${old[@]}" "${program[@]}" -o refused 2>log; then
  fail "a function of glibc 2.34 without a replacement was linked"
fi
grep -q 'undefined reference to .posix_spawn_file_actions_addclosefrom_np' log || { cat log >&2; fail "another error than expected"; }
if gcc -x c - -Wl,-z,pack-relative-relocs -o relocated 2>/dev/null <<<'int value; int* pointer = &value; int main(void) { return *pointer; }' &&
   readelf -V relocated | grep -q GLIBC_ABI_DT_RELR; then
  must_fail 'relocated: needs GLIBC_ABI_DT_RELR' relocated
fi
if check library.map 2>/dev/null; then
  fail "check_floor.py accepts files that are not ELF"
fi
echo "floor: ok"
