#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rxe.sh VERBS_TESTS CONFORMANCE_TESTS COPY INFO: what every test run tries on Soft-RoCE, in one guest, because the guest takes
# longer to start than most of this takes. Each GoogleTest program leaves a report of its own in the folder of this test.
# What a build has not is `none`.
set -uo pipefail
here=$(dirname "$0") verbs_tests=$1 conformance_tests=$2 copy=$3 info=$4
reports=${GTEST_OUTPUT-}
failed=()

# try NAME COMMAND...
try() {
  echo "== $1"
  GTEST_OUTPUT=${reports:+${reports%.xml}/$1.xml} "${@:2}" || failed+=("$1")
}

try ping "$here/smoke.sh"
[[ $verbs_tests == none ]] || try verbs_memory "$verbs_tests" '--gtest_filter=verbs_memory.*:verbs_pitfalls.*'
[[ $verbs_tests == none ]] || try conformance "$conformance_tests" 10.77.0.1 --device verbs:rxe0 \
  '--gtest_filter=*messages*:*one_sided*:*closing*:*registrations*-*larger_than_a*:*large_messages*:*both_sides_write_and_read_at_once*:*equal_shares*'
[[ $verbs_tests == none || $copy == none ]] || try copy "$here/copy.sh" "$copy" 2
[[ $verbs_tests == none || $info == none ]] || try info "$here/info.sh" "$info" well

((${#failed[@]} == 0)) && exit
printf 'failed: %s\n' "${failed[@]}"
exit 1
