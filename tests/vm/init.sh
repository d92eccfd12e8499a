#!/bin/busybox sh
# shellcheck shell=dash
# SPDX-License-Identifier: Apache-2.0
# The guest's first process: makes / out of the host's files, runs /control/command there and leaves its status.
/bin/busybox --install -s /bin
export PATH=/bin

give_up() {
  echo "init: $*"
  poweroff -f
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do
  insmod "/modules/$module" || give_up "cannot load $module"
done </modules/order

# The host's / is below, read-only; what is written goes to memory, and is gone in the end.
share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2" || give_up "no folder $1"; }
share root /lower cache=loose,ro
mount -t tmpfs -o size=75% tmpfs /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /root || give_up "no overlay"
for kernel_files in proc sys dev; do
  mount --rbind /$kernel_files /root/$kernel_files
done
mkdir -p /root/dev/shm /root/dev/pts /root/control /root/out
mount -t tmpfs tmpfs /root/dev/shm
mount -t devpts devpts /root/dev/pts
mount -t tmpfs tmpfs /root/run
share control /root/control cache=none
share out /root/out cache=none

for port in /sys/class/virtio-ports/*; do
  [ "$(cat "$port/name")" = output ] && output=/dev/${port##*/}
done
ulimit -l unlimited
ulimit -n 65536
chroot /root /bin/bash /control/command </dev/null >"$output" 2>&1
echo $? >/root/control/status
sync
poweroff -f
