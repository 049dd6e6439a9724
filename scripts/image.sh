#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the container image from a finished build and this machine's libraries, with podman or buildah and without a
# registry, and prints its size.
#
#   scripts/image.sh BUILD_DIR [--name NAME] [--archive FILE] [--without-agent]
#
#   --name NAME       default: localhost/gpushm:VERSION
#   --archive FILE    also writes the image to a file, for `ctr --namespace k8s.io images import FILE` on a node
#   --without-agent   for a build without gpushmd; the entry point is then `gpushm`
#
# Everything is in /opt/gpushm, including glibc, and the programs search their libraries only there: the node's /usr is
# mounted at /usr in the agent's container, to load the GPU driver's library from there and to describe the driver by its
# paths on the node. The image contains no part of the driver and no shell.
set -euo pipefail

fail() {
  echo "image: $*" >&2
  exit 1
}

root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { sed -n '6,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd)
shift
name=
archive=
programs=(gpushmd gpushm-brokerd gpushm-keeper gpushm gpushm-cdi-hook gpushm-pair)
while [ $# -gt 0 ]; do
  case $1 in
    --name) name=$2; shift 2 ;;
    --archive) archive=$(realpath -m "$2"); shift 2 ;;
    --without-agent) programs=(gpushm gpushm-brokerd gpushm-keeper gpushm-pair); shift ;;
    *) echo "image: unknown option $1" >&2; exit 2 ;;
  esac
done
if [ -z "$name" ]; then
  version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
  name=localhost/gpushm:$version
fi
if command -v podman >/dev/null; then
  engine=podman
elif command -v buildah >/dev/null; then
  engine=buildah
else
  fail "neither podman nor buildah is installed (scripts/deps.sh image)"
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
tree=$stage/root
# The layout of distributions: a driver's libraries are mounted below /usr/lib and found through ld.so.conf.d.
mkdir -p "$tree"/{dev,etc/gpushm,etc/ld.so.conf.d,etc/ssl/certs,opt/gpushm/bin,opt/gpushm/lib,opt/gpushm/share/doc/gpushm} \
  "$tree"/{proc,run,sys,tmp,usr/bin,usr/lib,usr/lib64,var}
chmod 1777 "$tree/tmp"
for link in bin lib lib64; do
  ln -s "usr/$link" "$tree/$link"
done
ln -s bin "$tree/usr/sbin"
ln -s usr/sbin "$tree/sbin"
ln -s ../run "$tree/var/run"

copy_library() { # PATH
  local to=/opt/gpushm/lib/${1##*/}
  if [ ! -e "$tree$to" ]; then
    install -m 0755 "$1" "$tree$to"
    # The search path of a library would take precedence over the program's.
    if [ -n "$(patchelf --print-rpath "$tree$to" 2>/dev/null || true)" ]; then
      patchelf --remove-rpath "$tree$to"
    fi
    real_files+=("$(realpath "$1")")
  fi
}

real_files=()
for program in "${programs[@]}"; do
  from=$(find "$build/apps" -type f -perm -u+x -name "$program" -print -quit)
  [ -n "$from" ] || fail "no $program in $build; build it, or use --without-agent"
  to=$tree/opt/gpushm/bin/$program
  install -m 0755 "$from" "$to"
  strip --strip-unneeded "$to"
  needed=$(LD_LIBRARY_PATH='' ldd "$from" 2>/dev/null || true)
  if missing=$(grep 'not found' <<<"$needed"); then
    fail "$program needs libraries that are missing on this machine: $missing"
  fi
  while read -r library; do
    case $library in
      */libcuda.so* | */libnvidia-*) continue ;;
    esac
    copy_library "$library"
  done < <(awk '$NF ~ /^\(0x/ && $(NF - 1) ~ /^\// {print $(NF - 1)}' <<<"$needed" | sort -u)
  # Static programs have no interpreter. RPATH, unlike RUNPATH, takes precedence over $LD_LIBRARY_PATH and also applies to
  # indirect dependencies.
  if [ -n "$needed" ] && loader=$(patchelf --print-interpreter "$to" 2>/dev/null); then
    patchelf --set-interpreter "/opt/gpushm/lib/${loader##*/}" --force-rpath --set-rpath /opt/gpushm/lib "$to"
  fi
done

# The libraries that the agent gives to containers of unchanged programs. They use the containers' own C library.
if [ -d "$build/apps/lib/gpushm/ipc" ]; then
  mkdir -p "$tree/opt/gpushm/lib/gpushm/ipc"
  for library in "$build"/apps/lib/gpushm/ipc/*; do
    install -m 0755 "$library" "$tree/opt/gpushm/lib/gpushm/ipc/"
    strip --strip-unneeded "$tree/opt/gpushm/lib/gpushm/ipc/${library##*/}"
  done
fi

# Libraries that glibc and the driver's libraries load by name.
libc=$(dirname "$(LD_LIBRARY_PATH='' ldd "$build/apps/gpushm/gpushm" | sed -nE 's/.*libc\.so\.6 => (\/[^ ]+) .*/\1/p')")
for library in libdl.so.2 libm.so.6 libnss_dns.so.2 libnss_files.so.2 libpthread.so.0 libresolv.so.2 librt.so.1 \
               libutil.so.1 libgcc_s.so.1; do
  [ -e "$libc/$library" ] || fail "$libc/$library does not exist"
  copy_library "$libc/$library"
done

printf 'root:x:0:0:root:/:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\ngpushm:x:64000:64000:gpushm:/:/bin/false\n' >"$tree/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\ngpushm:x:64000:\n' >"$tree/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$tree/etc/nsswitch.conf"
printf 'include /etc/ld.so.conf.d/*.conf\n' >"$tree/etc/ld.so.conf"
bundle=/etc/ssl/certs/ca-certificates.crt
[ -e "$bundle" ] || fail "no $bundle (scripts/deps.sh image)"
cp -L "$bundle" "$tree$bundle"
cp "$root/LICENSE" "$tree/opt/gpushm/share/doc/gpushm/"
# The licences of third-party components.
if command -v dpkg-query >/dev/null; then
  for file in "${real_files[@]}"; do
    # Packages may list it below /lib, from before /lib was merged into /usr/lib.
    package=$(dpkg-query -S "$file" 2>/dev/null || dpkg-query -S "${file#/usr}" 2>/dev/null || true)
    package=${package%%:*}
    if [ -n "$package" ] && [ -e "/usr/share/doc/$package/copyright" ]; then
      mkdir -p "$tree/opt/gpushm/share/doc/$package"
      cp -L "/usr/share/doc/$package/copyright" "$tree/opt/gpushm/share/doc/$package/"
    fi
  done
fi

cp "$root/deploy/Containerfile" "$stage/"
if [ ! -e "$tree/opt/gpushm/bin/gpushmd" ]; then
  sed -i 's|^ENTRYPOINT.*|ENTRYPOINT ["/opt/gpushm/bin/gpushm"]|' "$stage/Containerfile"
fi
# Reproducible: the same files result in the same image.
when=$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)
"$engine" build --quiet --no-cache --timestamp "$when" --tag "$name" --file "$stage/Containerfile" "$stage" >/dev/null
if [ -n "$archive" ]; then
  rm -f "$archive"
  "$engine" push --quiet "$name" "docker-archive:$archive:$name"
  echo "image: $archive, $(($(stat -c %s "$archive") / 1048576)) MiB"
fi
bytes=$(du -sb "$tree" | cut -f 1)
echo "image: $name, $(((bytes + 1048575) / 1048576)) MiB"
