#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvme_sequence.py write|check DISK LOG

write: until SIGTERM, writes numbered blocks around a part of the disk, past the page cache, each durable before the
       next, and appends eight bytes to the log for each that the disk has acknowledged.
check: what the disk holds is, in each place, the last number that was acknowledged there, or the one that was under way
       when the writing ended.
"""
import mmap
import os
import signal
import struct
import sys

BLOCK = 4096
PLACES = 1024


def block_of(number, memory):
    memory[:] = struct.pack("<Q", number) * (BLOCK // 8)


def write(disk, log):
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    memory = mmap.mmap(-1, BLOCK)
    target = os.open(disk, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC)
    with open(log, "wb", buffering=0) as acknowledged:
        number = 1
        while not ended:
            block_of(number, memory)
            if os.pwrite(target, memory, number % PLACES * BLOCK) != BLOCK:
                sys.exit(f"write {number} was cut short")
            acknowledged.write(struct.pack("<Q", number))
            number += 1


def check(disk, log):
    with open(log, "rb") as acknowledged:
        said = acknowledged.read()
    last = struct.unpack("<Q", said[-8:])[0]
    if len(said) != 8 * last:
        sys.exit(f"{len(said)} bytes of log for {last} writes")
    memory = mmap.mmap(-1, BLOCK)
    source = os.open(disk, os.O_RDONLY | os.O_DIRECT)
    for number in range(max(1, last - PLACES + 1), last + 1):
        os.preadv(source, [memory], number % PLACES * BLOCK)
        words = set(struct.unpack(f"<{BLOCK // 8}Q", memory[:]))
        under_way = {last + 1} if (last + 1 - number) % PLACES == 0 else {number}
        if words not in ({number}, under_way):
            sys.exit(f"{sorted(words)[:4]} is where {number} was acknowledged")
    print(f"none of {last} acknowledged writes is lost")


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
