#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What chroot.sh has run in a fresh Debian: installs weft's packages, builds programs with them, runs these, and removes
# the packages.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
cd /weft
server=
trap '[[ -z $server ]] || kill "$server"' EXIT

install() { apt-get install -y --no-install-recommends "$@" >/weft/log 2>&1 || { cat /weft/log; return 1; }; }
fail() { echo "in the fresh Debian: $*" >&2; exit 1; }

# echo_over PROGRAM ADDRESS SAID: what is said to a server comes back.
echo_over() {
  local told
  coproc "$1" serve "$2"
  server=$COPROC_PID
  read -r told <&"${COPROC[0]}"
  [[ $("$1" say "${told#listening on }" "$3") == "$3" ]] || fail "$1 does not echo over $2"
  kill "$server"
  wait "$server" || true
  server=
}

# The programs alone bring the library, and nothing to compile with.
install ./packages/libweft0_*.deb ./packages/weft-tools_*.deb
(! dpkg -s libweft-dev >/dev/null 2>&1) || fail "weft-tools brings libweft-dev"
weft-perf --help >/dev/null
ldd /usr/bin/weft-perf | grep 'libweft\.so\.0' >/dev/null || fail "weft-perf does not use the shared library"
weft-perf serve 127.0.0.1:7471 --quiet &
server=$!
tries=0
until weft-perf run 127.0.0.1:7471 --operations write --sizes 4K --iterations 1000 --measure latency; do
  ((++tries < 100)) || fail "weft-perf does not reach its server"
done
kill "$server"
wait "$server" || true
server=

install g++ cmake ninja-build pkg-config ./packages/libweft-dev_*.deb ./packages/weft-doc_*.deb
weft-check-coroutines outside
# The flags are words.
# shellcheck disable=SC2046
{
  g++ -std=c++20 -O1 echo.cpp -o echo $(pkg-config --cflags --libs weft)
  g++ -std=c++20 -O1 echo.cpp -o echo_static $(pkg-config --cflags --libs weft-static)
}
ldd echo | grep 'libweft\.so\.0' >/dev/null || fail "pkg-config weft does not link the shared library"
(! ldd echo_static | grep libweft) || fail "pkg-config weft-static links the shared library"
for program in ./echo ./echo_static; do
  echo_over "$program" 127.0.0.1:0 'over shared memory or iWARP'
done

# As a user of CMake who says nothing of the kind, and one who wants it static.
printf '%s\n' 'cmake_minimum_required(VERSION 3.25)' 'project(echo CXX)' 'find_package(weft 0.1 REQUIRED)' \
  'add_executable(echo echo.cpp)' 'target_link_libraries(echo PRIVATE weft::weft)' >CMakeLists.txt
cmake -G Ninja -S . -B build >/dev/null
cmake --build build
ldd build/echo | grep 'libweft\.so\.0' >/dev/null || fail "find_package(weft) does not take the shared library"
echo_over build/echo 127.0.0.1:0 'of a program by CMake'
cmake -G Ninja -S outside -B built_static -DKIND=static >/dev/null
cmake --build built_static
(! ldd built_static/outside | grep libweft) || fail "COMPONENTS static takes the shared library"
built_static/outside
cmake -G Ninja -S outside -B built_shared -DKIND=shared >/dev/null
cmake --build built_shared
built_shared/across "$PWD/built_shared/libplugin.so"
[[ -e /usr/share/doc/weft/README.md ]] || fail "weft-doc has no README.md"

dpkg --purge weft-doc weft-tools libweft-dev libweft0 >/dev/null
left=$(find / -xdev -name '*weft*' -not -path '/weft*' -not -path '/proc/*')
[[ -z $left ]] || fail "purging leaves: $left"
echo "weft's packages work in a fresh Debian $(cat /etc/debian_version)"
