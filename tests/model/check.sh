#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the model of the channel (channel.pml; share.pml for names that begin with "share") with spin: each configuration must have no error and be searched completely; in
# each mutation, a configuration with a seeded fault, spin must find an error. Prints one line each.
#
#   check.sh                          the configurations and mutations of `make test`; less than a minute and 1.5 GB
#   check.sh long                     configurations of `make test-long`; minutes and 4 GB
#   check.sh thorough                 larger configurations; hours, MEMORY_MB each (default: 12000)
#   check.sh trail NAME               prints the visible actions of a shortest counterexample of a mutation
#   check.sh traces OUT COUNT SEED    writes the visible actions of COUNT random runs to the file OUT (README.md has the format)
#
# JOBS (default: 2) searches run at the same time.
set -euo pipefail

model=$(cd "$(dirname "$0")" && pwd)/channel.pml
jobs=${JOBS:-2}

# NAME, what spin checks (safety: assertions and end states; terminates: no cycle), macros of the model. Small queues (READS,
# DEPTH) where several members make the state graph large; ITEMS > N so that slots are reused.
configurations=(
  "n3_consumer_dies     safety     -DN=3 -DREADS=1 -DDEPTH=1 -DDIES=2"
  "n3_latest_hangs      safety     -DN=3 -DREADS=1 -DDEPTH=2 -DHANGS=2"
  "n3_terminates        terminates -DN=3 -DREADS=1 -DDEPTH=1"
  "n2_two_block         safety     -DN=2 -DBLOCK=2 -DLATEST=0 -DITEMS=3 -DREADS=1 -DLATE=2 -DLEAVES=2 -DDIES=4"
  "n2_block             safety     -DN=2 -DLATEST=0 -DITEMS=6 -DLATE=1 -DLEAVES=1 -DDIES=3 -DCHECKS=1"
  "n2_takeover_block    safety     -DN=2 -DLATEST=0 -DITEMS=3 -DMORE=3 -DREADS=1 -DTAKEOVER=1 -DDIES=1 -DCHECKS=1"
  "n2_takeover_late     safety     -DN=2 -DLATEST=0 -DITEMS=3 -DREADS=1 -DTAKEOVER=1 -DDIES=1 -DLATE=1"
  "n2_takeover_ends     terminates -DN=2 -DLATEST=0 -DITEMS=3 -DREADS=1 -DTAKEOVER=1 -DDIES=1"
  "n2_takeover_keeps    safety     -DN=2 -DLATEST=0 -DITEMS=5 -DMORE=3 -DDEPTH=5 -DTAKEOVER=1 -DDIES=1 -DKEEPS=1 -DCHECKS=1"
  "n1_two_block         safety     -DN=1 -DBLOCK=2 -DLATEST=0 -DITEMS=3 -DREADS=1 -DLATE=2 -DDIES=7"
  "n1_takeover_block    safety     -DN=1 -DLATEST=0 -DITEMS=3 -DTAKEOVER=1 -DDIES=1 -DLATE=1 -DCHECKS=1"
  "n4_two_claims        safety     -DN=4 -DCLAIMS=2 -DITEMS=3 -DREADS=1 -DDEPTH=2"
  "n3_two_claims        safety     -DN=3 -DLATEST=0 -DCLAIMS=2 -DREADS=1 -DREFUSES=1 -DLATE=1"
  "n3_claims_takeover   safety     -DN=3 -DBLOCK=0 -DCLAIMS=2 -DITEMS=3 -DMORE=1 -DREADS=1 -DDEPTH=2 -DTAKEOVER=1 -DDIES=1"
  "n2_two_streams       safety     -DN=2 -DLATEST=0 -DSTREAMS=2 -DREADS=1 -DLATE=1 -DLEAVES=1 -DDIES=1"
  "n2_streams_takeover  safety     -DN=2 -DLATEST=0 -DSTREAMS=2 -DITEMS=2 -DREADS=1 -DTAKEOVER=1 -DDIES=1 -DCHECKS=1"
  "share_n3             safety     -DDIES=1"
  "share_n2_late        safety     -DN=2 -DDEPTH=1 -DITEMS=5 -DDIES=1 -DLATE=1"
  "share_n1             safety     -DN=1 -DDEPTH=1 -DDIES=1"
)
# `make test-long`: minutes.
long=(
  "n3_takeover_latest   safety     -DN=3 -DBLOCK=0 -DREADS=1 -DDEPTH=2 -DTAKEOVER=1 -DDIES=1 -DLATE=1"
  "n4_two_latest        safety     -DN=4 -DBLOCK=0 -DLATEST=2 -DITEMS=5 -DREADS=1 -DDEPTH=1"
  "n3_any_dies          safety     -DN=3 -DREADS=1 -DDEPTH=2 -DDIES=7"
  "n3_join_leave        safety     -DN=3 -DREADS=1 -DDEPTH=2 -DLATE=2 -DLEAVES=3"
  "n3_long_queues       safety     -DN=3 -DREADS=2 -DDEPTH=4 -DCHECKS=1"
)
thorough=(
  "n3_any_dies          safety     -DN=3 -DITEMS=5 -DDIES=7"
  "n3_takeover_both     safety     -DN=3 -DREADS=1 -DITEMS=4 -DMORE=1 -DDEPTH=2 -DTAKEOVER=1 -DDIES=1"
  "n3_takeover_latest   safety     -DN=3 -DBLOCK=0 -DITEMS=5 -DMORE=3 -DTAKEOVER=1 -DDIES=1 -DLATE=1"
  "n4_two_latest        safety     -DN=4 -DBLOCK=0 -DLATEST=2 -DITEMS=5 -DREADS=1 -DDEPTH=2 -DDIES=3"
  "n2_two_block         safety     -DN=2 -DBLOCK=2 -DLATEST=0 -DITEMS=4 -DREADS=1 -DLATE=2 -DLEAVES=2 -DDIES=7"
)
block='-DN=2 -DLATEST=0 -DREADS=1'
latest='-DN=3 -DBLOCK=0 -DREADS=1 -DDEPTH=2'
mutations=(
  "no_reread            -DFAULT=NO_REREAD $latest"
  "no_row_check         -DFAULT=NO_ROW_CHECK $latest"
  "no_released_wait     -DFAULT=NO_RELEASED_WAIT $block"
  "no_fence_producer    -DFAULT=NO_FENCE $block -DDIES=1"
  "no_fence_consumer    -DFAULT=NO_FENCE $block -DDIES=2"
  "last_value_late      -DFAULT=LAST_VALUE_LATE $block -DDIES=1"
  "last_value_early     -DFAULT=LAST_VALUE_EARLY $block -DDIES=1"
  "join_unprotected     -DFAULT=JOIN_UNPROTECTED $block -DLATE=1"
  "join_at_taken_slot   -DFAULT=JOIN_AT_TAKEN_SLOT -DN=1 -DLATEST=0 -DREADS=1 -DLATE=1"
  "no_join_values       -DFAULT=NO_JOIN_VALUES $block -DLATE=1 -DTAKEOVER=1 -DDIES=1"
  "leave_early          -DFAULT=LEAVE_EARLY $block -DLEAVES=1"
  "no_taken_wait        -DFAULT=NO_TAKEN_WAIT $block"
  "announce_early       -DFAULT=ANNOUNCE_EARLY $block"
  "publish_early        -DFAULT=PUBLISH_EARLY $block"
  "not_the_last         -DFAULT=NOT_THE_LAST $latest"
  "release_early_block  -DFAULT=RELEASE_EARLY $block"
  "release_early_latest -DFAULT=RELEASE_EARLY $latest"
  "check_order          -DFAULT=CHECK_ORDER -DN=1 -DLATEST=0 -DCHECKS=1"
  "check_without_start  -DFAULT=CHECK_WITHOUT_START $block -DTAKEOVER=1 -DDIES=1 -DCHECKS=1"
  "numbers_reused       -DFAULT=NUMBERS_REUSED -DN=1 -DLATEST=0 -DREADS=1 -DTAKEOVER=1 -DDIES=1"
  "released_of_new      -DFAULT=RELEASED_OF_NEW $block -DTAKEOVER=1 -DDIES=1"
  "all_released         -DFAULT=ALL_RELEASED $block -DTAKEOVER=1 -DDIES=1 -DKEEPS=1"
  "oldest_by_row        -DFAULT=OLDEST_BY_ROW $block -DTAKEOVER=1 -DDIES=1 -DKEEPS=1"
  "short_order          -DFAULT=0 -DORDER=4 -DN=2 -DLATEST=0 -DITEMS=5 -DDEPTH=5 -DTAKEOVER=1 -DDIES=1 -DKEEPS=1"
  "no_end_check         -DFAULT=NO_END_CHECK $latest -DTAKEOVER=1 -DDIES=1"
  "no_before            -DFAULT=NO_BEFORE $latest -DTAKEOVER=1 -DDIES=1 -DMORE=1"
  "no_clamp             -DFAULT=NO_CLAMP $block -DDIES=1"
  "announce_first       -DFAULT=ANNOUNCE_FIRST $block -DREFUSES=1"
  "no_release_order     -DFAULT=NO_RELEASE_ORDER $block -DSTREAMS=2"
  "take_newest          -DFAULT=TAKE_NEWEST $latest -DCLAIMS=2"
  "too_few_slots        -DN=2 -DREADS=1 -DDEPTH=2"
  "share_no_used_check  -DFAULT=NO_USED_CHECK"
  "share_no_regive      -DFAULT=NO_REGIVE -DDIES=1"
  "share_ended_is_free  -DFAULT=ENDED_IS_FREE -DDIES=1"
  "share_row_late       -DFAULT=ROW_LATE"
)
# Random runs of these, in turn, are the traces.
simulations=(
  "-DN=3"
  "-DN=3 -DDIES=7"
  "-DN=3 -DLATE=3 -DLEAVES=3"
  "-DN=4 -DLATEST=2 -DITEMS=8 -DLATE=5"
  "-DN=1 -DBLOCK=2 -DLATEST=0 -DLATE=2 -DLEAVES=1"
  "-DN=3 -DTAKEOVER=1 -DDIES=1 -DMORE=3 -DITEMS=6"
  "-DN=4 -DCLAIMS=2 -DREFUSES=1 -DITEMS=8"
  "-DN=3 -DCLAIMS=2 -DTAKEOVER=1 -DDIES=1 -DMORE=3 -DITEMS=6"
  "-DN=3 -DSTREAMS=2 -DTAKEOVER=1 -DDIES=1 -DLATE=1 -DLEAVES=1 -DITEMS=6"
)

for tool in spin gcc; do
  if ! command -v "$tool" >/dev/null; then
    if [ -n "${CI:-}" ]; then
      echo "model: $tool not found (make deps)" >&2
      exit 1
    fi
    echo "model: skipped: $tool not found (make deps)"
    exit 0
  fi
done
failed=()
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Searches one state graph in a folder of its own; the output of the verifier is in the file `log`.
search() { # NAME MODE OPTIMISATION [MACRO...]
  local folder=$scratch/$1 mode=(-DSAFETY) flags=() source=$model
  if [[ $1 == share* ]]; then
    source=${model%/*}/share.pml
  fi
  mkdir "$folder"
  cd "$folder"
  if [ "$2" = terminates ]; then  # without progress labels, each cycle is a cycle without progress
    mode=(-DNP)
    flags=(-l)
  fi
  if [ "$2" = shortest ]; then
    mode+=(-DBFS)
  fi
  # Without partial order reduction: nearly all steps use shared words, so it gains nothing.
  if spin -a "${@:4}" "$source" >log 2>&1 &&
     gcc "$3" -w -DCOLLAPSE -DNOREDUCE "-DMEMLIM=$memory_mb" "${mode[@]}" -o pan pan.c >>log 2>&1; then
    ./pan -n -m10000 "${flags[@]}" >>log 2>&1 || true
  fi
}

value() { # SED_EXPRESSION, of the verifier's output
  sed -nE "s/$1/\\1/p" log | head -n 1
}

line() { # NAME WHAT
  printf '%-21s %9s states, depth %4s, %6s s: %s\n' "$1" "$(value '^ *([0-9.e+]+) states, stored.*')" \
    "$(value '.*depth reached ([0-9]+).*')" "$(value '^pan: elapsed time ([0-9.]+) seconds')" "$2"
}

fail() { # NAME WHAT
  line "$1" "FAILED: $2"
  grep -vE '^(Depth=|\s*$)' log | head -n 20 >&2
}

configuration() { # NAME MODE [MACRO...]
  search "$1" "$2" -O2 "${@:3}"
  if ! grep -q 'errors: 0$' log; then
    fail "$1" "an error: ${*:3}"
  elif grep -qE 'Search not completed|max search depth|out of memory|MEMLIM' log; then
    fail "$1" "the search is not complete: ${*:3}"
  else
    line "$1" "nothing found (${*:3})"
    touch passed
  fi
}

mutation() { # NAME [MACRO...]
  local found
  search "$1" safety -O0 "${@:2}"  # found soon: compiling takes longer than the search
  found=$(value '^pan:1: (assertion violated|invalid end state).*')
  if [ -z "$found" ]; then
    fail "$1" "the fault was not found: ${*:2}"
  else
    line "$1" "found: $found"
    touch passed
  fi
}

# Runs a function with each line of its arguments, JOBS at the same time; fails unless each has passed.
for_each() { # FUNCTION LINE...
  local function=$1 entry
  shift
  for entry in "$@"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
      wait -n || true
    done
    # shellcheck disable=SC2086  # a line is a list of words
    ($function $entry) &
  done
  wait
  for entry in "$@"; do
    if ! [ -e "$scratch/${entry%% *}/passed" ]; then
      failed+=("${entry%% *}")
    fi
  done
}

# The lines that the model prints; the end of the output is the final state.
actions() {
  grep -xE '[a-z]+( [a-z]+)?( [0-9]+)*' | grep -vx timeout
}

trail() { # NAME
  local entry
  for entry in "${mutations[@]}"; do
    if [ "${entry%% *}" = "$1" ]; then
      # shellcheck disable=SC2086  # a line is a list of words
      set -- $entry
      search "$1" shortest -O2 "${@:2}"
      spin -T -k channel.pml.trail "${@:2}" "$model" 2>&1 | actions
      value '^(pan:1: .*) \(at depth.*'
      return
    fi
  done
  echo "model: unknown mutation $1" >&2
  exit 2
}

traces() { # OUT COUNT SEED
  local i run macros
  for ((i = 0; i < $2; i++)); do
    macros=${simulations[i % ${#simulations[@]}]}
    # shellcheck disable=SC2086  # a list of macros
    run=$(cd "$scratch" && spin -T "-n$(($3 + i))" -u20000 -DSIMULATION $macros "$model" 2>&1) || true
    # spin's simulator (not its search) can choose a d_step of a process with `unless` although its first statement blocks.
    if grep -q 'stmnt in d_step blocks' <<<"$run"; then
      continue
    fi
    if ! grep -q '^[0-9]* processes created' <<<"$run" || grep -qE 'rror|depth-limit' <<<"$run"; then
      echo "model: a random run failed: spin -T -n$(($3 + i)) -u20000 -DSIMULATION $macros $model" >&2
      exit 1
    fi
    echo "run $(($3 + i)) $macros"
    actions <<<"$run"
  done >"$1"
}

case ${1:-} in
  "")
    memory_mb=700
    for_each configuration "${configurations[@]}"
    for_each mutation "${mutations[@]}"
    ;;
  long)
    memory_mb=2000
    for_each configuration "${long[@]}"
    ;;
  thorough)
    memory_mb=${MEMORY_MB:-12000}
    for_each configuration "${thorough[@]}"
    ;;
  trail)
    memory_mb=4000
    trail "${2:-}"
    ;;
  traces) traces "${@:2:3}" ;;
  *) echo "model: unknown command $1" >&2; exit 2 ;;
esac
if [ ${#failed[@]} -gt 0 ]; then
  echo "model: failed: ${failed[*]}" >&2
  exit 1
fi
if [[ ${1:-} != tra* ]]; then
  echo "model: $SECONDS s"
fi
