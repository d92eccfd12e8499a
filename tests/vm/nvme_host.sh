#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nvme_host.sh NVME DEVICE...: weft's host, on each of the devices, against the kernel's NVMe over Fabrics target in the
# same guest, which has a RAM disk behind it. What was written over the fabric is on that disk, to the byte.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
nvme=$1
shift
work=$(mktemp -d)
target=10.77.0.2:4420
nqn=nqn.2024-01.org.example:kernel

# The target: subsystem, namespace and port are directories of configfs.
raise_target() {
  modprobe nvmet-rdma
  modprobe brd rd_nr=1 rd_size=65536
  mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
  local at=/sys/kernel/config/nvmet
  mkdir "$at/subsystems/$nqn"
  echo 1 >"$at/subsystems/$nqn/attr_allow_any_host"
  mkdir "$at/subsystems/$nqn/namespaces/1"
  echo -n /dev/ram0 >"$at/subsystems/$nqn/namespaces/1/device_path"
  echo 1 >"$at/subsystems/$nqn/namespaces/1/enable"
  mkdir "$at/ports/1"
  echo rdma >"$at/ports/1/addr_trtype"
  echo ipv4 >"$at/ports/1/addr_adrfam"
  echo "${target%:*}" >"$at/ports/1/addr_traddr"
  echo "${target#*:}" >"$at/ports/1/addr_trsvcid"
  ln -s "$at/subsystems/$nqn" "$at/ports/1/subsystems/"
}

# on COMMAND DEVICE ARGUMENT...
on() { "$nvme" --device "$2" "$1" "$target" "${@:3}"; }

# refuses WORDS COMMAND...: it fails, and says so.
refuses() {
  if "${@:2}" >"$work/said" 2>&1; then
    echo "this should have failed: ${*:2}" >&2
    return 1
  fi
  grep -q -- "$1" "$work/said" || {
    cat "$work/said" >&2
    return 1
  }
}

look() {
  on ls "$1" >"$work/said"
  cat "$work/said"
  grep -q "^$nqn  nvm  rdma  $target$" "$work/said"
  on ls "$1" "$nqn" >"$work/said"
  cat "$work/said"
  grep -q "^model 'Linux'" "$work/said"
  grep -q "^namespace 1: 64 MiB, 131072 blocks of 512 bytes" "$work/said"
}

# copy DEVICE SEEK_MIB OPTION...: in and out, and the disk behind has it.
copy() {
  head -c 2M /dev/urandom >"$work/in"
  on write "$1" "$nqn" "$work/in" --offset "$2M" --verify "${@:3}"
  on read "$1" "$nqn" "$work/out" --offset "$2M" --length 2M "${@:3}"
  cmp "$work/in" "$work/out"
  dd if=/dev/ram0 of="$work/behind" bs=1M skip="$2" count=2 iflag=direct status=none
  cmp "$work/in" "$work/behind"
  on read "$1" "$nqn" - --offset "$2M" --length 64K "${@:3}" | cmp -n 65536 - "$work/in"
}

# measure DEVICE OPTION...: reads find what was written last.
measure() { on bench "$1" "$nqn" --write 50 --verify --operations 2000 --seconds 60 --span 8M "${@:2}"; }

misuse() {
  refuses "has no subsystem" on ls "$1" nqn.2024-01.org.example:other
  refuses "has no namespace 7: there are 1" on read "$1" "$nqn" "$work/out" --namespace 7
  refuses "is beyond the end" on read "$1" "$nqn" "$work/out" --offset 1G
  refuses "blocks of namespace 1 have 512" on read "$1" "$nqn" "$work/out" --offset 100
}

has_windows() { [[ $1 != verbs:siw* ]]; }

raise_target
offset=0
for device in "$@"; do
  echo "== $device"
  look "$device"
  copy "$device" $((offset += 2)) --queues 2 --depth 8
  measure "$device" --queues 2 --depth 16
  measure "$device" --no-in-capsule --size 16K
  if has_windows "$device"; then
    copy "$device" $((offset += 2)) --windows
    measure "$device" --windows | tee "$work/said"
    grep -q " 0 keys revoked" "$work/said" && { echo "the kernel has revoked no keys" >&2; exit 1; }
  else
    refuses "no memory windows" on read "$device" "$nqn" "$work/out" --length 4K --windows
  fi
  misuse "$device"
done
if dmesg | grep -E 'nvmet.*(error|fail)|BUG|WARNING:|Call Trace'; then exit 1; fi
