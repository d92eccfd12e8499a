#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test.sh BUILD_DIR COMPILER: installs a build, then compiles and runs a program that knows nothing but the prefix, once
# through find_package(weft) and once through pkg-config.
set -euo pipefail
build=$1 compiler=$2
outside=$(dirname "$(readlink -f "$0")")/outside
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch/prefix" >/dev/null

configure=(cmake -G Ninja -S "$outside" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_CXX_COMPILER="$compiler")
"${configure[@]}" 2>&1 | tee "$scratch/configured"
# GCC 12 is told of, once: that it destroys twice what coroutines make inside braces.
if "$compiler" --version | head -1 | grep -Eq '^[cg][+][+] .* 12[.]2[.]'; then
  grep -q 'destroys twice' "$scratch/configured"
fi
"${configure[@]}" 2>&1 | (! grep 'destroys twice')
"$scratch/prefix/bin/weft-check-coroutines" "$outside"
cmake --build "$scratch/build"
"$scratch/build/outside"
if [ -e "$scratch/build/outside_asio" ]; then "$scratch/build/outside_asio"; fi

pc=$(find "$scratch/prefix" -name weft.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # the flags are words
"$compiler" -std=c++20 "$outside/outside.cpp" -o "$scratch/outside" $(pkg-config --cflags --libs weft)
"$scratch/outside"
if [ -e "$scratch/build/outside_asio" ]; then
  # shellcheck disable=SC2046 # the flags are words
  "$compiler" -std=c++20 "$outside/outside_asio.cpp" -o "$scratch/outside_asio" $(pkg-config --cflags --libs weft-asio)
  "$scratch/outside_asio"
fi
