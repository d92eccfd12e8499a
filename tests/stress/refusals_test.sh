#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# refusals_test.sh WEFT_STRESS: what weft-stress is asked for and cannot do, it says, and does nothing else.
set -uo pipefail
program=$1 failed=0 scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit

# refuses WORDS OPTION...
refuses() {
  local words=$1 said status=0
  shift
  said=$(timeout 60 "$program" "$@" 2>&1) || status=$?
  if ((status == 0 || status == 1)) || [[ $said != *"$words"* ]]; then
    printf '%s: exited with %s, and said: %s\n' "$*" "$status" "$said"
    failed=1
  fi
}

refuses 'more than 0' --seeds 0
refuses 'more than 0' --most-failures 0
refuses 'more than 0' --minutes -1
refuses 'more than 0' --limit 0
refuses 'excludes' --iwarp --fail-each
refuses 'excludes' --iwarp --transport verbs
refuses 'excludes' --sim --duel plain
refuses 'excludes' --fail-each --minutes 1
refuses '--json' --sim --seeds 1 --json report.json
refuses 'cannot write /nonesuch/report' --duel plain --json /nonesuch/report
refuses 'listen on 192.0.2.1:0' --iwarp --address 192.0.2.1 --seeds 1
refuses '127.0.0.1:1' --with 127.0.0.1:1 --minutes 0.1
echo 'no script' >script
refuses 'script is not a script' --script script
exit "$failed"
