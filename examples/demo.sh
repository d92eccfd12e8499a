#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh BUILD_DIR: copies a large file to another process and back, over weft and over plain TCP, and compares.
set -euo pipefail

programs=$(cd "$1/examples" && pwd)
work=$(mktemp -d "$programs/demo.XXXXXX")
servers=()
clean_up() {
  ((${#servers[@]})) && kill "${servers[@]}" 2>/dev/null
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# A file of the machine's own, so that it is nobody's idea of a good case; else an archive of some.
find_file() {
  local found
  found=$(find /usr /opt /var -xdev -type f -size +200M -size -1500M -readable ! -name '.*' -print -quit 2>/dev/null || true)
  if [[ -z $found ]]; then
    found=$work/archive.tar
    { tar -cf - /usr 2>/dev/null || true; } | head -c 400M >"$found"
  fi
  printf '%s' "$found"
}

# wait_for FILE: until there is a whole line in it.
wait_for() {
  local attempt
  for ((attempt = 0; attempt < 500; attempt++)); do
    [[ -e $1 && $(wc -l <"$1") -gt 0 ]] && return
    sleep 0.02
  done
  echo "demo: the server did not start" >&2
  exit 1
}

same() {
  cmp "$file" "$1" && rm "$1"
}

file=$(find_file)
name=$(basename "$file")
mkdir "$work"/{weft,tcp,back}
# One copy that does not count: from here on the file is in memory, and so is the room for another, for both.
cp "$file" "$work/warm" && rm "$work/warm"
printf 'The file: %s, %s MiB\n' "$file" "$(($(stat -L -c %s "$file") >> 20))"

"$programs/copy" serve "$work/weft" --listen 127.0.0.1:0 >"$work/weft.log" &
servers+=($!)
"$programs/tcp_copy" serve "$work/tcp" >"$work/tcp.log" &
servers+=($!)
wait_for "$work/weft.log"
wait_for "$work/tcp.log"
address=$(sed -n '1s/.* on \([^ ]*\) over .*/\1/p' "$work/weft.log")
transport=$(sed -n '1s/.* over //p' "$work/weft.log")
port=$(head -n 1 "$work/tcp.log")

printf '\nweft (%s), to the server and back:\n' "$transport"
"$programs/copy" put "$file" "$address"
"$programs/copy" get "$name" "$address" --output "$work/back/$name"
same "$work/back/$name"
same "$work/weft/$name"

printf '\nplain TCP, to the server and back:\n'
"$programs/tcp_copy" put "$file" "$port"
(cd "$work/back" && "$programs/tcp_copy" get "$name" "$port")
same "$work/back/$name"
same "$work/tcp/$name"

printf '\nAll four copies are identical to the file.\n'
