#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# smoke.sh: in a guest with devices, they ping each other, over both kinds of address and over the cable.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

sent=/sys/class/net/veth0/statistics/tx_packets
rounds=20
for addresses in '10.77.0.1 10.77.0.2' 'fd77::1 fd77::2'; do
  read -r from to <<<"$addresses"
  before=$(<$sent)
  rping -s -a "$to" -C $rounds -V &
  until_true "rping does not listen" rdma_listener
  rping -c -a "$to" -I "$from" -C $rounds -V
  wait $!
  packets=$(($(<$sent) - before))
  echo "$from and $to have exchanged $rounds messages, with $packets packets from veth0"
  ((packets >= 2 * rounds)) || { echo "that is not over the cable" >&2; exit 1; }
done
