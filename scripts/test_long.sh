#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests that `make test` runs in part with all their rounds, one after the other.
# Goes on after a failure; fails at its end if any has failed.
#
#   scripts/test_long.sh PRESET
set -euo pipefail

cd "$(dirname "$0")/.."
tests=build/$1/tests
failed=()
run() {  # PROGRAM FILTER [VARIABLE=VALUE...]
  local started=$SECONDS
  echo "test_long: $1 $2 ${*:3}"
  if ! env "${@:3}" "$tests/$1" --gtest_filter="$2" --gtest_brief=1; then
    failed+=("$1 $2")
  fi
  echo "test_long: $((SECONDS - started)) s"
}

echo "test_long: model"
tests/model/check.sh long || failed+=(model)
run core/gpushm_core_test 'domain_and_model.*' GPUSHM_RANDOM_WORLDS=200 GPUSHM_REPLACED_WORLDS=20
run broker/gpushm_broker_poll_test 'adaptive_poll.*' GPUSHM_POLL_SECONDS=5
run core/gpushm_core_heap_test 'core_heap.*' GPUSHM_HEAP_SEGMENTS=100000
run wire/gpushm_wire_test 'random_*' GPUSHM_RANDOM_TICKETS=1000000
run inspect/inspect_explain_test 'explain_log.*' GPUSHM_LOG_MIB=1024
run core/gpushm_core_heap_test 'conservation.*' GPUSHM_CONSERVATION_STEPS=1000000
run journal/journal_kill_test '*' GPUSHM_KILL_STEP=101
run brokerd/broker_start_test 'killed_at_start.*' GPUSHM_BROKER_STEPS=200 GPUSHM_BROKER_ERRORS=250
run brokerd/broker_step_test '*' GPUSHM_BROKER_STEPS=100
run brokerd/full_journal_test '*' GPUSHM_FULL_JOURNALS=100
run brokerd/container_memory_test '*' GPUSHM_CONTAINER_MIB=512
run hostile/leak_rounds_test '*' GPUSHM_LEAK_ROUNDS=20000
run process/death_test '*' GPUSHM_STEP_BETWEEN_KILLS=1
run process/scale_test '*up_to_the_descriptor_limit' GPUSHM_SCALE_DESCRIPTORS=100000
run weights/weights_kill_test '*.processes_leave_a_model_*' GPUSHM_KILLS=200
run weights/weights_load_test '*.leave_nothing_where_*' GPUSHM_STEP_BETWEEN_KILLS=1
run weights/weights_load_test '*.succeed_if_any_process_is_killed*' GPUSHM_KILLS=20
run timelines/timeline_test 'channels.bring_*:*.order_launches_*' \
  GPUSHM_CHANNEL_ITEMS=1000000 GPUSHM_CHANNEL_FRAMES=3000 GPUSHM_GRAPH_LAUNCHES=10000
run brokerd/broker_kill_test 'replaced_broker_under_load*' GPUSHM_BROKER_KILLS=1000 GPUSHM_BROKER_TAKEOVERS=100

if ((${#failed[@]} != 0)); then
  printf 'test_long: failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
