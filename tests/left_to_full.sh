#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# left_to_full.sh BUILD NAME...: of the suites that BUILD tests, exactly these run in the full run only.
set -euo pipefail
export LC_ALL=C
cd "$1"
suites() { ctest -N "$@" | sed -nE 's/^ *Test +#[0-9]+: ([^.]+).*/\1/p' | sort -u; }
diff <(printf '%s\n' "${@:2}") <(comm -13 <(suites) <(suites -C full))
