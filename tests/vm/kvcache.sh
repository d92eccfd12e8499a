#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kvcache.sh KVCACHE: the kvcache example pushes sequences from one device to the other over rxe, and its receiver
# checks every byte of every layer; then its measurement, which checks every byte of a round. In a guest with two devices.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
kvcache=$1
receiver=10.77.0.2:7478
small=(--layers 3 --block-bytes 16384)
work=$(mktemp -d)

# says COUNT TEXT FILE: in so many lines.
says() {
  [[ $(grep -c -- "$2" "$3") == "$1" ]] || { echo "'$2' is not $1 times in:" && cat "$3" && return 1; } >&2
}

no_rdma_listener() { ! rdma_listener; }

# serve OPTIONS...
serve() {
  "$kvcache" serve "$receiver" --device verbs:rxe1 "${small[@]}" "$@" >"$work/served" 2>&1 &
  server=$!
  until_true "kvcache does not listen" rdma_listener
}

# push SEQUENCES: of 40 pages.
push() {
  if ! "$kvcache" push "$receiver" --device verbs:rxe0 "${small[@]}" --pages 40 --sequences "$1" \
    >"$work/pushed" 2>&1; then
    cat "$work/pushed" "$work/served" >&2
    return 1
  fi
}

end_server() {
  kill -TERM "$server"
  wait "$server"
  until_true "the server still listens" no_rdma_listener
}

echo "pages are used again"
serve --pages 100
push 5
end_server
says 1 "^5 accepted, 0 evicted, 0 refused$" "$work/pushed"
says 5 "accepted 40 pages of 3 layers, 1966080 bytes$" "$work/served"

# The device refuses a write that comes too late, which ends its connection: the pusher connects anew. There is room for
# all of them, because the receiver may hear of that after the next sequence has come.
echo "every other sequence is evicted"
serve --pages 240 --evict-every 2
push 6
end_server
says 1 "^3 accepted, 3 evicted, 0 refused$" "$work/pushed"
says 3 "accepted 40 pages of 3 layers, 1966080 bytes$" "$work/served"

echo "the measurement"
"$kvcache" bench --device verbs:rxe0 --address 10.77.0.1:0 --blocks 64 --block-bytes 16384 --rounds 2
