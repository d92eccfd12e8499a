#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# crash_test.sh WEFT_STRESS DUEL: whenever the server of a pair crashes, that fails, and its words are told.
set -uo pipefail
said=$(mktemp)
"$1" --duel "$2" --minutes 0.2 --most-failures 1 >"$said" 2>&1 &
trap 'kill -KILL $! 2>/dev/null; rm -f "$said"' EXIT
until ! kill -0 $! 2>/dev/null; do  # one signal may meet a server that is being killed anyway
  for one in $(cat "/proc/$!/task/$!/children" 2>/dev/null); do
    [[ $(cat "/proc/$one/comm" 2>/dev/null) == server ]] && kill -ABRT "$one"
  done
  sleep 0.1
done 2>/dev/null
wait $!
status=$?
cat "$said"
[[ $status == 1 ]] && grep -q 'the server: died of signal 6' "$said"
