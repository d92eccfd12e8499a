#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# netem.sh 'loss 1%' COMMAND...: in a guest with devices, runs a command while the cable treats packets so, each way, or of
# two guests what each of them sends. See tc-netem(8).
set -euo pipefail
read -ra treatment <<<"$1"
shift
modprobe sch_netem
ends=(veth0 veth1)
[[ ${WEFT_VM_GUEST-} ]] && ends=(eth0)
for end in "${ends[@]}"; do
  tc qdisc replace dev "$end" root netem "${treatment[@]}"
done
status=0
"$@" || status=$?
for end in "${ends[@]}"; do
  tc -s qdisc show dev "$end" | grep -m1 dropped
done
exit $status
