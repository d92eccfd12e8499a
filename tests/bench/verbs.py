#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""verbs.py BUILD_DIR: what weft over verbs costs beside perftest, in instructions, both ends and the kernel together.

Runs in a guest whose clock counts instructions (tests/vm/README.md, --instructions): a nanosecond is an instruction, and
times are the same again to a few in a thousand. Each program measures two numbers of operations; what the longer run
takes more is theirs, and how it all began and ended drops out.

Prints a table, and writes it with all runs to /out/verbs.json. Fails if a goal is missed.
"""
import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import rows
from rows import Row

SKIPPED = 77  # as CTest is told
DEVICE, ADDRESS, PORT = "rxe0", "10.77.0.1", 7471  # one device, which talks to itself: RDMA and no network
PATIENCE = 20  # seconds, which are 20,000,000,000 instructions
WARM_UP = 10


def until(what, is_true):
    """Spins: whenever nobody has anything to do, this clock leaps to the next timer, whatever the host still works at."""
    end = time.monotonic() + PATIENCE
    while not is_true():
        if time.monotonic() > end:
            sys.exit(f"it does not come true that {what}")


def output_of(command, counts):
    """What it prints. A run that does not count is there to fetch its files from the host, which takes no instructions:
    deadlines would be leapt over."""
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not counts:
        until(f"{command[0]} ends", lambda: run.poll() is not None)
    said = run.communicate()[0]
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{said}")
    return said


def listens_for_tcp():
    return f":{PORT:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text()


def listens_for_rdma():
    return "LISTEN" in subprocess.check_output(["rdma", "resource", "show", "cm_id"], text=True)


@contextlib.contextmanager
def running(command, ready):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(f"{command[0]} listens", ready)
        yield
    finally:
        process.terminate()
        process.wait()


def perftest(program, size, count, column, *options):
    """A column of the line that it prints."""
    command = [program, "-d", DEVICE, "-x", "1", "-F", "-p", str(PORT), "-s", str(size), "-n", str(count), *options]
    with running(command, listens_for_tcp):
        said = output_of([*command, ADDRESS], counts=count != WARM_UP)
    line = re.search(rf"^ {size} +{count} .*$", said, re.MULTILINE)
    if not line:
        sys.exit(f"{program} said what this script does not understand:\n{said}")
    return float(line[0].split()[column])


def ib_send_lat(count):
    mean_half_trip_us = perftest("ib_send_lat", 64, count, 5, "-e")
    return mean_half_trip_us * 1000 * 2 * count


def ib_write_bw(count):
    mebibytes_per_second = perftest("ib_write_bw", 65536, count, 3)
    return count * 65536 / 2**20 / mebibytes_per_second * 1e9


def weft(build, operation, quantity, size, count):
    program = str(build / "examples/weft-perf")
    common = ["--device", f"verbs:{DEVICE}", "--poll", "sleep"]
    with running([program, "serve", f"{ADDRESS}:{PORT}", *common], listens_for_rdma):
        said = output_of([program, "run", f"{ADDRESS}:{PORT}", *common, "--operations", operation, "--measure", quantity,
                          "--sizes", size, "--iterations", str(count), "--warm-up", "100", "--json"],
                         counts=count != WARM_UP)
    outcome, = json.loads(said)["outcomes"]
    return outcome["seconds"] * 1e9


# What is compared: ours, the other's, how much of it ours may take, and two numbers of operations.
def comparisons(build):
    return [
        ("64 B there and back", "weft-perf send, sleeping", lambda count: weft(build, "send", "latency", "64", count),
         "ib_send_lat -e", ib_send_lat, 0.95, (1000, 4000)),
        # perftest has no events for writes: it polls.
        ("64 KiB write", "weft-perf write, sleeping", lambda count: weft(build, "write", "bandwidth", "64K", count),
         "ib_write_bw", ib_write_bw, 1.03, (300, 900)),
    ]


def difference(measure, counts, runs):
    """Instructions of one operation."""
    few, many = counts
    measure(WARM_UP)
    runs.update({count: measure(count) for count in counts})
    return (runs[many] - runs[few]) / (many - few)


def row_of(what, ours_is, ours, other_is, other, at_most, counts):
    runs = {"ours": {}, "other": {}}
    our_cost = difference(ours, counts, runs["ours"])
    other_cost = difference(other, counts, runs["other"])
    return Row(f"{what}: {ours_is}", our_cost, "instructions", other_cost, other_is, at_most=at_most), runs


def main():
    parser = argparse.ArgumentParser(description="weft over verbs beside perftest, in instructions")
    parser.add_argument("build", type=Path)
    build = parser.parse_args().build.resolve()
    missing = [program for program in ("ib_send_lat", "ib_write_bw") if not shutil.which(program)]
    if missing:
        print(f"no {' and no '.join(missing)}: install perftest")
        return SKIPPED
    found, runs = zip(*(row_of(*each) for each in comparisons(build)))
    print("\n".join(rows.table(found)))
    rows.write(Path("/out/verbs.json"), found, clock="instructions", runs=runs)
    return 0 if all(row.verdict == rows.REACHED for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
