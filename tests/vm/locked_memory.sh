#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# locked_memory.sh FOLDER: an ordinary user, who may lock as much memory as most systems allow, runs the examples in
# FOLDER over rxe. In a guest with two devices.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
folder=$1
work=$(mktemp -d)
address=10.77.0.1:7471

# limited KIB COMMAND...: becomes the command, of a user who may lock so much.
limited() {
  ulimit -l "$1"
  exec setpriv --reuid 1000 --regid 1000 --clear-groups -- "${@:2}"
}

no_rdma_listener() { ! rdma_listener; }

# serve KIB EXAMPLE ARGUMENTS...
serve() {
  limited "$1" "$folder/$2" "${@:3}" >"$work/served.log" 2>&1 &
  server=$!
  until_true "$2 does not listen" rdma_listener
}

# ask KIB EXAMPLE ARGUMENTS...: what it says is kept in "$work/said" and shown where it fails.
ask() {
  if ! (limited "$1" timeout 60 "$folder/$2" "${@:3}" >"$work/said" 2>"$work/warned"); then
    echo "$2 ${*:3} of a user with ulimit -l $1:" >&2
    cat "$work/said" "$work/warned" "$work/served.log" >&2
    return 1
  fi
}

end_server() {
  kill -TERM "$server"
  wait "$server" || true
  until_true "the server still listens" no_rdma_listener
}

# says TEXT FILE
says() { grep -qF -- "$1" "$2" || { echo "'$1' is not in:" && cat "$2" && return 1; } >&2; }

try_echo() {
  serve "$1" echo serve "$address"
  for each in 1 2 3; do
    ask "$1" echo say "$address" hello "$each"
    says "hello $each" "$work/said"
  done
  end_server
}

try_http() {
  serve "$1" http serve "$address"
  for each in 1 2 3; do
    ask "$1" http get "$address" / /large
    says "It works." "$work/said"
  done
  end_server
}

try_kv() {
  serve "$1" kv --device verbs:rxe0 serve --listen "$address"
  for each in 1 2 3; do
    ask "$1" kv --device verbs:rxe0 set "$address" "key$each" "value$each"
    ask "$1" kv --device verbs:rxe0 get "$address" "key$each"
    says "value$each" "$work/said"
  done
  end_server
}

try_copy() {
  mkdir "$work/files"
  head -c 5M /dev/urandom >"$work/file"
  chmod 777 "$work" "$work/files"
  serve "$1" copy serve "$work/files" --listen "$address" --device verbs:rxe0
  ask "$1" copy put "$work/file" "$address" --device verbs:rxe0
  ask "$1" copy get file "$address" --device verbs:rxe0 --output "$work/back"
  cmp "$work/file" "$work/back"
  end_server
}

# Sizes that nobody has asked for are left out where there is too little memory for them; others are refused.
try_perf() {
  local small=(--device verbs:rxe0 --iterations 10 --warm-up 2)
  serve "$1" weft-perf serve "$address" --device verbs:rxe0
  ask "$1" weft-perf run "$address" "${small[@]}" --operations send --measure latency
  says "left out: send latency of 1M: this takes --memory" "$work/warned"
  ask "$1" weft-perf run "$address" "${small[@]}" --connections 4 --depth 16 --sizes 4K
  if (ask "$1" weft-perf run "$address" "${small[@]}" --sizes 1M) 2>"$work/refused"; then return 1; fi
  says "the locked-memory limit is $(($1 * 1024)) bytes (ulimit -l)" "$work/refused"
  end_server
}

chmod 666 /dev/infiniband/*
try_echo 1024
for each in echo http kv copy perf; do
  echo "$each"
  "try_$each" 8192
done
