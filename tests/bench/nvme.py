#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nvme.py BUILD_DIR: random commands of 4 KiB of the example nvme, from its host to its target on this machine.

The target has a namespace in memory; each end has a core of its own where there are two. All measurements are taken in
turn, several times over, and the median counts. Beside them stands what does not depend on the machine's mood: the
instructions and the system calls of each end for a command.

Prints a table, and writes it with all repetitions to BUILD_DIR/bench/nvme.json.
"""
import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import rows
from net import PATIENCE, Machine, figures, median_of, say_if_busy, system_calls, take_turns
from rows import Row

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
        yield process, address_in(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        process.wait(PATIENCE)


def instructions_of(machine, fabric, how, end, count):
    """Of that end, for so many commands and what stands around them."""
    # Else each byte of a large copy counts as one instruction: callgrind takes `rep movsb` for a loop.
    # And the io_uring of two processes makes valgrind wait for good.
    os.environ.update(GLIBC_TUNABLES=f"glibc.cpu.x86_rep_movsb_threshold={1 << 30}", WEFT_EVENT_DRIVER="epoll")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as directory, tempfile.TemporaryFile("w+") as log:
        counted = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={directory}/out"]
        serving, asking = serve_words(machine, fabric), []
        if end == "target":
            serving = counted + serving
        else:
            asking = counted
        with running(serving, log) as (_, address):
            words = asking + bench_words(machine, fabric, address, "--operations", count, "--seconds", PATIENCE, *how)
            client = subprocess.run([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                    text=True, timeout=PATIENCE, check=True)
        log.seek(0)
        said = client.stderr if end == "host" else log.read()
    return int(re.search(r"Collected : (\d+)", said)[1])


def costs(machine, fabric, how):
    """{end: instructions for a command}"""
    return {end: (instructions_of(machine, fabric, how, end, MANY) - instructions_of(machine, fabric, how, end, FEW)) /
            (MANY - FEW) for end in ("host", "target")}


def calls_of_host(machine, fabric, how):
    """System calls of the host for a command."""
    found = []
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as directory, tempfile.TemporaryFile("w+") as log:
        for count in (FEW, MANY):
            with running(serve_words(machine, fabric), log) as (_, address):
                words = bench_words(machine, fabric, address, "--operations", count, "--seconds", PATIENCE, *how)
                found.append(sum(system_calls([str(word) for word in words], Path(directory)).values()))
    return (found[1] - found[0]) / (MANY - FEW)


def main():
    parser = argparse.ArgumentParser(description="the example nvme, from its host to its target")
    parser.add_argument("build", type=Path)
    parser.add_argument("--repetitions", type=int, default=3, help="of every measurement (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2, help="that one takes (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="measurements of 0.5 seconds")
    parser.add_argument("--no-times", action="store_true", help="only instructions and system calls")
    parser.add_argument("--no-costs", action="store_true", help="leave out instructions and system calls")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 0.5
    machine = Machine(options.build.resolve(), options.seconds)
    load = say_if_busy(machine)

    measurements = {f"{way} over {fabric}": (way, lambda m, fabric=fabric, how=how: measure(m, fabric, how))
                    for fabric in FABRICS for way, how in WAYS.items() if is_measured(way, fabric)}
    runs, median, found = {}, {}, []
    if not options.no_times:
        runs = take_turns(machine, options.repetitions, measurements)
        median = {name: median_of(runs[name]) for name in runs}
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
    print("\n".join(rows.table(found)))

    path = options.build / "bench/nvme.json"
    path.parent.mkdir(exist_ok=True)
    rows.write(path, found, cores=len(machine.cores), load_before=load, seconds=options.seconds, costs=spent,
               medians=median, runs=runs)
    print(f"\n{rows.count(found)}; all runs in {path}")


main()
