#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shm.py BUILD_DIR: weft over shared memory beside UCX, libfabric, memcpy, eventfds and futexes, on this machine.

All measurements are taken in turn, several times over, each with both processes on cores of their own; the median
counts. Beside them stands what does not depend on the machine's mood: instructions, system calls and allocations for
each operation, over shared memory and over iwarp, and the memory of an idle connection.

UCX's put and get over posix are a copy or a load in memory that the other process has mapped for it: no request, and
nothing for the other end to do or to check.

Prints tables, and writes them with all repetitions to BUILD_DIR/bench/shm.json.
"""
import json
import re
import resource

from net import (COSTS, MIB, Machine, available, cost, figures, libfabric, millions, of_megabytes, print_costs,
                 rows_of_costs, rows_of_table, take_turns, ucx, usual)
from net import weft as weft_perf
from rows import Row
from running import done, options_of

KEYS = 100_000  # of the kv server
IDLE_CONNECTIONS = 10_000  # where so many files may be open


def weft(machine, operation, quantity, size, **how):
    return weft_perf(machine, operation, quantity, size, device="shm", **how)


def direct(machine, operation, quantity, size, **how):
    """The client has mapped the server's memory."""
    return weft(machine, operation, quantity, size, serving=["--direct"], **how)


def baseline(machine, what, trips=1):
    """A measurement of shm_baselines, which puts its processes on their cores itself."""
    ours, its = (machine.cores[end % len(machine.cores)] for end in (1, 0))
    said = json.loads(done(machine.build / "tests/bench/shm_baselines", what, machine.seconds, ours, its).stdout)
    return figures(said["p50_ns"] / 1000 / trips, said["mean_ns"] / 1000 / trips, said["operations"] / said["seconds"])


def kv(machine, device, *serving):
    """One-sided GETs of one client beside its SETs."""
    program = machine.build / "examples/kv"
    with machine.server(program, "--device", device, "serve", "--listen", "127.0.0.1:0", "--tcp-port", "0", "--keys", KEYS,
                        "--fill", KEYS, *serving, ready=str.split) as words:
        said = machine.client(program, "--device", device, "bench", words[3], words[8], "--keys", KEYS, "--rounds", 3,
                              "--milliseconds", int(machine.seconds * 500))
    return figures(None, None, float(re.search(r"GETs by one-sided reads +(\d+) per second", said)[1]))


MEASUREMENTS = {
    "weft_spin_64": ("weft send, spinning", lambda m: weft(m, "send", "latency", "64")),
    "ucx_tag_64": ("ucx_perftest tag_lat", lambda m: ucx(m, "tag_lat", 64, 300000, "posix")),
    "libfabric_64": ("fi_pingpong -p shm (mean)", lambda m: libfabric(m, 64, 50000, "shm", "rdm")),
    "weft_send_64": ("weft send, 64 in flight", lambda m: weft(m, "send", "bandwidth", "64")),
    "ucx_tag_bw_64": ("ucx_perftest tag_bw", lambda m: ucx(m, "tag_bw", 64, 1000000, "posix")),
    "weft_write_64": ("weft write, 64 in flight", lambda m: weft(m, "write", "bandwidth", "64")),
    "direct_write_64": ("direct, 64 in flight", lambda m: direct(m, "write", "bandwidth", "64")),
    "ucx_put_64": ("ucx_perftest ucp_put_bw", lambda m: ucx(m, "ucp_put_bw", 64, 3000000, "posix")),
    "weft_read_64": ("weft read, spinning", lambda m: weft(m, "read", "latency", "64")),
    "direct_read_64": ("direct, spinning", lambda m: direct(m, "read", "latency", "64")),
    "ucx_get_64": ("ucx_perftest ucp_get", lambda m: ucx(m, "ucp_get", 64, 1000000, "posix")),
    "weft_write_1M": ("weft write, 4 in flight", lambda m: weft(m, "write", "bandwidth", "1M", depth=4)),
    "direct_write_1M": ("direct, 4 in flight", lambda m: direct(m, "write", "bandwidth", "1M", depth=4)),
    "two_copies_1M": ("memcpy in and out", lambda m: baseline(m, "two_copies")),
    "one_copy_1M": ("memcpy to the other", lambda m: baseline(m, "one_copy")),
    "memcpy_1M": ("memcpy in one process", lambda m: baseline(m, "memcpy")),
    "ucx_put_1M": ("ucx_perftest ucp_put_bw", lambda m: ucx(m, "ucp_put_bw", MIB, 10000, "posix")),
    "ucx_cma_1M": ("ucx_perftest tag_bw, CMA", lambda m: ucx(m, "tag_bw", MIB, 5000, "posix,cma")),
    "weft_sleep_64": ("weft send, sleeping", lambda m: weft(m, "send", "latency", "64", polling="sleep")),
    "eventfd": ("eventfd, read(2)", lambda m: baseline(m, "eventfd", trips=2)),
    "futex": ("futex", lambda m: baseline(m, "futex", trips=2)),
    "kv_shm": ("kv GETs, one client", lambda m: kv(m, "shm")),
    "kv_direct": ("kv GETs, direct", lambda m: kv(m, "shm", "--direct")),
    "kv_iwarp": ("kv over iwarp", lambda m: kv(m, "iwarp")),
}

# As rows_of_table() reads them.
ROWS = (
    ("64 B half round trip", "us", usual, True, "weft_spin_64", 0.15, {"ucx_tag_64": 1.0, "libfabric_64": None}),
    ("64 B messages one way", "M/s", millions, False, "weft_send_64", 10, {"ucx_tag_bw_64": None}),
    ("64 B writes", "M/s", millions, False, "weft_write_64", 10, {}),
    ("64 B writes", "M/s", millions, False, "direct_write_64", 30, {"ucx_put_64": None}),
    ("64 B read round trip", "us", usual, True, "weft_read_64", None, {}),
    ("64 B read round trip", "us", usual, True, "direct_read_64", 0.1, {"ucx_get_64": None}),
    ("1 MiB writes", "GB/s", of_megabytes, False, "weft_write_1M", None,
     {"two_copies_1M": 0.9, "one_copy_1M": None, "memcpy_1M": None, "ucx_put_1M": None, "ucx_cma_1M": None}),
    ("1 MiB writes", "GB/s", of_megabytes, False, "direct_write_1M", None,
     {"one_copy_1M": 0.9, "memcpy_1M": 0.9, "ucx_put_1M": None}),
    ("64 B half round trip", "us", usual, True, "weft_sleep_64", None, {"eventfd": 1.0, "futex": None}),
    ("one-sided GETs", "M/s", millions, False, "kv_shm", None, {"kv_iwarp": None}),
    ("one-sided GETs", "M/s", millions, False, "kv_direct", 3, {"kv_iwarp": None}),
)
DIRECT_COSTS = dict.fromkeys(("direct_write_64", "direct_read_64", "prepared_write_64", "prepared_read_64"),
                             (1000, 5000))  # as net.COSTS
GOAL_INSTRUCTIONS = {"send_64": 600}
GOAL_IDLE_KIB = 16


def idle(machine):
    """KiB of an end of an idle connection: half of what both processes have for it."""
    connections = min(IDLE_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 200)
    both = json.loads(done(machine.build / "tests/bench/net_idle", "shm", connections).stdout)
    return {**both, "of_an_end_kib": both["pss_kib"] / 2}


def print_idle(found):
    print(f"\nan idle connection, of {found['connections']}: {found['of_an_end_kib']:.1f} KiB for each end")
    print(f"  both ends together: {found['pss_kib']:.1f} KiB of memory, {found['shmem_kib']:.1f} of it shared; the kernel has "
          f"{found['page_tables_kib']:.1f} KiB of page tables\n  and about {found['slab_kib']:.1f} KiB of slabs for them "
          "besides, where nobody else uses the machine")


def all_costs(build):
    costs = {fabric: {operation: cost(build, operation, fabric) for operation in COSTS} for fabric in ("shm", "iwarp")}
    for operation, counts in DIRECT_COSTS.items():
        costs["shm"][operation] = cost(build, operation, "shm", counts)
    return costs


def main():
    options = options_of("weft over shared memory beside UCX, libfabric, memcpy, eventfds and futexes", {"seconds": 0.2},
                         "measurements of 0.2 seconds", repetitions=(3, "of every measurement (default: %(default)s)"),
                         seconds=(0.4, "that one takes (default: %(default)s)"),
                         no_times=(False, "only instructions, system calls, allocations and memory"),
                         no_costs=(False, "leave out instructions, system calls and allocations"))
    machine = Machine(options.build, options.seconds)
    runs, median, found, costs = {}, {}, [], {}
    if not options.no_times:
        runs, median = take_turns(machine, options.repetitions, available(MEASUREMENTS))
        found = rows_of_table(ROWS, MEASUREMENTS, median)
    memory = idle(machine)
    print_idle(memory)
    found.append(Row("memory of an end of an idle connection", memory["of_an_end_kib"], "KiB", at_most=GOAL_IDLE_KIB))
    if not options.no_costs:
        costs = all_costs(machine.build)
        for fabric, table in costs.items():
            print(f"\nover {fabric}, ", end="")
            print_costs(table)
        found += rows_of_costs("shm", costs["shm"], GOAL_INSTRUCTIONS)
    machine.finish("shm", found, idle_connection=memory, costs=costs, medians=median, runs=runs)


main()
