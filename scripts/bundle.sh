#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes programs and libraries of a tree independent of the distribution: copies the libraries that they need, and that the tree's
# lib/ does not have, to a folder of the tree, strips all of them, and lets them search that folder only. The licences of what is
# copied are in share/doc/gpushm/libraries, as Debian's packages have them.
#
#   scripts/bundle.sh TREE FOLDER FILE...       FOLDER and FILE are below TREE; static programs and other files are left as they are
set -euo pipefail

tree=$(cd "$1" && pwd)
folder=$2
cd "$tree"
shift 2

# A static position-independent program has a dynamic section, and needs no library.
is_dynamic() { [[ $(readelf -dW "$1" 2>/dev/null) == *"(NEEDED)"* ]]; }

# glibc's own libraries belong to the machine, and so does the driver. libgcc_s.so.1 is everywhere where glibc is; this machine's may need
# a newer glibc than the libraries.
is_foreign() {
  case $1 in
    ld-linux-*|libc.so.*|libm.so.*|libdl.so.*|libpthread.so.*|librt.so.*|libresolv.so.*|libutil.so.*) return 0 ;;
    libanl.so.*|libnss_*|libgcc_s.so.1|libcuda.so*|libnvidia-*) return 0 ;;
    *) return 1 ;;
  esac
}

finish() { # FILE
  local from
  from=$(realpath -m --relative-to="${1%/*}" "$folder")
  chmod u+w "$1"
  strip --strip-unneeded "$1"
  if [ "$from" = . ]; then
    patchelf --set-rpath "\$ORIGIN" "$1"
  else
    patchelf --set-rpath "\$ORIGIN/$from" "$1"
  fi
}

files=()
for file in "$@"; do
  if is_dynamic "$file"; then
    files+=("$file")
  fi
done
# `ldd` also lists indirect dependencies.
needed=$(for file in "${files[@]}"; do
           LD_LIBRARY_PATH=$tree/lib ldd "$file" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3} $0 ~ /not found/ {print $1, "missing"}'
         done | sort -u)
declare -A copied=()  # the file of the distribution, by its name in FOLDER
while read -r soname path; do
  if [ -z "$soname" ] || is_foreign "$soname" || [ -e "lib/$soname" ] || [ -e "$folder/$soname" ]; then
    continue
  fi
  if [ "$path" = missing ]; then
    echo "bundle: $soname is required but was not found: install the package that has it" >&2
    exit 1
  fi
  copied[$soname]=$(readlink -f "$path")
done <<<"$needed"

if [ ${#copied[@]} -gt 0 ]; then
  # Packages may record a file by its path before /lib became a link to /usr/lib.
  declare -A package_of=()
  while IFS=' ' read -r package path; do
    package_of[/usr${path#/usr}]=${package%%:*}
  done < <(dpkg-query -S "${copied[@]}" "${copied[@]#/usr}" 2>/dev/null || true)
  licences=share/doc/gpushm/libraries
  mkdir -p "$folder" "$licences"
  for soname in "${!copied[@]}"; do
    package=${package_of[/usr${copied[$soname]#/usr}]:-}
    if [ -z "$package" ] || ! cp -L "/usr/share/doc/$package/copyright" "$licences/$package"; then
      echo "bundle: the licence of ${copied[$soname]} is not known: no package of this distribution has it" >&2
      exit 1
    fi
    cp "${copied[$soname]}" "$folder/$soname"
    chmod 644 "$folder/$soname"
    finish "$folder/$soname"
  done
fi
for file in "${files[@]}"; do
  finish "$file"
done
