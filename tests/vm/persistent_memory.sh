#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# persistent_memory.sh FROM_RPMA: over RDMA devices with FLUSH, a client's records go to a DAX device, and are there for
# the next server. Takes an NVDIMM (vm.py --persistent); status 77, which CTest counts as skipped, where something is missing.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
program=$1
address=10.77.0.2:7471
said=$(mktemp)

# skip WORDS
skip() {
  echo "skipped: $1"
  exit 77
}

# serve: on the device at the other end of the cable
serve() {
  "$program" serve /dev/dax0.0 "$address" verbs:rxe1 >"$said" 2>&1 &
  server=$!
  until_true "the server says nothing" grep -q . "$said"
  grep -q listening "$said" || {
    cat "$said" >&2
    exit 1
  }
}

kill_server() {
  kill -KILL "$server"
  wait "$server" 2>/dev/null || true
}

command -v ndctl >/dev/null || skip "no ndctl"
modprobe -a nfit nd_pmem device_dax dax_pmem || skip "the kernel has no persistent memory"
ndctl create-namespace --force --reconfig=namespace0.0 --mode=devdax >/dev/null
until_true "there is no DAX device" test -c /dev/dax0.0
serve
"$program" append "$address" first verbs:rxe0
"$program" append "$address" second verbs:rxe0
kill_server
serve
text=$("$program" show "$address" verbs:rxe0)
[[ $text == firstsecond ]] || {
  echo "the next server has '$text'" >&2
  exit 1
}
kill_server
echo "what the device has flushed was there"
