#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# in_two_guests.sh WEFT_STRESS MINUTES DEVICE: pairs of processes in two guests (tests/vm/README.md), with servers that are
# killed and frozen in the second one, and a cable that is pulled out for a while and plugged in again.
set -euo pipefail
here=$(dirname "$0")
source "$here/../vm/lib.sh"
program=$1 minutes=$2 device=$3
if [[ $WEFT_VM_GUEST == 2 ]]; then
  coproc far { exec "$program" --serve 10.78.0.2:7472 --device "$device" --address 10.78.0.2; }
  read -r -u "${far[0]}" _ _ address
  echo "$address"
  meet start
  until [[ -e /pair/end.1 ]]; do sleep 0.2; done  # as long as it takes
  meet end
  kill "$far_PID"
  exit
fi
meet start
status=0
half=$(awk -v all="$minutes" 'BEGIN { print all / 2 }')
"$program" --with 10.78.0.2:7472 --device "$device" --duel plain,peer_frozen,peer_killed --minutes "$half" || status=$?
"$program" --with 10.78.0.2:7472 --device "$device" --duel plain,connection_churn --minutes "$half" \
  --disturb 'echo cable down >/dev/virtio-ports/host; sleep 1; echo cable up >/dev/virtio-ports/host' || status=$?
meet end
exit "$status"
