# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# guest.sh MODULES DEVICES COMMAND...: in the guest, makes the devices and becomes the command.
set -euo pipefail
modules=$1 devices=$2
shift 2

mkdir -p /lib/modules
mount --bind "$modules" /lib/modules
ip link set lo up
mkdir -p /dev/virtio-ports
for port in /sys/class/virtio-ports/*; do
  ln -sf "/dev/${port##*/}" "/dev/virtio-ports/$(<"$port/name")"
done

here=$(dirname "$0")
if [[ ${WEFT_VM_GUEST-} ]]; then
  mkdir -p /pair
  mount -t 9p -o trans=virtio,version=9p2000.L,cache=none pair /pair
  "$here/devices.sh" "$devices" "$WEFT_VM_GUEST" "$WEFT_VM_CABLES"
  source "$here/lib.sh"
  meet ready
elif [[ $devices != none ]]; then
  "$here/devices.sh" "$devices"
fi
exec "$@"
