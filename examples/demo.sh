#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh BUILD_DIR: copies a large file to another process over shared memory, iWARP and plain TCP, and compares them.
#
# One copy over each does not count. Then each has its turn in every round, in an order that changes, so that whatever
# else the machine does falls on all of them, and the median counts.
set -euo pipefail

programs=$(cd "$1/examples" && pwd)
transports=(shm iwarp tcp)
declare -A named=([shm]="weft, shared memory" [iwarp]="weft, iWARP over TCP" [tcp]="plain TCP")
orders=("shm iwarp tcp" "tcp shm iwarp" "iwarp tcp shm" "tcp iwarp shm" "shm tcp iwarp")
ticks_per_second=$(getconf CLK_TCK)

work=$(mktemp -d "$programs/demo.XXXXXX")
memory=  # a directory in it, if there is room
servers=()
clean_up() {
  ((${#servers[@]})) && kill "${servers[@]}" 2>/dev/null
  rm -rf "$work" ${memory:+"$memory"}
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# A file of the machine's own, so that it is nobody's idea of a good case; else an archive of some.
find_file() {
  local found
  found=$(find /usr /opt /var -xdev -type f -size +200M -size -600M -readable ! -name '.*' -print -quit 2>/dev/null || true)
  if [[ -z $found ]]; then
    found=$work/archive.tar
    { tar -cf - /usr 2>/dev/null || true; } | head -c 400M >"$found"
  fi
  printf '%s' "$found"
}

# Where the copies go: into memory, else a disk's moods are all that one sees.
find_place() {
  local free_kib
  free_kib=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1 || true)
  if [[ -w /dev/shm && ${free_kib:-0} -gt $(((2 * bytes >> 10) + (256 << 10))) ]]; then
    memory=$(mktemp -d /dev/shm/weft-demo.XXXXXX)
  fi
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

declare -A server address
# start TRANSPORT: its server, and waits until it listens.
start() {
  local log=$work/$1.log
  mkdir "$place/$1"
  if [[ $1 == tcp ]]; then
    "$programs/tcp_copy" serve "$place/tcp" >"$log" &
  else
    "$programs/copy" serve "$place/$1" --device "$1" --listen 127.0.0.1:0 >"$log" &
  fi
  server[$1]=$!
  servers+=($!)
  wait_for "$log"
  if [[ $1 == tcp ]]; then
    address[tcp]=$(head -n 1 "$log")
  else
    address[$1]=$(sed -n '1s/.* on \([^ ]*\) over .*/\1/p' "$log")
  fi
}

# client TRANSPORT VERB NAME [OPTION...]
client() {
  if [[ $1 == tcp ]]; then
    "$programs/tcp_copy" "$2" "$3" "${address[tcp]}"
  else
    "$programs/copy" "$2" "$3" "${address[$1]}" --device "$1" "${@:4}"
  fi
}

# server_ticks TRANSPORT: the processor time of its server so far, user and system.
server_ticks() {
  local line
  line=$(<"/proc/${server[$1]}/stat")
  read -ra line <<<"${line##*) }"
  printf '%s' "$((line[11] + line[12]))"
}

same() {
  cmp "$file" "$1" && rm "$1"
}

# warm_up TRANSPORT: to the server and back.
warm_up() {
  client "$1" put "$file" >"$work/said"
  (cd "$place/back" && client "$1" get "$name" >"$work/said")
  same "$place/back/$name"
  same "$place/$1/$name"
}

# measure TRANSPORT: adds a line to its results, the seconds that a copy took and those of the processors.
measure() {
  local before after TIMEFORMAT='%R %U %S'
  before=$(server_ticks "$1")
  { time client "$1" put "$file" >"$work/said"; } 2>"$work/time"
  after=$(server_ticks "$1")
  awk -v server="$(((after - before) * 1000 / ticks_per_second))" '{ print $1, $2 + $3 + server / 1000 }' "$work/time" \
    >>"$work/$1.results"
  same "$place/$1/$name"
}

# column FILE NUMBER: sorted, in a line.
column() { awk -v number="$2" '{ print $number }' "$1" | sort -n | tr '\n' ' '; }

# report TRANSPORT
report() {
  local seconds processor middle=$((${#orders[@]} / 2))
  read -ra seconds <<<"$(column "$work/$1.results" 1)"
  read -ra processor <<<"$(column "$work/$1.results" 2)"
  awk -v name="${named[$1]}" -v mib="$((bytes >> 20))" -v middle="${seconds[middle]}" -v best="${seconds[0]}" \
    -v worst="${seconds[-1]}" -v processor="${processor[middle]}" 'BEGIN {
      printf "%-22s%8.0f MiB/s  (%5.0f to %5.0f)%14.2f s\n", name, mib / middle, mib / worst, mib / best, processor }'
}

file=$(find_file)
name=$(basename "$file")
bytes=$(stat -L -c %s "$file")
find_place
place=${memory:-$work}
mkdir "$place/back"
printf 'The file: %s, %s MiB, copied to another process that stores it; SHA-256 from end to end.\n' "$file" "$((bytes >> 20))"

for transport in "${transports[@]}"; do start "$transport"; done
for transport in "${transports[@]}"; do warm_up "$transport"; done
for order in "${orders[@]}"; do
  for transport in $order; do measure "$transport"; done
done

printf '\n%-22s%14s  %-16s%14s\n' "median of ${#orders[@]}" speed '(of all)' 'processors, both ends'
for transport in "${transports[@]}"; do report "$transport"; done
printf '\nAll %s copies are identical to the file.\n' "$((${#transports[@]} * (${#orders[@]} + 2)))"
