#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# devices.sh rxe|siw: makes two RDMA devices on the two ends of one cable, and returns when both can be used.
#
#   rxe0 on veth0, 10.77.0.1 and fd77::1  =====  rxe1 on veth1, 10.77.0.2 and fd77::2      (or siw0 and siw1)
#
# All that one address says to the other goes over the cable, where it can be lost, delayed and cut, although both are
# the same machine's (rxe does not work across network namespaces); only what an address says to itself does not.
# `devices.sh restore` makes good what the kernel forgets when an end of the cable goes down.
#
# It starts few processes, because under emulation each takes as long as everything else here.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

make_cable() {
  local setting
  ip -batch - <<'TEXT'
link add veth0 address 02:77:00:00:00:01 type veth peer name veth1 address 02:77:00:00:00:02
address add 10.77.0.1/32 dev veth0
address add 10.77.0.2/32 dev veth1
TEXT
  for setting in /proc/sys/net/ipv4/conf/*/accept_local; do echo 1 >"$setting"; done
  for setting in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >"$setting"; done
  rules 10.77.0.1 10.77.0.2 | ip -batch -
  rules fd77::1 fd77::2 | ip -6 -batch -
  lay_cable
}

# rules A B: an address finds itself, and what has come in, at home; the other one is at the cable's far end.
rules() {
  cat <<TEXT
rule add pref 10 iif veth0 lookup local
rule add pref 10 iif veth1 lookup local
rule add pref 20 from $1 to $1 lookup local
rule add pref 20 from $2 to $2 lookup local
rule add pref 30 to $2 lookup 100
rule add pref 30 to $1 lookup 101
rule add pref 40 lookup local
rule del pref 0
TEXT
}

# With the neighbours' hardware addresses: whoever had to ask for them would wait long where packets are lost.
lay_cable() {
  ip -batch - <<'TEXT'
link set veth0 up
link set veth1 up
address replace fd77::1/128 dev veth0 nodad
address replace fd77::2/128 dev veth1 nodad
route replace 10.77.0.2 dev veth0 src 10.77.0.1 table 100
route replace 10.77.0.1 dev veth1 src 10.77.0.2 table 101
route replace fd77::2 dev veth0 src fd77::1 table 100
route replace fd77::1 dev veth1 src fd77::2 table 101
neighbour replace 10.77.0.2 dev veth0 lladdr 02:77:00:00:00:02 nud permanent
neighbour replace 10.77.0.1 dev veth1 lladdr 02:77:00:00:00:01 nud permanent
neighbour replace fd77::2 dev veth0 lladdr 02:77:00:00:00:02 nud permanent
neighbour replace fd77::1 dev veth1 lladdr 02:77:00:00:00:01 nud permanent
TEXT
}

is_active() { [[ $(<"/sys/class/infiniband/$1/ports/1/state") == *ACTIVE ]]; }

# Whether a device's table of addresses, which a thread of the kernel's fills, has those of end N.
has_addresses() {
  local row rows=
  for row in "/sys/class/infiniband/$1/ports/1/gids/"{0..7}; do rows+=" $(<"$row")"; done
  [[ $rows == *0000:0000:0000:0000:0000:ffff:0a4d:000$2* && $rows == *fd77:0000:0000:0000:0000:0000:0000:000$2* ]]
}

await_rxe() {
  until_true "rxe0 is not active" is_active rxe0
  until_true "rxe1 is not active" is_active rxe1
  until_true "rxe0 does not have its addresses" has_addresses rxe0 1
  until_true "rxe1 does not have its addresses" has_addresses rxe1 2
}

await_siw() {
  until_true "siw0 is not active" is_active siw0
  until_true "siw1 is not active" is_active siw1
}

case ${1-} in
  rxe)
    modprobe -a veth crc32_generic rdma_rxe rdma_ucm  # in this order: without the CRC, rxe does not find a file
    make_cable
    rdma link add rxe0 type rxe netdev veth0
    rdma link add rxe1 type rxe netdev veth1
    await_rxe
    ;;
  siw)
    modprobe -a veth crc32c_generic siw rdma_ucm
    make_cable
    rdma link add siw0 type siw netdev veth0
    rdma link add siw1 type siw netdev veth1
    await_siw
    ;;
  restore)
    lay_cable
    if [[ -e /sys/class/infiniband/rxe0 ]]; then await_rxe; fi
    if [[ -e /sys/class/infiniband/siw0 ]]; then await_siw; fi
    ;;
  *)
    echo "usage: devices.sh rxe | siw | restore" >&2
    exit 2
    ;;
esac
