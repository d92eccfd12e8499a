#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# info.sh WEFT_INFO CASE...: what weft-info says of real devices that are well, down, forbidden or without addresses, of
# modules that are missing, and of a cable that drops large packets. In a guest with two devices, rxe or siw.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
info=$1
shift
work=$(mktemp -d)
chmod 777 "$work"
devices=(/sys/class/infiniband/*0)
kind=${devices[0]##*/}
kind=${kind%0}  # rxe or siw

check() { timeout 120 "$info" check "$@"; }

# ends_with CODE COMMAND...: what it prints is in "$work/said".
ends_with() {
  local code=0
  "${@:2}" >"$work/said" 2>"$work/warned" || code=$?
  ((code == $1)) || { echo "exit code $code of: ${*:2}" && cat "$work/said" "$work/warned" && return 1; } >&2
}

# says LEVEL AREA WORDS: whether there is such a finding. AREA may have spaces.
says() {
  awk -v level="$1" -v area="$2" -v words="$3" \
    'index($0, level) == 1 && index($0, " " area " ") && index($0, words) { found = 1 } END { exit !found }' \
    "$work/said" || { echo "no '$1 $2 ... $3' in:" && cat "$work/said" "$work/warned" && return 1; } >&2
}
# advises WORDS
advises() {
  awk -v words="$1" '/^ +-> / && index($0, words) { found = 1 } END { exit !found }' "$work/said" ||
    { echo "no advice '$1' in:" && cat "$work/said" && return 1; } >&2
}

# has_tried OPERATION RESULT: in a report.
has_tried() {
  grep -q "^ *\"$1\": \"$2" "$work/said" || { echo "no $1 that $2 in:" && cat "$work/said" && return 1; } >&2
}

serves() { grep -qs "^listening on" "$work/served"; }
# serve ADDRESS ARGUMENTS...
serve() {
  rm -f "$work/served"
  "$info" serve "$@" >"$work/served" 2>"$work/served.warned" &
  server=$!
  until_true "weft-info does not listen" serves
}
end_server() {
  kill -TERM "$server"
  wait "$server"
}

port_of() { cat "/sys/class/infiniband/$1/ports/1/state"; }
is_down() { [[ $(port_of "$1") == *DOWN ]]; }

# Devices and their addresses are listed, and nothing hinders.
try_well() {
  ends_with 0 timeout 120 "$info"
  grep -q "verbs:${kind}0 *can be opened" "$work/said"
  grep -q "10.77.0.1" "$work/said"
  ends_with 0 check
  says ok "device ${kind}0" "weft can open it"
  says ok "port ${kind}0/1" active
  if [[ $kind == rxe ]]; then
    says ok "GIDs rxe0/1" "10.77.0.1, fd77::1 (RoCE v2)"
  else
    says ok "addresses siw0/1" "10.77.0.1, fd77::1"
  fi
}

# One fabric at a time, because siw and iWARP in user space share their ports.
try_peer() {
  serve 10.77.0.2:7470 --fabric "verbs:${kind}1"
  ends_with 0 check 10.77.0.2:7470 --timeout 20 --fabric "verbs:${kind}0"
  says ok "transfers over verbs:${kind}0" "4 MiB each way"
  says ok "path MTU" "packets of 1500 bytes"
  # shellcheck disable=SC2016
  ends_with 1 check 10.77.0.2:7480 --timeout 20 --fabric "verbs:${kind}0"
  says error "peer over verbs:${kind}0" "refuse"
  end_server
}

# Each device with both ends in one process, and with those of the cable. siw has neither atomics nor memory windows.
try_report() {
  ends_with 0 check --report --timeout 20 --fabric "verbs:${kind}0"
  has_tried flush passed
  has_tried close passed
  has_tried atomic "$([[ $kind == siw ]] && echo refused || echo passed)"
  grep -q '"kernel_driver": null' "$work/said"
  if grep "10\.77\." "$work/said"; then return 1; fi
}

# One end of the cable is down. The other end of rxe has no carrier then; siw does not look at it, and stays active.
try_down() {
  ip link set veth0 down
  until_true "${kind}0 is still active" is_down "${kind}0"
  if [[ $kind == siw ]]; then
    ends_with 0 check
    says warning "port siw0/1" "the port is not active but DOWN"
    ip link set veth1 down
  fi
  until_true "${kind}1 is still active" is_down "${kind}1"
  ends_with 1 check
  says error "port ${kind}0/1" "the port is not active but DOWN"
  says error "port ${kind}1/1" "the port is not active but DOWN"
  advises "ip link set dev veth0 up"
  [[ $kind == siw ]] || advises "ethtool veth1"
  "$(dirname "$0")/devices.sh" restore
  ends_with 0 check
}

# An ordinary user, who may not open the devices' files, and may lock as much memory as most systems allow.
check_as_user() {
  (ulimit -l "$1" && exec timeout 120 setpriv --reuid 1000 --regid 1000 --clear-groups -- "$info" check)
}

try_forbidden() {
  local files=(/dev/infiniband/uverbs* /dev/infiniband/rdma_cm)
  chmod 600 "${files[@]}"
  ends_with 1 check_as_user 8192
  says error "device ${kind}0" "this user may not open /dev/infiniband/uverbs0"
  advises "chmod 666 /dev/infiniband/uverbs0"
  says error rdma_cm "this user may not open /dev/infiniband/rdma_cm"
  chmod 666 "${files[@]}"
  ends_with 0 check_as_user 8192
  says ok "device ${kind}0" "weft can open it"
  says warning memlock "8 MiB: a device's pool has 4 MiB"
  ends_with 1 check_as_user 64
  says error memlock "64 KiB"
}

has_no_address() { ! grep -qs "ffff:0a4d:0001" /sys/class/infiniband/rxe0/ports/1/gids/*; }

try_addresses() {
  ip address del 10.77.0.1/32 dev veth0
  ip -6 address flush dev veth0
  [[ $kind != rxe ]] || until_true "rxe0 still has its address" has_no_address
  ends_with 1 check
  if [[ $kind == rxe ]]; then
    says error "GIDs rxe0/1" ""
  else
    says error "addresses siw0/1" "veth0 has no IP address"
  fi
  advises "ip address add 10.0.0.1/24 dev veth0"
  ip address add 10.77.0.1/32 dev veth0
  ip link set veth0 down
  "$(dirname "$0")/devices.sh" restore
  ends_with 0 check
}

# One end lets packets be large, and the other drops them without a word. RDMA takes the MTU of its own end.
try_black_hole() {
  ip link set veth0 mtu 9000
  serve 10.77.0.2:7470 --fabric verbs:rxe1
  ends_with 1 check 10.77.0.2:7470 --timeout 5 --fabric verbs:rxe0
  end_server || true
  says error "transfers over verbs:rxe0" "something on the way drops large packets without a word"
  says error "path MTU" "packets of up to 1500 bytes go there and back, but verbs:rxe0 sends 4156 bytes in one"
  advises "ip link set dev veth0 mtu 1500"
  ip link set veth0 mtu 1500
}

# Without the connection manager's module, and then without any device.
try_modules() {
  modprobe -r rdma_ucm
  ends_with 1 check
  says error rdma_cm "rdma_ucm is not loaded"
  advises "modprobe rdma_ucm"
  modprobe rdma_ucm
  rdma link delete "${kind}0"
  rdma link delete "${kind}1"
  ends_with 0 check
  says hint devices "no RDMA device"
  ends_with 0 timeout 120 "$info"
  grep -q "^  none" "$work/said"
}

for each in "$@"; do
  echo "$each"
  "try_$each"
done
