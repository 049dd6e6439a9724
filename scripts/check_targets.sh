#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the Makefile's targets that CI does not run: their presets can be configured, and the build system knows all that they
# would build. Fails for a target that neither CI nor this script checks, and for a document that names a missing target.
#
#   scripts/check_targets.sh
set -euo pipefail

cd "$(dirname "$0")/.."
# Targets that .ci/run builds, directly or indirectly, and targets without a build.
run=(deps build test python-test lint asan tsan aarch64 dist check-dist packages install bench docs)
plain=(help format clean)
plain+=(wheel)      # make python-test builds one
plain+=(wheel-aarch64)  # takes 10 minutes without ccache, and checks itself; before a release
plain+=(test-long)  # make test builds its programs and runs a few of its rounds
# Configured only: PRESET:TARGET... for each. `make demo` is the command of another preset; image_test runs scripts/image.sh.
declare -A presets=([demo]=demo:gpushm [coverage]=coverage:all [fuzz]=fuzz:all
                    [image]='release:gpushmd gpushm-brokerd gpushm-keeper gpushm gpushm-cdi-hook gpushm-ipc gpushm-pair')

failed=0
fail() {
  echo "check_targets: $*" >&2
  failed=1
}
known=" ${run[*]} ${plain[*]} ${!presets[*]} "
while read -r target; do
  case $known in
    *" $target "*) ;;
    *) fail "nothing checks \`make $target\`: add it to .ci/run or to this script" ;;
  esac
done < <(sed -n 's/^\([a-z][a-z0-9-]*\):.*## .*/\1/p' Makefile)
# shellcheck disable=SC2016  # a backquote of Markdown
while read -r target; do
  grep -q "^$target:" Makefile || fail "the documents name \`make $target\`, which does not exist"
done < <(grep -rhoE '(^    |`)make [a-z][a-z0-9-]*' ./*.md docs --include='*.md' | awk '{print $NF}' | sort -u)

for target in "${!presets[@]}"; do
  preset=${presets[$target]%%:*}
  read -ra wanted <<<"${presets[$target]#*:}"
  make --dry-run "$target" >/dev/null || fail "make $target"
  if scripts/build.sh --dry-run "$preset" "${wanted[@]}" >/dev/null; then
    echo "check_targets: make $target: configured, ${#wanted[@]} targets known"
  else
    fail "make $target: preset $preset"
  fi
done
exit $failed
