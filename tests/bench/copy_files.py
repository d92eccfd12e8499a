#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""copy_files.py BUILD_DIR: how fast `copy put` is beside a plain TCP program that does the same work.

Copies one file over iWARP, over shared memory and by the plain program in turn, several rounds, and compares within
each round, so that what else the machine does falls on all. Each end has cores of its own, half of the machine's.
Reports the medians of rate, processor time and their ratios, and the memory, on the standard output and in
BUILD_DIR/bench/copy.json.
"""
import filecmp
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rows import Row
from running import finish, options_of

POOL_LIMIT_MIB = 64  # examples/copy/session.hpp
MEMORY_GOAL_MIB = POOL_LIMIT_MIB + 64
WAYS = ("iwarp", "shm", "tcp")
RATE_GOALS = {"iwarp": 1.0, "shm": 1.5}  # beside tcp
CPU_GOALS = {"iwarp": 1.0, "shm": 0.8}  # of both ends


def cores_of(end):
    """Half of the cores for the server, the others for the client."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    return cores if half == 0 else cores[half:] if end == "client" else cores[:half]


def pinned(end, command):
    return ["taskset", "--cpu-list", ",".join(map(str, cores_of(end))), *command]


class Server:
    """A server process with its memory and processor time."""

    def __init__(self, command, address_of):
        self.process = subprocess.Popen(pinned("server", command), stdout=subprocess.PIPE, text=True)
        self.address = address_of(self.process.stdout.readline())

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmHWM in /proc")

    def end(self):
        self.process.terminate()
        self.process.wait()


def put(server, client):
    """Runs one client: (seconds, its and the server's processor time, its peak memory)."""
    before = server.cpu_seconds()
    start = time.monotonic()
    process = subprocess.Popen(pinned("client", [*client, server.address]), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{client[0]} failed")
    cpu = usage.ru_utime + usage.ru_stime + server.cpu_seconds() - before
    return {"seconds": seconds, "cpu_seconds": cpu, "client_peak_mib": usage.ru_maxrss / 1024}


def make_file(path, mib):
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))


def default_directory(build, mib):
    """Memory rather than a disk, if there is room: the disk's moods would be all that one sees."""
    shm = Path("/dev/shm")
    if shm.is_dir() and shutil.disk_usage(shm).free > (3 * mib + 256) << 20:
        return shm
    return build / "bench"


def start_server(way, programs, place):
    if way == "tcp":
        return Server([programs / "tcp_copy", "serve", place], str.strip)
    return Server([programs / "copy", "serve", place, "--listen", "127.0.0.1:0", "--device", way],
                  lambda line: line.split(" on ")[1].split()[0])


def client_of(way, programs, source):
    if way == "tcp":
        return [programs / "tcp_copy", "put", source]
    return [programs / "copy", "put", "--device", way, source]


def measure(build, directory, mib, rounds):
    """The rounds, each {way: figures}, and {way: the server's peak memory}"""
    source = directory / "source"
    arrived = {way: directory / way for way in WAYS}
    for place in arrived.values():
        place.mkdir()
    make_file(source, mib)
    programs = build / "examples"
    servers = {}
    runs = []
    try:
        for way in WAYS:
            servers[way] = start_server(way, programs, arrived[way])
        for number in range(rounds):
            first = number % len(WAYS)  # who goes first takes turns as well
            found = {}
            for way in WAYS[first:] + WAYS[:first]:
                found[way] = put(servers[way], client_of(way, programs, source))
                if not filecmp.cmp(source, arrived[way] / source.name, shallow=False):
                    sys.exit(f"{way}: what arrived differs from what was sent")
                (arrived[way] / source.name).unlink()
            print(f"round {number + 1}: " + ", ".join(
                f"{way} {mib / found[way]['seconds']:.0f} MiB/s, {found[way]['cpu_seconds']:.2f} s" for way in WAYS),
                  flush=True)
            runs.append(found)
        return runs, {way: server.peak_mib() for way, server in servers.items()}
    finally:
        for server in servers.values():
            server.end()


def main():
    options = options_of("copy put beside a plain TCP program", {"mib": 256, "rounds": 5}, "5 rounds of 256 MiB",
                         mib=(1024, "size of the file (default: %(default)s)"), rounds=(7, "default: %(default)s"),
                         directory=("", "where the files lie; default: /dev/shm if there is room"))
    (options.build / "bench").mkdir(exist_ok=True)
    parent = options.directory or default_directory(options.build, options.mib)
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


main()
