#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# copy.sh COPY MIB: the copy example takes a file over rxe and brings it back, and all three are the same to the byte.
# In a guest with two devices, or from one of two guests to the other.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
copy=$1 mib=$2
work=$(mktemp -d)

# serve ADDRESS DEVICE
serve() {
  mkdir "$work/served"
  "$copy" serve "$work/served" --listen "$1:7471" --device "verbs:$2" &
  server=$!
  until_true "copy does not listen" rdma_listener
}

# put_and_get ADDRESS DEVICE: to the server and back.
put_and_get() {
  head -c "${mib}M" /dev/urandom >"$work/file"
  "$copy" put "$work/file" "$1:7471" --device "verbs:$2"
  "$copy" get file "$1:7471" --device "verbs:$2" --output "$work/back"
  cmp "$work/file" "$work/back"
}

end_server() {
  kill -TERM "$server"
  wait "$server"
}

# What "auto" opens reaches processes of this machine through shared memory, and others through the RDMA device.
automatic() {
  "$copy" serve "$work/served" --listen 10.77.0.1:7472 --device auto >"$work/said" &
  server=$!
  until_true "copy does not listen" grep -q "over shm,verbs:" "$work/said"
  cp "$work/file" "$work/near"
  cp "$work/file" "$work/far"
  "$copy" put "$work/near" 10.77.0.1:7472 --device auto
  "$copy" put "$work/far" 10.77.0.1:7472 --device verbs:rxe1
  cmp "$work/file" "$work/served/near"
  cmp "$work/file" "$work/served/far"
  until_true "the server does not tell of the first" grep -q "^process [0-9]*: put near:" "$work/said"
  until_true "the server does not tell of the second" grep -q "^10.77.0.2:[0-9]*: put far:" "$work/said"
  end_server
}

case ${WEFT_VM_GUEST-} in
  '')
    serve 10.77.0.2 rxe1
    put_and_get 10.77.0.2 rxe0
    cmp "$work/file" "$work/served/file"
    end_server
    automatic
    ;;
  1)
    serve 10.78.0.1 rxe0
    meet listening
    until [[ -e /pair/file ]]; do sleep 0.1; done  # packets that are lost make it take its time
    meet copied
    cmp "/pair/file" "$work/served/file"
    end_server
    ;;
  2)
    meet listening
    put_and_get 10.78.0.1 rxe0
    cp "$work/file" /pair/file.part
    mv /pair/file.part /pair/file
    meet copied
    ;;
esac
