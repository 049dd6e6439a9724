#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the packages for building, testing and checking with apt (Debian 12, Ubuntu 24.04). Prints the packages; does
# nothing, and does not ask for a password, if all are installed.
#
#   scripts/deps.sh [build] [agent] [bench] [gtest] [clang] [runtimes] [test] [dist] [lint] [sanitize] [image] [aarch64]
#                   [gstreamer] [python] [pages] [docs] [packages]                                   default: all but packages
set -euo pipefail

# Alternatives are separated by "|"; the first that this distribution has is used. An entry that ends with "?" is optional: a
# distribution may lack it, and what uses it reports that it is missing.
build=(
  cmake ninja-build g++ ccache 'mold?' pkg-config python3-minimal
  libasio-dev libflatbuffers-dev flatbuffers-compiler
  libcli11-dev libseccomp-dev libsodium-dev libfmt-dev nlohmann-json3-dev libyaml-dev libxxhash-dev
)
# Additional packages for gpushmd.
agent=(libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc prometheus-cpp-dev libcurl4-openssl-dev libssl-dev)
bench=(libbenchmark-dev)
# Packages to compile the tests, and programs that they run.
gtest=(libgtest-dev libgmock-dev)
test=(
  abigail-tools binutils 'bindgen?' crun patchelf podman procps python3 runc rustc spin systemd util-linux xz-utils
  # Renders the kustomizations. Ubuntu has it as a snap only.
  'kubectl|kubernetes-client?'
  # Checks and scrapes the metrics (promtool, prometheus).
  prometheus
  # Completions of the command are tried in these shells.
  fish zsh
)
# The compiler of build/demo, build/dev, the sanitizers, clang-tidy and the fuzz programs.
clang=('clang-14|clang')
# Its run-time libraries of the sanitizers and the fuzzer: some programs of build/dev's tests are instrumented.
runtimes=('libclang-rt-14-dev|libclang-rt-18-dev|libclang-rt-dev')
# CI checks with version 14; other versions format differently.
lint=('clang-format-14|clang-format' 'clang-tidy-14|clang-tidy' cppcheck git ninja-build python3 shellcheck)
dist=(binutils patchelf xz-utils)
image=(binutils ca-certificates patchelf 'podman|buildah')
# The symbolizer for reports and suppressions of the sanitizers.
sanitize=(llvm)
# The cross compiler and the emulator for its programs. Libraries of that architecture: scripts/foreign_packages.sh.
aarch64=(g++-aarch64-linux-gnu qemu-user)
# The GStreamer plug-in and its tests, which are left out without them.
gstreamer=('libgstreamer1.0-dev?' 'libgstreamer-plugins-base1.0-dev?' 'gstreamer1.0-tools?' 'gstreamer1.0-plugins-base?')

# Writes manual pages from the help of programs.
pages=(help2man)
# The site of the documents; scripts/docs.sh deps installs Python packages.
docs=(doxygen python3-venv)
# Builds and checks .deb and .rpm. Not in the default, because they have many dependencies (150 packages).
packages_of_distributions=(binutils dpkg-dev file lintian patchelf rpm rpmlint systemd util-linux)

# The Python package; scripts/python.sh deps installs Python packages. readelf: for its tests.
python=(python3-dev python3-venv binutils)

groups=("$@")
if [ ${#groups[@]} -eq 0 ]; then
  groups=(build agent bench gtest clang runtimes test dist lint sanitize image aarch64 gstreamer python pages docs)
fi
wanted=()
for group in "${groups[@]}"; do
  case $group in
    build) wanted+=("${build[@]}") ;;
    agent) wanted+=("${agent[@]}") ;;
    bench) wanted+=("${bench[@]}") ;;
    gtest) wanted+=("${gtest[@]}") ;;
    clang) wanted+=("${clang[@]}") ;;
    runtimes) wanted+=("${runtimes[@]}") ;;
    test) wanted+=("${test[@]}") ;;
    dist) wanted+=("${dist[@]}") ;;
    lint) wanted+=("${lint[@]}") ;;
    sanitize) wanted+=("${sanitize[@]}") ;;
    image) wanted+=("${image[@]}") ;;
    aarch64) wanted+=("${aarch64[@]}") ;;
    gstreamer) wanted+=("${gstreamer[@]}") ;;
    python) wanted+=("${python[@]}") ;;
    pages) wanted+=("${pages[@]}") ;;
    docs) wanted+=("${docs[@]}") ;;
    packages) wanted+=("${packages_of_distributions[@]}") ;;
    *) echo "deps: unknown group $group" >&2; exit 2 ;;
  esac
done

if ! command -v apt-get >/dev/null; then
  echo "deps: apt-get is not available. Install the equivalents of: ${wanted[*]}" >&2
  exit 1
fi

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# The names in an entry, without the question mark.
names_of() {
  local entry=${1%\?}
  echo "${entry//|/ }"
}

one_is_installed() {
  local name
  for name in $(names_of "$1"); do
    if is_installed "$name"; then
      return 0
    fi
  done
  return 1
}

# Not with `grep -q` in a pipe: apt-cache would sometimes die of SIGPIPE.
has_candidate() {
  local policy
  policy=$(LC_ALL=C apt-cache policy "$1" 2>/dev/null)
  [[ $policy =~ Candidate:\ [^\(] ]]
}

# Prints the first alternative that apt has; fails if there is none.
choose() {
  local name
  for name in $(names_of "$1"); do
    if has_candidate "$name"; then
      echo "$name"
      return 0
    fi
  done
  return 1
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "deps: needs root or sudo for: $*" >&2
    exit 1
  fi
}

apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

missing=()
while IFS= read -r entry; do
  if ! one_is_installed "$entry"; then
    missing+=("$entry")
  fi
done < <(printf '%s\n' "${wanted[@]}" | awk '!seen[$0]++')
if [ ${#missing[@]} -eq 0 ]; then
  echo "deps: everything is installed (${groups[*]})"
  exit 0
fi

updated=0
update() {
  echo "deps: apt-get update"
  apt update
  updated=1
}

# Sets `packages`, and `without` to the optional entries that apt does not have; fails if apt has no alternative of another
# entry.
resolve() {
  local entry name
  packages=()
  without=()
  for entry in "${missing[@]}"; do
    if name=$(choose "$entry"); then
      packages+=("$name")
    elif [[ $entry == *\? ]]; then
      without+=("${entry%\?}")
    else
      unknown=$entry
      return 1
    fi
  done
}

if ! resolve; then
  update
  if ! resolve; then
    echo "deps: this distribution has no package $unknown" >&2
    exit 1
  fi
fi
if [ ${#without[@]} -gt 0 ]; then
  echo "deps: this distribution has no package ${without[*]}; tests and checks that need it are skipped"
fi
if [ ${#packages[@]} -eq 0 ]; then
  exit 0
fi
echo "deps: installing ${packages[*]}"
# Tests start Prometheus themselves; the package would also start it as a service, on port 9090.
if [[ " ${packages[*]} " == *" prometheus "* ]] && [ -d /run/systemd/system ]; then
  trap 'as_root systemctl disable --now prometheus.service || true' EXIT
fi
if ! apt install -y --no-install-recommends "${packages[@]}"; then
  if [ $updated = 1 ]; then
    exit 1
  fi
  # Old lists name versions that the archive no longer has.
  update
  apt install -y --no-install-recommends "${packages[@]}"
fi
