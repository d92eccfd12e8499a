#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# left_out.sh SOURCE_DIR COMPILER [TRANSPORT]: builds and installs weft without that transport, and runs a program that
# asks for it. Without one: CMake refuses to build weft without any.
set -euo pipefail
source=$1 compiler=$2 transport=${3-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

configure() {
  cmake -G Ninja -S "$source" -B "$scratch/build" -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_INSTALL_PREFIX="$scratch/prefix" -DWEFT_BUILD_TESTS=OFF \
    -DWEFT_BUILD_EXAMPLES=OFF -DWEFT_UNITY=ON -DWEFT_PRECOMPILED_HEADERS=all "$@"
}

if [[ -z $transport ]]; then
  ! configure -DWEFT_WITH_IWARP=OFF -DWEFT_WITH_VERBS=OFF >"$scratch/said" 2>&1
  grep -F 'weft needs a transport' "$scratch/said"
  exit
fi

configure "-DWEFT_WITH_${transport^^}=OFF" | grep -F "WEFT_WITH_${transport^^} is off"
cmake --build "$scratch/build" --target install >"$scratch/built" || { tail -n 40 "$scratch/built"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$(find "$scratch/prefix" -name weft.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # the flags are words
"$compiler" -std=c++20 "$(dirname "$(readlink -f "$0")")/left_out.cpp" -o "$scratch/left_out" \
  $(pkg-config --cflags --libs weft)
"$scratch/left_out" "$transport" | tee "$scratch/said"
grep -F "this build has no $transport (the CMake option WEFT_WITH_${transport^^})" "$scratch/said"
if [[ $transport == iwarp ]]; then (! ldd "$scratch/left_out" | grep libisal); fi
