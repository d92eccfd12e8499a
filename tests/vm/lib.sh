# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the guest's scripts share.

# until_true WHAT COMMAND...: waits for it, up to 60 s; says WHAT if it does not come true.
until_true() {
  local end=$((SECONDS + 60))
  until "${@:2}"; do
    if ((SECONDS > end)); then
      echo "after 60 s, $1" >&2
      return 1
    fi
    sleep 0.02
  done
}

# Whether somebody listens for RDMA connections.
rdma_listener() { rdma resource show cm_id | grep -q LISTEN; }

# meet NAME: waits, in one of two guests, until the other one is here as well.
meet() {
  touch "/pair/$1.$WEFT_VM_GUEST"
  until_true "the other guest has not come to '$1'" test -e "/pair/$1.$((3 - WEFT_VM_GUEST))"
}
