#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# chroot.sh PACKAGES_DIR: installs the packages that lie there in a fresh Debian 12, made for it, and has chroot_inside.sh
# use them there. Takes root, or a kernel that lets users have namespaces, and the sources that apt has here.
set -euo pipefail
unset CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER  # a compiler cache of this machine is not there
packages=$1
here=$(dirname "$(readlink -f "$0")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The packages are Debian 12's own, from wherever this machine gets them.
# shellcheck disable=SC2016 # apt's variables
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
  sort -u >"$scratch/sources.list"
[[ -s $scratch/sources.list ]] || { echo "apt has no sources of Debian here: run apt-get update" >&2; exit 1; }
options=()
while read -r proxy; do options+=(--aptopt="$proxy"); done < <(apt-config dump Acquire::http::Proxy Acquire::https::Proxy)

mkdir "$scratch/weft" "$scratch/weft/packages"
cp "$packages"/*.deb "$scratch/weft/packages"
cp -r "$here/outside" "$here/chroot_inside.sh" "$here/../../examples/echo/echo.cpp" "$scratch/weft"
chmod -R a+rX "$scratch"
mmdebstrap --variant=apt --format=null --include=ca-certificates "${options[@]}" \
  --customize-hook="copy-in $scratch/weft /" --customize-hook='chroot "$1" bash /weft/chroot_inside.sh' \
  bookworm /dev/null "$scratch/sources.list"
