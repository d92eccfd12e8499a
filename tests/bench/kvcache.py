#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvcache.py BUILD_DIR: how fast the blocks of a cache get from one process to another, beside plain TCP and a memcpy.

Each measurement is `kvcache bench`, which moves many blocks to random places, and tells the receiver once at the end:
by a list of writes over iwarp and over shared memory; by writev(2) and readv(2) over plain TCP, sleeping and spinning, of
which the faster one counts; and by a memcpy from one mapping to another. All are taken in turn, several times over, each
with both processes on cores of their own; the median counts. Contents are checked once, outside of what is timed. Where
ucx_perftest is there, it puts as many blocks of that size, always the same one.

Over shared memory the sender maps the receiver's memory (registration_options::direct); without that, both ends copy.

Prints a table, and writes it with all repetitions to BUILD_DIR/bench/kvcache.json.
"""
import json

from net import Machine, available, gigabytes, take_turns, ucx
from rows import Row
from running import done, finish, options_of

BLOCK_BYTES = 65536


def bench(machine, size, *how):
    """The program puts its two processes on cores of their own."""
    run = done(machine.build / "examples/kvcache", "bench", "--json", "--blocks", size.blocks,
               "--block-bytes", BLOCK_BYTES, "--rounds", size.rounds, *how)
    return {"gb_per_second": json.loads(run.stdout)["gb_per_second"]}


def ucx_puts(machine, size, transports):
    return {"gb_per_second": gigabytes(ucx(machine, "ucp_put_bw", BLOCK_BYTES, size.blocks * size.rounds, transports),
                                       BLOCK_BYTES)}


def measurements(size):
    return {
        "weft_iwarp": ("weft list over iwarp", lambda m: bench(m, size, "--device", "iwarp")),
        "tcp_sleep": ("writev over TCP", lambda m: bench(m, size, "--tcp")),
        "tcp_spin": ("writev over TCP, spinning", lambda m: bench(m, size, "--tcp", "--spin")),
        "ucx_tcp": ("ucx_perftest ucp_put_bw, tcp", lambda m: ucx_puts(m, size, "tcp")),
        "weft_shm": ("weft list over shm, direct", lambda m: bench(m, size, "--device", "shm", "--direct")),
        "weft_shm_ring": ("weft list over shm, copied twice", lambda m: bench(m, size, "--device", "shm")),
        "memcpy": ("memcpy between mappings", lambda m: bench(m, size, "--memcpy", "--direct")),
        "ucx_posix": ("ucx_perftest ucp_put_bw, posix", lambda m: ucx_puts(m, size, "posix")),
    }


def comparisons(median, names, size):
    what = f"{size.blocks} random blocks of {BLOCK_BYTES >> 10} KiB"

    def row(ours, other=None, at_least=None):
        beside = other and median.get(other)
        return Row(f"{what}: {names[ours][0]}", median[ours]["gb_per_second"], "GB/s",
                   beside and beside["gb_per_second"], beside and names[other][0] or "",
                   at_least=at_least if beside else None)

    faster_tcp = max(("tcp_sleep", "tcp_spin"), key=lambda name: median[name]["gb_per_second"])
    found = [row("weft_iwarp", faster_tcp, at_least=1.0), row("weft_shm", "memcpy", at_least=0.8),
             row("weft_shm_ring", "memcpy")]
    if "ucx_tcp" in median:
        found += [row("weft_iwarp", "ucx_tcp"), row("weft_shm", "ucx_posix")]
    return found


def main():
    options = options_of("many blocks of a cache, by weft's lists, plain TCP and memcpy",
                         {"repetitions": 3, "blocks": 2048, "rounds": 3}, "3 repetitions of 3 rounds of 2048 blocks",
                         repetitions=(5, "of every measurement (default: %(default)s)"),
                         blocks=(8192, "of each round (default: %(default)s)"),
                         rounds=(5, "of each measurement (default: %(default)s)"))
    machine = Machine(options.build, 0)
    taken = available(measurements(options))
    runs, median = take_turns(machine, options.repetitions, taken)
    finish(machine.build, "kvcache", comparisons(median, taken, options), "runs", cores=len(machine.cores),
           load_before=machine.load, blocks=options.blocks, block_bytes=BLOCK_BYTES, medians=median, runs=runs)


if __name__ == "__main__":
    main()
