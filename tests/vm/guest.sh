# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# guest.sh MODULES DEVICES COMMAND...: in the guest, makes the devices and becomes the command.
set -euo pipefail
modules=$1 devices=$2
shift 2

mkdir -p /lib/modules
mount --bind "$modules" /lib/modules
ip link set lo up
if [[ $devices != none ]]; then
  "$(dirname "$0")/devices.sh" "$devices"
fi
exec "$@"
