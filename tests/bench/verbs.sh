#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# verbs.sh BUILD_DIR: verbs.py in its guest; the figures go to BUILD_DIR/bench/verbs.json.
here=$(dirname "$(readlink -f "$0")")
WEFT_VM_OUT=$1/bench exec "$here/../vm/vm.py" --devices rxe --instructions --timeout 400 -- \
  python3 "$here/verbs.py" "$1"
