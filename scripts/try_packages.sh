#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the .deb packages of a folder over this machine's files, in a layer that is thrown away, uses them, upgrades and purges them:
# then nothing of them is left, and no script has said anything wrong. The same with the .rpm packages, whose dependencies are not
# looked for, because this machine's libraries are not packages of RPM. No systemd runs in the layer.
#
#   scripts/try_packages.sh FOLDER
#
# Needs root, for mounts in a namespace. Exit status 77: skipped.
set -euo pipefail

cd "$(dirname "$0")/.."
folder=$1
skip() {
  echo "try_packages: skipped: $*"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "not root"
unshare --mount true 2>/dev/null || skip "no mount namespaces"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/layer"

# In a mount namespace: mounts the layer, and runs the steps of a kind of package in it.
cat >"$scratch/enter.sh" <<'INNER'
set -euo pipefail
layer=$1/layer kind=$2
mount -t tmpfs none "$layer"
mkdir "$layer"/{upper,work,root}
root=$layer/root
mount -t overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" none "$root" || exit 77
[ -x "$root/usr/bin/env" ] || exit 77  # /usr is another file system
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount -t tmpfs none "$root/run"
mount -t tmpfs none "$root/tmp"
mkdir "$root/run/packages"
cp "${@:3}" "$root/run/packages/"
# With RPM, the packages are installed from outside, as into the root of an image.
if [ "$kind" = rpm ]; then
  rpm --root "$root" --dbpath /run/rpm --initdb
fi
export ROOT=$root KIND=$kind
exec bash "$root/run/packages/steps.sh"
INNER
cat >"$scratch/steps.sh" <<'INNER'
set -euo pipefail
units=(gpushm-brokerd gpushm-cdi-refresh gpushmd)
fail() {
  echo "try_packages: .$KIND: $*" >&2
  exit 1
}
inside() { chroot "$ROOT" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; }
# Everything in which packages write; dpkg's own records and the caches of ldconfig and man-db are others' files.
list() {
  inside find /usr /etc /var /opt -xdev \( -path /var/lib/dpkg -o -path /var/cache -o -path /var/log -o -path /var/lib/systemd \
    -o -path /etc/ld.so.cache \) -prune -o -printf '%p %y %l\n' | LC_ALL=C sort
}
log=$ROOT/run/log
quiet() { # COMMAND...: prints the output of a command that fails, and fails if scripts report something
  "$@" >"$log" 2>&1 || { cat "$log" >&2; fail "${*:1:4}"; }
  if grep -iE 'error|warning|not found|no such|failed|cannot|unexpected' "$log"; then
    fail "the lines above are the output of: ${*:1:4}"
  fi
}
if [ "$KIND" = deb ]; then
  install() { quiet inside bash -c 'dpkg --install /run/packages/*.deb'; }
  upgrade() { install; }
  mapfile -t names < <(for file in "$ROOT"/run/packages/*.deb; do dpkg-deb -f "$file" Package; done)
  remove() { quiet inside dpkg --purge "${names[@]}"; }
else
  in_root() { rpm --root "$ROOT" --dbpath /run/rpm "$@"; }
  install() { quiet in_root --install --nodeps "$ROOT"/run/packages/*.rpm; }
  upgrade() { quiet in_root --upgrade --replacepkgs --nodeps "$ROOT"/run/packages/*.rpm; }
  mapfile -t names < <(rpm -qp --qf '%{name}\n' "$ROOT"/run/packages/*.rpm)
  remove() { quiet in_root --erase --nodeps "${names[@]}"; }
fi
[ ${#names[@]} -eq 5 ] || fail "there are ${#names[@]} packages, not 5: ${names[*]}"
for file in /usr/bin/gpushm /usr/include/gpushm; do
  [ ! -e "$ROOT$file" ] || { echo "try_packages: skipped: this machine has $file"; exit 77; }
done
inside getent passwd gpushm >/dev/null && had_user=yes || had_user=

list >"$ROOT/run/before"
install
inside getent passwd gpushm >/dev/null || fail "the user gpushm was not made"
inside bash /run/packages/use_installed.sh /usr
for unit in "${units[@]}"; do
  inside systemd-analyze verify "/usr/lib/systemd/system/$unit.service" >"$log" 2>&1 || true
  if grep -i gpushm "$log"; then
    fail "the unit $unit has the faults above"
  fi
  quiet inside systemctl enable --quiet "$unit"
done
for name in "${names[@]}"; do
  licence=(/usr/share/doc/"$name"/copyright /usr/share/licenses/"$name"/LICENSE)
  [ -s "$ROOT${licence[0]}" ] || [ -s "$ROOT${licence[1]}" ] || fail "$name has no licence"
  [[ $name == *-dev* ]] || [ -s "$ROOT/usr/share/doc/$name/libraries/libyaml-dev" ] || fail "$name has no licences of libraries"
done
if [ "$KIND" = rpm ]; then
  # Unchanged since the installation.
  in_root --verify --nodeps "${names[@]}" || fail "rpm --verify"
fi
upgrade
inside gpushm --version >/dev/null
[ -L "$ROOT/etc/systemd/system/multi-user.target.wants/gpushm-brokerd.service" ] || fail "an upgrade disables units"
remove
list >"$ROOT/run/after"
# The user stays, as everywhere: files may belong to it. RPM also removes empty folders that only dpkg knows, as on no other machine.
{ diff "$ROOT/run/before" "$ROOT/run/after" || true; } | sed -n '/^[<>]/p' | while read -r side path type rest; do
  [ "$KIND$side$type" = "rpm<d" ] && inside dpkg-query -S "$path" >/dev/null 2>&1 && continue
  echo "$side $path $type $rest"
done | tee "$ROOT/run/differences"
[ ! -s "$ROOT/run/differences" ] || fail "the files above differ after the packages were removed"
[ -n "$had_user" ] || inside getent passwd gpushm >/dev/null || fail "the user was removed"
INNER

try() { # KIND
  local files=("$folder"/*."$1") rc=0
  [ -e "${files[0]}" ] || { echo "try_packages: no .$1 in $folder (make packages)" >&2; exit 1; }
  unshare --mount --propagation private bash "$scratch/enter.sh" "$scratch" "$1" "${files[@]}" \
    "$scratch/steps.sh" scripts/use_installed.sh tests/lint/consumer/consumer.c || rc=$?
  [ $rc != 77 ] || skip "no layer over this machine's files"
  [ $rc = 0 ] || exit $rc
  echo "try_packages: .$1: installed, used, upgraded and removed"
}
try deb
try rpm
