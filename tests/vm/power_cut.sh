#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# power_cut.sh FROM_RPMA: what a client has flushed into a file is on the disk when the power goes.
#
# The disk is an image; a copy of it is what a machine finds that has lost its power at that moment, with all that was in
# its memory.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
program=$1
address=127.0.0.1:7471
work=$(mktemp -d)
modprobe -a loop ext4
trap 'umount -q "$work"/disk* || true' EXIT

# mount_disk IMAGE PLACE
mount_disk() {
  mkdir "$2"
  mount -o loop "$1" "$2"
}

# serve FILE
serve() {
  : >"$work/said"
  "$program" serve "$1" "$address" >>"$work/said" &
  server=$!
  until_true "the server does not listen" grep -q listening "$work/said"
}

kill_server() {
  kill -KILL "$server"
  wait "$server" 2>/dev/null || true
}

# fail WORDS
fail() {
  echo "$1" >&2
  exit 1
}

truncate -s 64M "$work/image"
mke2fs -q -t ext4 "$work/image"
mount_disk "$work/image" "$work/disk"
serve "$work/disk/log"
"$program" append "$address" first
printf 'nobody has flushed this' >"$work/disk/log2"
cp "$work/image" "$work/after_first"
"$program" append "$address" second
cp "$work/image" "$work/after_second"
kill_server
grep -q 'nobody has flushed this' "$work/disk/log2"
! grep -aq 'nobody has flushed this' "$work/after_first" || fail "the copy has what nobody has flushed: it proves nothing"

# found_after COPY TEXT
found_after() {
  mount_disk "$work/$1" "$work/disk_$1"
  serve "$work/disk_$1/log"
  local text
  text=$("$program" show "$address")
  [[ $text == "$2" ]] || fail "$1 there is '$text', not '$2'"
  kill_server
}
found_after after_first first
found_after after_second firstsecond
echo "what was flushed was there"
