#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nvme.sh NVME DEVICE PART...: Linux's own NVMe over Fabrics host (nvme-rdma) at the target of the example nvme, which
# serves on 10.77.0.2 over DEVICE ("verbs:rxe1", "verbs:siw1", "iwarp"). In a guest with two devices.
#
#   blocks      what was written to the disk is read back, and zeroes and holes are where they were asked for
#   verified    fio writes at random places in two sizes at a time, and finds its checksums again (dd, where it is missing)
#   tree        a file system on it takes a tree, is mounted anew, and the tree is the same
#   resized     a file that grows is a disk that grows, while it is in use
#   refused     a subsystem that is not there
#   renewed     the host resets the controller under load, three times, and goes on
#   killed      the target is killed under load and started anew, three times: no acknowledged write is lost
#   readonly    a file that cannot be written is served when that is said: the host sees a disk that it may only read
set -euo pipefail
here=$(dirname "$0")
source "$here/lib.sh"
nvme=$1 device=$2
shift 2

nqn=nqn.2024-01.org.example:disk
host=11111111-2222-3333-4444-555555555555
work=/dev/shm/nvme
disk=/dev/nvme0n1
image=$work/disk.img
mkdir -p "$work"

# start_target [OPTION...]: on a file that outlives the target, with namespaces of memory besides. What the one before
# has said must not count: this one may not have begun when it is looked at.
start_target() {
  rm -f "$work/said"
  "$nvme" --device "$device" serve "$image" --listen 10.77.0.2:4420 --nqn $nqn "$@" >"$work/said" &
  target=$!
  until_true "the target does not serve" grep -qs '^serving' "$work/said"
}

end_target() {
  kill -TERM "$target"
  wait "$target"
  cat "$work/said"
}

# connect [OPTION...]: what nvme(1) does. The kernel's answer tells the number of the controller.
connect() {
  local options="transport=rdma,traddr=10.77.0.2,host_traddr=10.77.0.1,trsvcid=4420,nqn=$nqn"
  options+=",hostnqn=nqn.2014-08.org.nvmexpress:uuid:$host,hostid=$host,reconnect_delay=1,keep_alive_tmo=30,$1"
  exec {fabrics}<>/dev/nvme-fabrics
  printf %s "$options" >&"$fabrics" || return 1
  read -r <&"$fabrics"
  exec {fabrics}>&-
  until_true "there is no disk" test -b "$disk"
}

disconnect() { echo 1 >/sys/class/nvme/nvme0/delete_controller; }

is_live() { [[ $(</sys/class/nvme/nvme0/state) == live ]]; }
is_not_live() { ! is_live; }

# Both ends of the disk, in pieces that come in the capsule and in others; then what takes no data.
blocks() {
  head -c 3M /dev/urandom >"$work/data"
  head -c 256K "$work/data" >"$work/first"
  head -c 128K /dev/zero >"$work/zeroes"
  dd if="$work/data" of=$disk bs=64k oflag=direct status=none
  dd if="$work/first" of=$disk bs=4k seek=8128 oflag=direct status=none
  dd if=$disk bs=256k count=12 iflag=direct status=none | cmp "$work/data"
  dd if=$disk bs=4k count=64 skip=8128 iflag=direct status=none | cmp "$work/first"
  blkdiscard --zeroout --offset 64K --length 128K $disk
  blkdiscard --offset 1M --length 512K $disk
  dd if=$disk bs=64k count=2 skip=1 iflag=direct status=none | cmp "$work/zeroes"
  cmp --bytes 65536 "$work/data" $disk
  cmp --bytes 3145728 "$work/disk.img" $disk
  echo "blocks are as they were written"
}

# Each block has a checksum of itself and of its place. What fio verifies is read past the page cache.
verified() {
  if ! command -v fio >/dev/null; then
    echo "there is no fio: dd writes and cmp reads"
    head -c 16M /dev/urandom >"$work/data"
    dd if="$work/data" of=$disk bs=128k seek=256 oflag=direct status=none
    dd if=$disk bs=128k skip=256 count=128 iflag=direct status=none | cmp - "$work/data"
    return
  fi
  (cd "$work" && fio --filename=$disk --direct=1 --ioengine=libaio --rw=randwrite --verify=crc32c --verify_fatal=1 \
    --group_reporting --name=small --bs=4k --iodepth=16 --offset=32M --size=${WEFT_NVME_VERIFIED:-4M} \
    --name=large --bs=128k --iodepth=4 --offset=64M --size=16M) >"$work/fio" || { cat "$work/fio"; return 1; }
  grep -E '^ +(read|write):|err= *[0-9]' "$work/fio"
}

tree() {
  local from=${WEFT_NVME_TREE:-/lib/modules/$(uname -r)/kernel/fs}
  modprobe ext4
  mkfs.ext4 -q -F $disk
  mkdir -p "$work/mount"
  mount $disk "$work/mount"
  cp -r "$from" "$work/mount/tree"
  umount "$work/mount"
  mount $disk "$work/mount"
  diff -r "$from" "$work/mount/tree"
  echo "$(du -sh "$work/mount/tree" | cut -f1) in $(find "$work/mount/tree" -type f | wc -l) files are the same"
  umount "$work/mount"
  fsck.ext4 -fn $disk >/dev/null 2>&1 || { echo "the file system is damaged" >&2; exit 1; }
}

resized() {
  truncate -s 160M "$work/disk.img"
  kill -HUP "$target"
  until_true "the host does not see the new size" has_bytes $((160 << 20))
  dd if="$work/first" of=$disk bs=64k count=1 seek=2559 oflag=direct status=none
  echo "the disk has grown"
}
has_bytes() { (($(blockdev --getsize64 $disk) == $1)); }

refused() {
  if (nqn+=2 && connect nr_io_queues=1) 2>/dev/null; then
    echo "a subsystem was found that is not there" >&2
    return 1
  fi
  grep "there is no subsystem '${nqn}2'" "$work/said"
}

# Writes to another part of the disk than what is counted, until it is killed.
load() {
  while dd if="$work/data" of=$disk bs=16k count=192 seek=2048 oflag=direct status=none; do :; done
}

# The host disables the controller, waits until it is not ready any more, and connects anew. Where rdma_rxe loses one of
# its commands meanwhile, the kernel says ENETRESET and tries again after reconnect_delay: what counts is that it is back.
renewed() {
  local round
  head -c 3M /dev/urandom >"$work/data"
  load &
  local other=$!
  for round in 1 2 3; do
    echo 1 >/sys/class/nvme/nvme0/reset_controller || echo "the kernel tries again"
    until_true "the host does not come back" is_live
  done
  kill -TERM $other
  wait $other 2>/dev/null || true
  dd if="$work/data" of=$disk bs=16k count=192 seek=2048 oflag=direct status=none
  dd if=$disk bs=16k count=192 skip=2048 iflag=direct status=none | cmp "$work/data"
  (($(grep -c '^controller [0-9]* of .* has ended' "$work/said") >= round))
  echo "the controller was reset $round times"
}

killed() {
  local round before
  head -c 3M /dev/urandom >"$work/data"
  load &
  local other=$!
  python3 "$here/nvme_sequence.py" write $disk "$work/acknowledged" &
  local writer=$!
  for round in 1 2 3; do
    before=$(stat -c %s "$work/acknowledged" 2>/dev/null || echo 0)
    until_true "no write is acknowledged" more_acknowledged_than $((before + 400))
    kill -KILL "$target"
    wait "$target" 2>/dev/null || true
    until_true "the host does not notice" is_not_live
    start_target
    until_true "the host does not reconnect" is_live
  done
  before=$(stat -c %s "$work/acknowledged")
  until_true "nothing is written after the last reconnection" more_acknowledged_than $((before + 400))
  kill -TERM $writer
  wait $writer
  kill -TERM $other
  wait $other 2>/dev/null || true
  python3 "$here/nvme_sequence.py" check $disk "$work/acknowledged"
}
more_acknowledged_than() { (($(stat -c %s "$work/acknowledged" 2>/dev/null || echo 0) > $1)); }

# The file is on a file system that is mounted read-only. The namespace beside it may be written.
readonly() {
  disconnect
  until_true "the disk has not gone" test ! -b $disk
  end_target
  mkdir -p /dev/shm/frozen
  mount --bind "$work" /dev/shm/frozen
  mount -o remount,ro,bind /dev/shm/frozen
  image=/dev/shm/frozen/disk.img
  if "$nvme" --device "$device" serve "$image" --listen 10.77.0.2:4420 >"$work/said" 2>&1; then
    echo "a file that cannot be written is served as if it could" >&2
    return 1
  fi
  grep "open $image.*Read-only file system" "$work/said"
  start_target --read-only --memory 1M
  grep "^namespace 1: $image, .* bytes, read-only$" "$work/said"
  connect nr_io_queues=2,queue_size=32
  (($(blockdev --getro $disk) == 1)) || { echo "the host does not see that the disk is read-only" >&2; return 1; }
  if dd if=/dev/zero of=$disk bs=64k count=1 oflag=direct 2>"$work/refused"; then
    echo "a disk that is read-only was written" >&2
    return 1
  fi
  cat "$work/refused"
  dd if=$disk bs=64k count=32 iflag=direct status=none | cmp --bytes 2097152 - "$work/disk.img"
  until_true "there is no second disk" test -b ${disk%1}2
  dd if="$work/disk.img" of=${disk%1}2 bs=64k count=4 oflag=direct status=none
  cmp --bytes 262144 "$work/disk.img" ${disk%1}2
  echo "the disk is read-only"
}

# rdma_rxe may lose a command (docs/verbs.md), which the host sends again after that time.
modprobe nvme-core io_timeout=10
modprobe nvme-rdma
truncate -s ${WEFT_NVME_SIZE:-96M} "$work/disk.img"
start_target --memory 1M
connect nr_io_queues=2,queue_size=32
for part in "$@"; do
  echo "== $part"
  "$part"
done
disconnect
end_target
if dmesg | grep -E 'BUG:|Oops|I/O error|Bogus'; then
  echo "that is in the kernel's log" >&2
  exit 1
fi
