# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the guest's scripts share.

# until_true WHAT COMMAND...: waits for it, up to 30 s; says WHAT if it does not come true.
until_true() {
  local end=$((SECONDS + 30))
  until "${@:2}"; do
    if ((SECONDS > end)); then
      echo "after 30 s, $1" >&2
      return 1
    fi
    sleep 0.02
  done
}

# Whether somebody listens for RDMA connections.
rdma_listener() { rdma resource show cm_id | grep -q LISTEN; }
