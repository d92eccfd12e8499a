#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# power_cut.sh FROM_RPMA: what a client has flushed into a file is there when its machine has lost its power, with all that
# was in its memory, and has started again. On the host it starts the machine twice, with the same disk.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
source "$here/lib.sh"
program=$1
address=127.0.0.1:7471

# mount_disk: at /disk, written to by nobody but those who ask for it
mount_disk() {
  modprobe -a virtio_blk ext4
  until_true "there is no disk" test -b /dev/vda
  mkdir /disk
  mount /dev/vda /disk
  echo 0 >/proc/sys/vm/dirty_writeback_centisecs
}

serve() {
  "$program" serve /disk/log "$address" >/said &
  until_true "the server does not listen" grep -q listening /said
}

write_until_the_power_fails() {
  mount_disk
  serve
  "$program" append "$address" first
  printf 'nobody has flushed this' >/disk/other
  "$program" append "$address" second
  grep -q 'nobody has flushed this' /disk/other
  "$program" append "$address" third &
  echo kill >/dev/virtio-ports/host
  sleep infinity
}

look() {
  mount_disk
  serve
  local text
  text=$("$program" show "$address")
  [[ $text == firstsecond || $text == firstsecondthird ]] || {
    echo "the file has '$text'" >&2
    return 1
  }
  ! grep -qs 'nobody has flushed this' /disk/other || {
    echo "there is even what nobody has flushed: this proves nothing" >&2
    return 1
  }
  echo "what was flushed was there"
}

case ${2-} in
  '')
    image=$(mktemp)
    trap 'rm "$image"' EXIT
    truncate -s 64M "$image"
    PATH=$PATH:/sbin mke2fs -q -t ext4 "$image"
    for part in write_until_the_power_fails look; do
      "$here/vm.py" --disk "$image" --timeout 300 -- "$0" "$program" "$part"
    done
    ;;
  *) "$2" ;;
esac
