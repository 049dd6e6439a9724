#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs into an empty prefix, moves that prefix, and builds and runs a program against it, found once by CMake's
# find_package and once by pkg-config. Units and other files have the paths of the prefix that was given.
#
#   installed_package.sh CMAKE BUILD_DIR COMPILER
set -euo pipefail

cmake=$1
build=$2
compiler=$3
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$cmake" --install "$build" --prefix "$scratch/first" >/dev/null
mv "$scratch/first" "$scratch/moved prefix"
prefix="$scratch/moved prefix"
pkgconfig=$(dirname "$(find "$prefix" -name gpushm.pc)")
libdir=$(dirname "$pkgconfig")

for library in libgpushm libgpushm-broker; do
  soname=$(readelf -d "$libdir/$library.so" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
  if [[ ! $soname =~ ^$library\.so\.[0-9]+$ ]] || [ ! -e "$libdir/$soname" ]; then
    echo "$library.so has the soname \"$soname\"" >&2
    exit 1
  fi
done

echo "== find_package"
"$cmake" -S "$here/consumer" -B "$scratch/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$compiler" >"$scratch/log" ||
  { cat "$scratch/log" >&2; exit 1; }
"$cmake" --build "$scratch/cmake" >"$scratch/log" || { cat "$scratch/log" >&2; exit 1; }
env -u GPUSHM_SOCKET "$scratch/cmake/consumer" "$scratch/no-broker-here"
env -u GPUSHM_SOCKET "$scratch/cmake/broker_consumer" "$scratch/socket"

echo "== find_package of a component that does not exist"
mkdir "$scratch/wrong"
cat >"$scratch/wrong/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.16)
project(wrong LANGUAGES NONE)
find_package(gpushm QUIET OPTIONAL_COMPONENTS client)
if(NOT gpushm_FOUND OR gpushm_client_FOUND)
  message(FATAL_ERROR "an optional component that does not exist is an error, or was found")
endif()
find_package(gpushm REQUIRED COMPONENTS client)
END
if "$cmake" -S "$scratch/wrong" -B "$scratch/wrong/build" -DCMAKE_PREFIX_PATH="$prefix" >"$scratch/log" 2>&1 ||
   ! tr -s ' \n' ' ' <"$scratch/log" | grep -qF 'gpushm has no component "client"; its components are gpushm and broker'; then
  cat "$scratch/log" >&2
  exit 1
fi

echo "== pkg-config"
export PKG_CONFIG_PATH=$pkgconfig LD_LIBRARY_PATH=$libdir
flags=()
eval "flags=($(pkg-config --cflags --libs gpushm))"
"$compiler" -std=c++20 "$here/consumer/consumer.cpp" "${flags[@]}" -o "$scratch/consumer"
"$scratch/consumer" "$scratch/no-broker-here"
eval "flags=($(pkg-config --cflags --libs gpushm-broker))"
"$compiler" -std=c++20 "$here/consumer/broker_consumer.cpp" "${flags[@]}" -o "$scratch/broker_consumer"
"$scratch/broker_consumer" "$scratch/socket"

echo "== C"
cc -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/consumer/consumer.c" "${flags[@]}" -o "$scratch/c_consumer"
"$scratch/c_consumer" "$scratch/socket"

echo "== libraries for unchanged programs"
for library in libgpushm-ipc.so libgpushm.so.1; do
  # Containers mount only this directory: a link would lead elsewhere there.
  if [ ! -f "$prefix/lib/gpushm/ipc/$library" ] || [ -L "$prefix/lib/gpushm/ipc/$library" ]; then
    echo "lib/gpushm/ipc/$library is not installed as a file" >&2
    exit 1
  fi
done

echo "== the paths of the prefix"
# Installs into a staging directory, for a prefix that is not the configured one, and for another one after it.
for given in /usr "/opt/a b%c" relative; do
  rm -rf "$scratch/stage"
  case $given in
    /*) (export DESTDIR="$scratch/stage"; "$cmake" --install "$build" --prefix "$given") >/dev/null
        expected=$given below=$scratch/stage$given ;;
    *) (cd "$scratch"; "$cmake" --install "$build" --prefix "$given") >/dev/null
       expected=$scratch/$given below=$scratch/$given ;;
  esac
  expected=${expected//%/%%}
  expected=${expected// /\\x20}
  units=("$below"/lib/systemd/system/*.service)
  [ ${#units[@]} -ge 2 ] || { echo "units for the prefix $given are not installed" >&2; exit 1; }
  for unit in "${units[@]}"; do
    program=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$unit")
    [[ $program == "$expected"/bin/gpushm* ]] ||
      { echo "the prefix is $given, and ${unit##*/} starts \"$program\"" >&2; exit 1; }
    [ -x "$below/bin/${program##*/}" ] || { echo "${unit##*/} starts $program, which is not installed" >&2; exit 1; }
  done
  # No file that is read by programs has a path of the build tree, or of the configured prefix.
  others=(-e "$build")
  configured=$(sed -n 's/^CMAKE_INSTALL_PREFIX:PATH=//p' "$build/CMakeCache.txt")
  [ "$configured" = "$given" ] || others+=(-e "$configured/")
  if grep -rnF "${others[@]}" "$below/lib/systemd" "$below/${libdir#"$prefix/"}"/{cmake,pkgconfig}; then
    echo "the prefix is $given, and the files above name another one" >&2
    exit 1
  fi
done

echo "== the command"
env -u LD_LIBRARY_PATH "$prefix/bin/gpushm" --version
for file in share/bash-completion/completions/gpushm share/zsh/site-functions/_gpushm share/fish/vendor_completions.d/gpushm.fish \
            share/doc/gpushm/{LICENSE,README.md,CHANGELOG.md,cli.md,errors.md} share/man/man1/gpushm.1 share/man/man3/gpushm.3 \
            share/man/man8/gpushm-{cdi-hook,oci-runtime}.8 lib/sysusers.d/gpushm.conf; do
  [ -s "$prefix/$file" ] || { echo "$file is not installed" >&2; exit 1; }
done
grep -qF '.SS gpushm create' "$prefix/share/man/man1/gpushm.1"
if command -v groff >/dev/null; then  # its warnings are about macros that do not exist, and unbalanced ones
  for page in "$prefix"/share/man/man?/*; do
    groff -man -Tutf8 -ww "$page" 2>&1 >"$scratch/page" | tee "$scratch/warnings"
    [ ! -s "$scratch/warnings" ] || { echo "${page##*/} has warnings" >&2; exit 1; }
  done
fi
