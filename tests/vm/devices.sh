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
# devices.sh none|rxe|siw N CABLES: makes guest N of two its ends of the cables between them, with a device at each.
#
#   guest 1: rxe0 on eth0, 10.78.0.1 and fd78::1  =====  guest 2: rxe0 on eth0, 10.78.0.2 and fd78::2
#   guest 1: rxe1 on eth1, 10.79.0.1 and fd79::1  =====  guest 2: rxe1 on eth1, 10.79.0.2 and fd79::2   (and so on)
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
  keep_order
  lay_cable
}

# One processor takes in what comes out of an end of the cable, as with a network card: veth leaves that to whichever
# sends, so that packets overtake one another, which rxe takes for losses.
keep_order() {
  echo 1 >/sys/class/net/veth0/queues/rx-0/rps_cpus
  echo $(($(nproc) > 1 ? 2 : 1)) >/sys/class/net/veth1/queues/rx-0/rps_cpus
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

# has_addresses DEVICE NET N: whether its table of addresses, which a thread of the kernel's fills, has 10.NET.0.N and
# fdNET::N.
has_addresses() {
  local row four rows=""
  printf -v four 'ffff:0a%02x:%04x' "$2" "$3"
  for row in "/sys/class/infiniband/$1/ports/1/gids/"{0..7}; do rows+=" $(<"$row")"; done
  [[ $rows == *"0000:$four"* && $rows == *"fd$2:0000:0000:0000:0000:0000:0000:000$3"* ]]
}

# load_driver KIND
load_driver() {
  local drivers=(crc32c_generic siw)
  [[ $1 == rxe ]] && drivers=(crc32_generic rdma_rxe)  # in this order: without the CRC, rxe does not find a file
  modprobe -a "${drivers[@]}" rdma_ucm
}

# await_device DEVICE NET N
await_device() {
  until_true "$1 is not active" is_active "$1"
  if [[ $1 == rxe* ]]; then
    until_true "$1 does not have its addresses" has_addresses "$@"
  fi
}

make_two() {
  modprobe veth
  load_driver "$1"
  make_cable
  rdma link add "${1}0" type "$1" netdev veth0
  rdma link add "${1}1" type "$1" netdev veth1
  await_device "${1}0" 77 1
  await_device "${1}1" 77 2
}

restore() {
  local device
  lay_cable
  for device in /sys/class/infiniband/*; do
    await_device "${device##*/}" 77 $((${device: -1} + 1))
  done
}

# make_end KIND N CABLE
make_end() {
  local other=$((3 - $2)) net=$((78 + $3)) end=eth$3
  until_true "there is no $end" test -e "/sys/class/net/$end"
  ip -batch - <<TEXT
link set $end up
address add 10.$net.0.$2/24 dev $end
address add fd$net::$2/64 dev $end nodad
neighbour replace 10.$net.0.$other dev $end lladdr 02:$net:00:00:00:0$other nud permanent
neighbour replace fd$net::$other dev $end lladdr 02:$net:00:00:00:0$other nud permanent
TEXT
  [[ $1 != none ]] || return 0
  rdma link add "$1$3" type "$1" netdev "$end"
}

# make_ends KIND N CABLES
make_ends() {
  local cable
  modprobe virtio_net
  [[ $1 == none ]] || load_driver "$1"
  for ((cable = 0; cable < $3; ++cable)); do make_end "$1" "$2" "$cable"; done
  [[ $1 != none ]] || return 0
  for ((cable = 0; cable < $3; ++cable)); do await_device "$1$cable" $((78 + cable)) "$2"; done
}

case $#:${1-} in
  1:rxe | 1:siw) make_two "$1" ;;
  1:restore) restore ;;
  3:none | 3:rxe | 3:siw) make_ends "$@" ;;
  *)
    echo "usage: devices.sh rxe|siw, devices.sh none|rxe|siw 1|2 CABLES, devices.sh restore" >&2
    exit 2
    ;;
esac
