#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# words.sh COMPILER INCLUDE_DIR: mistakes.cpp.txt does not compile, and each of its mistakes is said in weft's words.
set -euo pipefail
said=$(! "$1" -std=c++20 -fsyntax-only -Wall -I "$2" -x c++ "$(dirname "$0")/mistakes.cpp.txt" 2>&1)
count() { grep -cF "$1" <<<"$said" || true; }
awaited=$(count 'co_await it')
named=$(count 'name this closure first')
if [[ $awaited -lt 3 || $named -lt 3 ]]; then
  printf '%s\n' "$said" "'co_await it' $awaited times, 'name this closure first' $named times" >&2
  exit 1
fi
