#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# in_guest.sh WEFT_STRESS MINUTES REPORTS: in a guest with two Soft-RoCE devices (tests/vm/README.md), shares the time
# between one device alone and a cable that loses, reorders and is cut, under verbs and under iWARP.
set -uo pipefail
program=$1 minutes=$2 reports=$3
here=$(dirname "$0")
status=0
modprobe sch_netem

# part NAME PERCENT COMMAND...: the last being weft-stress with what it needs.
part() {
  local name=$1 share
  share=$(awk -v all="$minutes" -v percent="$2" 'BEGIN { print all * percent / 100 }')
  printf '\n== %s\n' "$name"
  "${@:3}" --minutes "$share" --limit 300 --json "$reports/stress-guest-$name.json" \
    --plot "$reports/stress-guest-$name.svg" || status=1
}

lossy=("$here/../vm/netem.sh" 'loss 1%')
shuffling=("$here/../vm/netem.sh" 'delay 2ms 1ms loss 1%')  # what is delayed less overtakes the rest
verbs=(--device verbs:rxe1 --address 10.77.0.2 --client-device verbs:rxe0)
iwarp=(--device iwarp --address 10.77.0.2)
pulled=(--duel plain,connection_churn --disturb 'tc qdisc replace dev veth0 root netem loss 100%; sleep 0.5
                                                 tc qdisc del dev veth0 root')
down=(--duel plain,connection_churn --disturb "ip link set veth0 down; sleep 0.5; $here/../vm/devices.sh restore")

part alone 40 "$program" --device verbs:rxe0 --address 10.77.0.1
part cut_verbs 15 "$program" "${verbs[@]}" "${pulled[@]}"
part lossy_verbs 15 "${lossy[@]}" "$program" "${verbs[@]}" --duel plain,cancellation_storm
tc qdisc del dev veth0 root
tc qdisc del dev veth1 root
part cut_iwarp 15 "$program" "${iwarp[@]}" "${down[@]}"
part shuffling_iwarp 15 "${shuffling[@]}" "$program" "${iwarp[@]}" --duel plain,cancellation_storm,connection_churn
exit $status
