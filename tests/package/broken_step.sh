#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# broken_step.sh SOURCE_DIR: a step of `./dev test` that fails before its last command is a failure, as lintian's is in
# `./dev package --check`.
set -euo pipefail
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

sed 's/^package() {$/trial() { false; true; }\n&/
     s/^  help) usage ;;$/  trial) step trial || true; printf "broken: %s\\n" "${broken_steps[@]}" ;;\n&/' "$1/dev" >"$scratch/dev"
chmod +x "$scratch/dev"
[[ $("$scratch/dev" trial | tail -n 1) == "broken: trial" ]]
