#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# valkey.sh KV VALKEY_PEER: in a guest with Soft-RoCE devices, kv speaks Valkey over RDMA with a peer that is not weft, in
# either role and on either event driver, and with itself.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
kv=$1 peer=$2 there=10.77.0.2 port=7476

for WEFT_EVENT_DRIVER in epoll io_uring; do
  export WEFT_EVENT_DRIVER
  echo "== kv on $WEFT_EVENT_DRIVER is the server"
  rm -f said
  "$kv" --device verbs:rxe1 serve --listen $there:0 --tcp-port 0 --keys 1000 --valkey $there:$port >said 2>complaints &
  serving=$!
  until_true "kv does not listen" grep -qs '^Valkey over RDMA' said
  "$peer" ask $there $port
  "$kv" --device verbs:rxe0 set valkey://$there:$port colour green
  [[ $("$kv" --device verbs:rxe0 get valkey://$there:$port colour) == green ]]
  kill -0 $serving
  kill $serving
  wait $serving || true
  for words in 'a message of 31 bytes' 'the unknown kind 4' 'chooses the features 0x1' 'a buffer of no bytes' \
    'beyond the end of all addresses' '100 bytes of the last one are left' 'it has written'; do
    grep -q "$words" complaints || { echo "kv has not complained of '$words':" >&2; cat complaints >&2; exit 1; }
  done
  until_true "kv still listens" eval '! rdma_listener'

  echo "== kv on $WEFT_EVENT_DRIVER is the client"
  "$peer" answer $there $port &
  answering=$!
  until_true "the peer does not listen" rdma_listener
  "$kv" --device verbs:rxe0 set valkey://$there:$port colour blue
  [[ $("$kv" --device verbs:rxe0 get valkey://$there:$port colour) == blue ]]
  wait $answering
done
echo "all is well"
