#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test.sh BUILD_DIR COMPILER: installs a build, then compiles and runs programs that know nothing but the prefix, through
# find_package(weft) and through pkg-config, with libweft.a and with libweft.so.
set -euo pipefail
build=$1 compiler=$2
outside=$(dirname "$(readlink -f "$0")")/outside
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { echo "$*" >&2; exit 1; }

# links_weft PROGRAM shared|static: fails if it does otherwise.
links_weft() {
  local found=static
  if readelf -d "$1" | grep 'NEEDED.*libweft\.so\.0' >/dev/null; then found=shared; fi
  [[ $found == "$2" ]] || fail "$1 links the $found library, not the $2 one"
}

cmake --install "$build" --prefix "$scratch/prefix" >/dev/null
libraries=$(dirname "$(find "$scratch/prefix" -name libweft.a)")
kinds=(static)
usual=static
if [[ -e $libraries/libweft.so ]]; then
  kinds=(static shared)
  usual=shared
fi

# configure BUILD_DIR [OPTION...]
configure() {
  cmake -G Ninja -S "$outside" -B "$scratch/$1" -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_CXX_COMPILER="$compiler" "${@:2}" 2>&1
}

for kind in "${kinds[@]}"; do
  configure "$kind" -DKIND="$kind" | tee "$scratch/configured"
  # GCC 12 is told of, once: that it destroys twice what coroutines make inside braces.
  if "$compiler" --version | head -1 | grep -E '^[cg][+][+] .* 12[.]2[.]' >/dev/null; then
    grep -q 'destroys twice' "$scratch/configured"
  fi
  configure "$kind" | (! grep 'destroys twice')
  cmake --build "$scratch/$kind"
  if [[ $kind == shared ]]; then
    links_weft "$scratch/shared/across" shared
    timeout 300 "$scratch/shared/across" "$scratch/shared/libplugin.so"
  else
    links_weft "$scratch/static/outside" static
    "$scratch/static/outside"
    if [[ -e $scratch/static/outside_asio ]]; then "$scratch/static/outside_asio"; fi
  fi
done
"$scratch/prefix/bin/weft-check-coroutines" "$outside"

# Whatever a program wants to be warned of, it hears nothing of weft's headers.
include=$scratch/prefix/include
(cd "$include" && find weft -name '*.hpp' | grep -v asio | sort | sed 's/.*/#include <&>/') >"$scratch/headers.cpp"
grep -c . "$scratch/headers.cpp"
warnings=(-Wall -Wextra -Wpedantic -Wnon-virtual-dtor -Wold-style-cast -Wsign-conversion -Weffc++ -Werror)
if "$compiler" --version | head -1 | grep -v clang >/dev/null; then warnings+=(-Wuseless-cast); fi
"$compiler" -std=c++20 -fsyntax-only "${warnings[@]}" "-I$include" "$scratch/headers.cpp"

# What is not there, or not possible, is said, in a build directory that knows its compiler.
if [[ $usual == static ]]; then
  (! configure static -DKIND=shared) | grep 'the shared library of weft is not installed'
fi
(! configure static "-DKIND=static;shared") | grep -A1 'links libweft.a or libweft.so'
(! configure static -DKIND=nonesuch) | grep -i 'nonesuch'
PKG_CONFIG_LIBDIR=$scratch configure quiet -DQUIETLY=ON | tee "$scratch/configured"
grep 'it goes on without weft' "$scratch/configured"
(! grep -iE 'not found|warning|error|liburing' "$scratch/configured")

# The flags of pkg-config are words.
# shellcheck disable=SC2046
{
  export PKG_CONFIG_PATH=$libraries/pkgconfig
  "$compiler" -std=c++20 -c "$outside/outside.cpp" -o "$scratch/outside.o" $(pkg-config --cflags weft)
  "$compiler" "$scratch/outside.o" -o "$scratch/outside" "-Wl,-rpath,$libraries" $(pkg-config --libs weft)
  links_weft "$scratch/outside" "$usual"
  "$scratch/outside"
  "$compiler" "$scratch/outside.o" -o "$scratch/outside" $(pkg-config --libs weft-static)
  links_weft "$scratch/outside" static
  "$scratch/outside"
  # For a linker that is told to take archives: all that they need is named.
  "$compiler" "$scratch/outside.o" -o "$scratch/outside" $(pkg-config --static --libs weft | sed 's/ -lweft / -l:libweft.a /')
  links_weft "$scratch/outside" static
  if [[ -e $scratch/static/outside_asio ]]; then
    "$compiler" -std=c++20 "$outside/outside_asio.cpp" -o "$scratch/outside_asio" "-Wl,-rpath,$libraries" \
      $(pkg-config --cflags --libs weft-asio)
    "$scratch/outside_asio"
  fi
}
