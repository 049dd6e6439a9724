#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs all static checks; the first line of the summary names the failed ones.
#
#   scripts/lint.sh                 everything
#   scripts/lint.sh format|tidy|cppcheck|shell|rules...   only these
#   scripts/lint.sh --fix-format    format the sources instead
set -euo pipefail

cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}

tracked() { # git pathspec...
  git ls-files --cached --others --exclude-standard -- "$@" |
    while IFS= read -r file; do if [ -f "$file" ]; then echo "$file"; fi; done
}

check_format() {
  tracked '*.cpp' '*.hpp' '*.h' '*.c' | xargs -r -d '\n' "$(scripts/tool.sh clang-format)" --dry-run -Werror
}

check_tidy() {
  scripts/build.sh lint
  scripts/tidy.sh build/lint "$(scripts/tool.sh clang-tidy)" "$jobs"
}

check_cppcheck() {
  mkdir -p build/lint/cppcheck
  # noExplicitConstructor is off: constructors that are not explicit are intended to convert.
  # Library headers are not passed, because cppcheck misjudges templates. The compilers check for unused code.
  cppcheck --std=c++20 --language=c++ --quiet --error-exitcode=1 --inline-suppr -j "$jobs" \
           --cppcheck-build-dir=build/lint/cppcheck --enable=warning,performance,portability \
           --suppressions-list=scripts/cppcheck-suppressions.txt \
           -I include -I src src apps
}

check_shell() {
  { tracked '*.sh'; tracked .ci .githooks | xargs -r grep -lE '^#!.*(ba)?sh'; } | sort -u | xargs -r shellcheck
}

check_rules() {
  scripts/lint_rules.sh --self-test
  scripts/lint_rules.sh
  scripts/behaviour.py --check
  scripts/error_codes.py --check
  scripts/plot_readme.py --check
}

if [ "${1:-}" = --fix-format ]; then
  tracked '*.cpp' '*.hpp' '*.h' '*.c' | xargs -r -d '\n' "$(scripts/tool.sh clang-format)" -i
  exit 0
fi
stages=("$@")
if [ ${#stages[@]} -eq 0 ]; then
  stages=(format rules shell cppcheck tidy)
fi
failed=()
for stage in "${stages[@]}"; do
  start=$SECONDS
  # A separate subshell keeps `set -e` in effect, which `if` would disable.
  set +e
  (set -e; "check_$stage")
  rc=$?
  set -e
  if [ $rc = 0 ]; then
    echo "lint: $stage: nothing found ($((SECONDS - start)) s)"
  else
    echo "lint: $stage: FAILED ($((SECONDS - start)) s)"
    failed+=("$stage")
  fi
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "lint: failed: ${failed[*]}" >&2
  exit 1
fi
