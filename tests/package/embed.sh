#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# embed.sh SOURCE_DIR COMPILER HOW static|shared: builds, installs and runs a program whose project builds weft as a part
# of itself, HOW being add_subdirectory or FetchContent. It compiles the library once more.
set -euo pipefail
source=$1 compiler=$2 how=$3 kind=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

shared=OFF
if [[ $kind == shared ]]; then shared=ON; fi
cmake -G Ninja -S "$source/tests/package/embedding" -B "$scratch/build" -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DWEFT_PRECOMPILED_HEADERS=all -DHOW="$how" \
  -DWEFT_SOURCE="$source" -DBUILD_SHARED_LIBS=$shared
# Neither tests nor examples come with it, nor its archive, which only an installation has a use for.
cmake --build "$scratch/build" --target help >"$scratch/targets"
(! grep -E 'weft-perf|conformance_tests|weft_archive' "$scratch/targets")
cmake --build "$scratch/build"
"$scratch/build/embedding"
cmake --install "$scratch/build" --prefix "$scratch/prefix"
found=$(cd "$scratch/prefix" && find . -type f)
[[ $found == ./bin/embedding ]] || { echo "installed besides: $found" >&2; exit 1; }
readelf -d "$scratch/build/embedding" >"$scratch/dynamic"
if [[ $kind == shared ]]; then
  grep -q 'NEEDED.*libweft\.so\.0' "$scratch/dynamic"
else
  (! grep 'NEEDED.*libweft' "$scratch/dynamic")
fi
