#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pulled_cables.sh WEFT_PERF COPY RAILS CASE...: in two guests with two cables, weft-perf and copy over two rails while
# cables are pulled and plugged in again. RAILS is the device by name, such as verbs:rxe0+verbs:rxe1.
#
#   reads    large reads, one cable pulled at a time, at either end by turns
#   writes   the same with writes
#   copy     a file there and back, likewise; all three are the same to the byte
#   both     both cables at once, with --resume-within
#   removed  the device of the second rail is deleted under the server, and stays away
#
# No case may report an error, nor may a server end. Guest 2 does the work, and leaves /out/pulled_cables.RAILS.CASE.tsv:
# what each cable has carried over time, and when which was pulled and plugged in.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
weft_perf=$1 copy=$2 rails=$3
shift 3
at=10.78.0.1:7471+10.79.0.1:7471
copy_at=10.78.0.1:7472+10.79.0.1:7472
work=$(mktemp -d)

# pause SECONDS: without a process, each of which takes as long as everything else here.
mkfifo "$work/nothing"
exec {nothing}<>"$work/nothing"
pause() { read -rt "$1" -u "$nothing" || true; }

# await WHAT COMMAND...: as until_true, without processes.
await() {
  local end=$((SECONDS + 60))
  until "${@:2}"; do
    if ((SECONDS > end)); then
      echo "after 60 s, $1" >&2
      return 1
    fi
    pause 0.02
  done
}

# ---- guest 1: the servers ----

serve() {
  mkdir "$work/served"
  "$weft_perf" serve $at --device "$rails" --poll sleep --resume-within 30 --quiet &
  local perf_server=$!
  "$copy" serve "$work/served" --listen $copy_at --device "$rails" &
  local copy_server=$!
  until_true "nobody listens" listening
  meet listening
  local name
  for name in "$@"; do
    if [[ $name == removed ]]; then
      told remove
      rdma link delete rxe1 &  # it waits until the servers have closed the device
    fi
    told "done.$name"
    kill -0 "$perf_server" "$copy_server"
  done
  [[ ! -e /pair/file ]] || cmp /pair/file "$work/served/file"
  kill -TERM "$perf_server" "$copy_server"
  wait "$perf_server"
  wait "$copy_server"
  wait
}

# told WHAT: waits for the other guest, which may have failed.
told() {
  until [[ -e /pair/$1 ]]; do
    [[ ! -e /pair/failed ]] || exit 1
    pause 0.1
  done
}

# All of their addresses.
listening() {
  local count
  count=$({ rdma resource show cm_id; ss -Hltn; } 2>/dev/null | grep -Ec 'LISTEN.*:747[12]\b')
  ((count == 4))
}

# ---- guest 2 ----

# carried CABLE: the bytes, both ways.
carried() {
  local folder=/sys/class/net/eth$1/statistics
  sum=$(($(<"$folder/rx_bytes") + $(<"$folder/tx_bytes")))
}

# carries CABLE SINCE: whether it has carried a few slices since then.
carries() {
  carried "$1"
  ((sum > $2 + (1 << 19)))
}

ask_host() { echo "$1" >/dev/virtio-ports/host; }
mark() { printf '%s\t%s\n' "$EPOCHREALTIME" "$1" >>"$work/marks"; }

# Whether the work is over, after which nothing moves any more.
over() { [[ -e $work/over ]]; }
moves_or_over() { over || carries "$@"; }

# pull CABLE END: until the other cable carries everything; then until this one takes part again.
pull() {
  local other=$((1 - $1)) sum
  ask_host "$2cable$1 down"
  mark "cable $1 pulled"
  carried "$other"
  await "cable $other carries nothing" moves_or_over "$other" "$sum"
  pause 0.5
  ask_host "$2cable$1 up"
  mark "cable $1 plugged in"
  carried "$1"
  await "cable $1 has not come back" moves_or_over "$1" "$sum"
  pause 0.5
}

# Until the work has begun.
await_traffic() {
  local sum
  carried 0
  await "nothing goes on" moves_or_over 0 "$sum"
  pause 0.5
}

one_at_a_time() {
  local end cable
  await_traffic
  while true; do
    for end in "" "far "; do
      for cable in 0 1; do
        over && return
        pull $cable "$end"
      done
    done
  done
}

both_at_once() {
  local sum
  await_traffic
  until over; do
    ask_host "cable down"
    mark "both pulled"
    pause 1
    ask_host "cable up"
    mark "both plugged in"
    carried 0
    await "no cable has come back" moves_or_over 0 "$sum"
    pause 1
  done
}

removed() {
  await_traffic
  mark "device 1 removed"
  touch /pair/remove
}

sample() {
  local sum first
  while true; do
    carried 0
    first=$sum
    carried 1
    printf '%s\t%s\t%s\n' "$EPOCHREALTIME" "$first" "$sum" >>"$work/samples"
    pause 0.1
  done
}

# under TROUBLE COMMAND...: a command while there is that trouble.
under() {
  rm -f "$work"/{over,marks,samples}
  : >"$work/marks"
  sample &
  local sampler=$!
  "$1" &
  local trouble=$! status=0
  "${@:2}" || status=$?
  touch "$work/over"
  wait "$trouble" || status=$?
  kill "$sampler"
  wait "$sampler" || true
  return "$status"
}

# The longest pause is said by the programs themselves: here for the picture of docs/rails.md.
perf_run() {
  "$weft_perf" run $at --device "$rails" --poll sleep --measure bandwidth --depth 8 --warm-up 16 --seconds "$seconds" \
    --json "$@" >"$work/said"
  cat "$work/said"
  grep -q '"longest_pause_ns"' "$work/said"
}

# What was said, in seconds.
longest_pause() { sed -n 's/.*"longest_pause_ns": *\([0-9.]*\).*/\1e-9/p' "$work/said"; }

copied() {
  head -c "${mib}M" /dev/urandom >"$work/file"
  cp "$work/file" /pair/file
  under one_at_a_time "$copy" put "$work/file" $copy_at --device "$rails"
  under one_at_a_time "$copy" get file $copy_at --device "$rails" --output "$work/back"
  cmp "$work/file" "$work/back"
}

work_on() {
  local name seconds=25 mib=24
  meet listening
  for name in "$@"; do
    echo "== $name over $rails"
    : >"$work/said"
    case $name in
      reads) under one_at_a_time perf_run --operations read --sizes 256K ;;
      writes) under one_at_a_time perf_run --operations write --sizes 256K ;;
      copy) copied ;;
      both) under both_at_once perf_run --operations write --sizes 256K --resume-within 30 ;;
      removed) under removed perf_run --operations write --sizes 256K ;;
    esac
    leave_record "$name"
    touch "/pair/done.$name"
  done
}

leave_record() {
  local begin
  read -r begin _ <"$work/samples"
  {
    printf 'rails\t%s\npause\t%s\n' "$rails" "$(longest_pause)"
    sed 's/^/mark\t/' "$work/marks"
    sed 's/^/carried\t/' "$work/samples"
  } | awk -F'\t' -v OFS='\t' -v begin="$begin" \
    '$1 == "mark" || $1 == "carried" { $2 = sprintf("%.2f", $2 - begin) } { print }' \
    >"/out/pulled_cables.${rails//:/}.$1.tsv"
}

case $WEFT_VM_GUEST in
  1) serve "$@" ;;
  2)
    trap '(($? == 0)) || touch /pair/failed' EXIT
    work_on "$@"
    ;;
esac
