#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# memory.sh BUILD_DIR: memory.py, and memory_in_guest.py where there can be a guest and libfabric is there.
here=$(dirname "$(readlink -f "$0")")
status=0
python3 "$here/memory.py" "$@" || status=$?
if [[ -x $1/tests/bench/memory_libfabric ]]; then
  WEFT_VM_OUT=$1/bench "$here/../vm/vm.py" --devices rxe --instructions --timeout 400 -- \
    python3 "$here/memory_in_guest.py" "$1" || { guest=$?; ((guest == 77)) || status=$guest; }
else
  echo 'memory_libfabric was not built: no libfabric (Debian: libfabric-dev)'
fi
exit "$status"
