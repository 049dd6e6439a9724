#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, checks and tests the Python package. Everything is below build/python; the machine's Python gets nothing.
#
#   scripts/python.sh deps              a virtual environment with what the other commands need, of package versions that
#                                       python/requirements.txt pins
#   scripts/python.sh wheel             the wheel, in build/python/dist, and what abi3audit, check_floor.py, auditwheel and twine say
#                                       about it; COMMAND=PATH: with this command gpushm, of a release build, instead of compiling it
#   scripts/python.sh install           the wheel in the virtual environment
#   scripts/python.sh stubs             writes python/gpushm/_core.pyi again, from the installed module
#   scripts/python.sh reference         writes docs/python-api.md again, from the installed package
#   scripts/python.sh lint              ruff, mypy, stubtest, whether docs/python-api.md is that of the package, clang-tidy
#   scripts/python.sh format            formats and fixes the Python sources
#   scripts/python.sh test [ARGUMENT...]   pytest; needs gpushm and run-with-fake-gpus in build/dev
#
# PYTHON is the interpreter (default: python3); the wheel is for CPython 3.10 and later, whichever builds it.
set -euo pipefail

cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Clones of the repository share compiled objects.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
root=build/python
venv=$root/venv
python=$venv/bin/python

deps() {
  scripts/venv.sh "$venv" python/requirements.txt
}

wheel() {
  rm -rf "$root/dist"
  local -a settings=()
  if [ -n "${COMMAND:-}" ]; then
    settings=(--config-settings "cmake.define.GPUSHM_COMMAND=$(realpath "$COMMAND")")
  fi
  "$python" -m pip wheel . --quiet --no-deps --no-build-isolation "${settings[@]}" --wheel-dir "$root/dist"
  "$venv/bin/abi3audit" --strict --summary "$root"/dist/*.whl
  # Named after the floor only if it has it: the limits are those of manylinux_2_28. (auditwheel repair, which also renames, needs a
  # newer patchelf than Debian 12 has.)
  python3 scripts/check_floor.py "$root"/dist/*.whl
  "$python" -m wheel tags --remove --platform-tag "manylinux_2_28_$(uname -m)" "$root"/dist/*.whl >/dev/null
  audit
  "$venv/bin/twine" check --strict "$root"/dist/*.whl
  ls -s --block-size=KiB "$root"/dist
}

# auditwheel's own verdict must be the name that the wheel has.
audit() {
  local said
  said=$("$venv/bin/auditwheel" show "$root"/dist/*.whl)
  if [[ ${said//$'\n'/ } != *"consistent with the following platform tag: \"manylinux_2_28_$(uname -m)\""* ]]; then
    echo "python: auditwheel does not confirm the platform tag of the wheel:" >&2
    echo "$said" >&2
    return 1
  fi
}

install() {
  "$python" -m pip install --quiet --no-deps --force-reinstall "$root"/dist/gpushm-*.whl
}

stubs() {
  "$python" python/tools/stub.py >python/gpushm/_core.pyi.new
  mv python/gpushm/_core.pyi.new python/gpushm/_core.pyi
}

reference() {
  "$python" python/tools/reference.py >"$root/python-api.md"
  mv "$root/python-api.md" docs/python-api.md
}

lint() {
  "$venv/bin/ruff" check --quiet python
  "$venv/bin/ruff" format --check --quiet python
  "$venv/bin/mypy" --python-executable "$python"
  # The installed package: its stub against its module, and its annotations against what is there.
  (cd "$root" && venv/bin/stubtest --mypy-config-file ../../pyproject.toml --ignore-missing-stub \
     --allowlist ../../python/stubtest.txt gpushm)
  "$python" python/tools/reference.py | diff -u docs/python-api.md - ||
    { echo "docs/python-api.md is not that of the package (scripts/python.sh reference)" >&2; return 1; }
  # Configured as scikit-build-core does it, with the compiler of clang-tidy.
  cmake -S . -B "$root/tidy" -G Ninja -DGPUSHM_ONLY_PYTHON=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
        -DCMAKE_CXX_COMPILER="$(scripts/tool.sh clang++)" -DPython_EXECUTABLE="$PWD/$python" \
        -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" >/dev/null
  TIDY_ROOT=python/src scripts/tidy.sh "$root/tidy" "$(scripts/tool.sh clang-tidy)"
}

format() {
  "$venv/bin/ruff" check --fix python
  "$venv/bin/ruff" format python
}

run_tests() {
  "$python" -m pytest -o cache_dir="$root/pytest_cache" "$@"
}

case ${1:-} in
  deps | wheel | install | stubs | reference | lint | format) "$1" ;;
  test) run_tests "${@:2}" ;;
  *) sed -n '3,/^set/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2; exit 2 ;;
esac
