#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""copy_files.py BUILD_DIR: how fast `copy put` is beside a plain TCP program that does the same work.

Copies one file over iWARP, over shared memory and by the plain program in turn, several rounds, and compares within
each round, so that what else the machine does falls on all. Each end has cores of its own, half of the machine's.
Reports the medians of rate, processor time and their ratios, and the memory, on the standard output and in
BUILD_DIR/bench/copy.json.
"""
import contextlib
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/demo"))
from copier import Copier, memory_for
from processes import Failure
from rows import Row
from running import finish, options_of

POOL_LIMIT_MIB = 64  # examples/copy/session.hpp
MEMORY_GOAL_MIB = POOL_LIMIT_MIB + 64
WAYS = ("iwarp", "shm", "tcp")
RATE_GOALS = {"iwarp": 1.0, "shm": 1.5}  # beside tcp
CPU_GOALS = {"iwarp": 1.0, "shm": 0.8}  # of both ends


def make_file(path, mib):
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))


def measure(build, directory, mib, rounds):
    """The rounds, each {way: figures}, and {way: the server's peak memory}"""
    source = directory / "source"
    make_file(source, mib)
    runs = []
    with contextlib.ExitStack() as stack:
        copiers = {way: stack.enter_context(Copier(build / "examples", directory, None if way == "tcp" else way))
                   for way in WAYS}
        for number in range(rounds):
            first = number % len(WAYS)  # who goes first takes turns as well
            found = {way: copiers[way].put(source) for way in WAYS[first:] + WAYS[:first]}
            print(f"round {number + 1}: " + ", ".join(
                f"{way} {mib / found[way].seconds:.0f} MiB/s, {found[way].processor:.2f} s" for way in WAYS), flush=True)
            runs.append({way: {"seconds": each.seconds, "cpu_seconds": each.processor, "client_peak_mib": each.peak_mib}
                         for way, each in found.items()})
        return runs, {way: copier.peak_mib() for way, copier in copiers.items()}


def main():
    options = options_of("copy put beside a plain TCP program", {"mib": 256, "rounds": 5}, "5 rounds of 256 MiB",
                         mib=(1024, "size of the file (default: %(default)s)"), rounds=(7, "default: %(default)s"),
                         directory=("", "where the files lie; default: /dev/shm if there is room"))
    (options.build / "bench").mkdir(exist_ok=True)
    parent = options.directory or memory_for(3 * options.mib << 20) or options.build / "bench"
    with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=parent) as directory:
        runs, server_peaks = measure(options.build, Path(directory), options.mib, options.rounds)

    def median(way, value):
        return statistics.median(run[way][value] for run in runs)

    def median_ratio(value, numerator, denominator):
        """Within each round, in which both met the same machine."""
        return statistics.median(run[numerator][value] / run[denominator][value] for run in runs)

    summary = {way: {"mib_per_second": options.mib / median(way, "seconds"), "cpu_seconds": median(way, "cpu_seconds"),
                     "server_peak_mib": server_peaks[way],
                     "client_peak_mib": max(run[way]["client_peak_mib"] for run in runs)} for way in WAYS}
    found = []
    for way in RATE_GOALS:
        # The baseline is what the median of the ratios makes of our figure.
        rate, cpu = summary[way]["mib_per_second"], summary[way]["cpu_seconds"]
        found.append(Row(f"copy put over {way}", rate, "MiB/s", rate / median_ratio("seconds", "tcp", way),
                         "plain TCP program", at_least=RATE_GOALS[way]))
        found.append(Row(f"copy put over {way}, processor time of both ends", cpu, "s",
                         cpu / median_ratio("cpu_seconds", way, "tcp"), "plain TCP program", at_most=CPU_GOALS[way]))
    peak = max(summary[way][end] for way in RATE_GOALS for end in ("server_peak_mib", "client_peak_mib"))
    found.append(Row("copy put, peak memory of an end", peak, "MiB", at_most=MEMORY_GOAL_MIB))
    finish(options.build, "copy", found, "runs", mib=options.mib, directory=str(parent),
           driver=os.environ.get("WEFT_EVENT_DRIVER", "automatic"), cores=os.cpu_count(), **summary, runs=runs)


try:
    main()
except Failure as why:
    sys.exit(f"copy_files: {why}")
