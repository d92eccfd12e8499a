#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# far_test.sh WEFT_STRESS: pairs of processes whose servers another weft-stress has, on this machine though.
set -euo pipefail
coproc far { exec "$1" --serve 127.0.0.1:0; }
trap 'kill "$far_PID"' EXIT
read -r -u "${far[0]}" _ _ address

# While one is served, others are told so at once.
exec {first}<>"/dev/tcp/${address/://}"
read -r -u "$first" greeting
[[ $greeting == '{}' ]]
turned_away=$("$1" --with "$address" --duel plain --minutes 0.05 2>&1) && exit 1
grep 'it serves another client' <<<"$turned_away"
exec {first}>&-

"$1" --with "$address" --duel plain,peer_frozen,peer_killed --disturb true --minutes 0.15
