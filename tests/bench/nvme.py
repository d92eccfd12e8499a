#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvme.py BUILD_DIR: random commands of 4 KiB of the example nvme, from its host to its target on this machine.

The target has a namespace in memory; each end has a core of its own where there are two. All measurements are taken in
turn, several times over, and the median counts. Beside them stands what does not depend on the machine's mood: the
instructions and the system calls of each end for a command.

Prints a table, and writes it with all repetitions to BUILD_DIR/bench/nvme.json.
"""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

from net import COPIES_AT_ONCE, PATIENCE, Machine, figures, take_turns
from rows import Row
from running import CALLGRIND, collected, done, options_of, system_calls

NQN = "nqn.2024-01.org.example:disk"
BLOCK, DEPTH, DISK = 4096, 128, "64M"
FEW, MANY = 2_000, 10_000  # commands whose costs are compared
FABRICS = ("iwarp", "shm")
GOALS = {"reads over iwarp": 300_000, "reads, memory mapped over shm": 1_000_000}  # a second
WAYS = {  # of using the namespace
    "reads": [],
    "writes": ["--write", 100],
    "reads, a key for each": ["--windows"],
    "reads, memory mapped": ["--direct"],
}


def is_measured(way, fabric):
    """Only processes of one machine map each other's memory."""
    return fabric == "shm" or "--direct" not in WAYS[way]


def serve_words(machine, fabric):
    return [machine.build / "examples/nvme", "--device", fabric, "serve", "--memory", DISK, "--block-size", BLOCK,
            "--queue-size", 1024, "--listen", "127.0.0.1:0"]


def bench_words(machine, fabric, address, *how):
    return [machine.build / "examples/nvme", "--device", fabric, "bench", address, NQN, "--json", "--depth", DEPTH, *how]


def address_in(line):
    """Of "serving NQN on ADDRESS over FABRIC"."""
    return line.split()[3]


def measure(machine, fabric, how):
    with machine.server(*serve_words(machine, fabric), ready=address_in) as address:
        said = json.loads(machine.client(*bench_words(machine, fabric, address, "--seconds", machine.seconds, *how)))
    if said["wrong"]:
        sys.exit(f"{said['wrong']} reads over {fabric} found something else than was written")
    times = said["writes" if "--write" in how else "reads"]
    return figures(times["p50"] / 1000, None, said["per_second"])


@contextlib.contextmanager
def running(words, log):
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield address_in(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        process.wait(PATIENCE)


def instructions_of(machine, fabric, how, end, count):
    """Of that end, for so many commands and what stands around them."""
    # The io_uring of two processes makes valgrind wait for good.
    os.environ.update(COPIES_AT_ONCE, WEFT_EVENT_DRIVER="epoll")
    counted = {"target": [], "host": [], end: CALLGRIND}
    with tempfile.TemporaryFile("w+") as log:
        with running(counted["target"] + serve_words(machine, fabric), log) as address:
            client = done(*counted["host"], *bench_words(machine, fabric, address, "--operations", count, "--seconds",
                                                         PATIENCE, *how))
        log.seek(0)
        return collected(client.stderr if end == "host" else log.read())


def costs(machine, fabric, how):
    """{end: instructions for a command}"""
    return {end: (instructions_of(machine, fabric, how, end, MANY) - instructions_of(machine, fabric, how, end, FEW)) /
            (MANY - FEW) for end in ("host", "target")}


def calls_of_host(machine, fabric, how):
    """System calls of the host for a command."""
    found = []
    for count in (FEW, MANY):
        with running(serve_words(machine, fabric), machine.log) as address:
            words = bench_words(machine, fabric, address, "--operations", count, "--seconds", PATIENCE, *how)
            found.append(sum(system_calls(*words).values()))
    return (found[1] - found[0]) / (MANY - FEW)


def main():
    options = options_of("the example nvme, from its host to its target", {"seconds": 0.5}, "measurements of 0.5 seconds",
                         repetitions=(3, "of every measurement (default: %(default)s)"),
                         seconds=(2.0, "that one takes (default: %(default)s)"),
                         no_times=(False, "only instructions and system calls"),
                         no_costs=(False, "leave out instructions and system calls"))
    machine = Machine(options.build, options.seconds)
    measurements = {f"{way} over {fabric}": (way, lambda m, fabric=fabric, how=how: measure(m, fabric, how))
                    for fabric in FABRICS for way, how in WAYS.items() if is_measured(way, fabric)}
    runs, median, found = {}, {}, []
    if not options.no_times:
        runs, median = take_turns(machine, options.repetitions, measurements)
        for name, item in median.items():
            found.append(Row(f"4 KiB {name}, {DEPTH} at a time", item["per_second"], "per second",
                             at_least=GOALS.get(name)))
    spent = {}
    if not options.no_costs:
        for fabric in FABRICS:
            spent[f"calls over {fabric}"] = calls_of_host(machine, fabric, [])
            found.append(Row(f"4 KiB reads over {fabric}, host", spent[f"calls over {fabric}"], "system calls"))
        for fabric in FABRICS:
            for way, how in WAYS.items():
                if not is_measured(way, fabric):
                    continue
                name = f"{way} over {fabric}"
                spent[name] = costs(machine, fabric, how)
                found += [Row(f"4 KiB {name}, {end}", number, "instructions") for end, number in spent[name].items()]
    machine.finish("nvme", found, costs=spent, medians=median, runs=runs)


main()
