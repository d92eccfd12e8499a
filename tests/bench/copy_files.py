#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""copy_files.py BUILD_DIR: how fast `copy put` is beside a plain TCP program that does the same work.

Runs the two in turn, several pairs, on one file, and compares within each pair, so that what else the machine does
falls on both. Reports the median of the ratios, the memory and the processor time, on the standard output and in
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

import rows
from rows import Row
from running import options_of

POOL_LIMIT_MIB = 64  # examples/copy/session.hpp
MEMORY_GOAL_MIB = POOL_LIMIT_MIB + 64
SPEED_GOAL = 0.9


class Server:
    """A server process with its memory and processor time."""

    def __init__(self, command, address_of):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
    process = subprocess.Popen(client + [server.address], stdout=subprocess.DEVNULL)
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


def measure(build, directory, mib, pairs, device):
    source = directory / "source"
    arrived = {name: directory / name for name in ("weft", "tcp")}
    for place in arrived.values():
        place.mkdir()
    make_file(source, mib)
    programs = build / "examples"
    weft = Server([programs / "copy", "serve", arrived["weft"], "--listen", "127.0.0.1:0", "--device", device],
                  lambda line: line.split(" on ")[1].split()[0])
    tcp = Server([programs / "tcp_copy", "serve", arrived["tcp"]], str.strip)
    runs = []
    try:
        for number in range(pairs):
            pair = {}
            # Who goes first takes turns as well.
            for name in ("weft", "tcp") if number % 2 == 0 else ("tcp", "weft"):
                if name == "weft":
                    pair[name] = put(weft, [programs / "copy", "put", "--device", device, source])
                else:
                    pair[name] = put(tcp, [programs / "tcp_copy", "put", source])
                if not filecmp.cmp(source, arrived[name] / source.name, shallow=False):
                    sys.exit(f"{name}: what arrived differs from what was sent")
                (arrived[name] / source.name).unlink()
            pair["ratio"] = pair["tcp"]["seconds"] / pair["weft"]["seconds"]
            print(f"pair {number + 1}: weft {mib / pair['weft']['seconds']:.0f} MiB/s, "
                  f"tcp {mib / pair['tcp']['seconds']:.0f} MiB/s, ratio {pair['ratio']:.3f}", flush=True)
            runs.append(pair)
        return runs, weft.peak_mib(), tcp.peak_mib()
    finally:
        weft.end()
        tcp.end()


def main():
    options = options_of("copy put beside a plain TCP program", {"mib": 256, "pairs": 5}, "5 pairs of 256 MiB",
                         mib=(1024, "size of the file (default: %(default)s)"), pairs=(7, "default: %(default)s"),
                         directory=("", "where the files lie; default: /dev/shm if there is room"),
                         device=("iwarp", "weft's: iwarp or shm (default: %(default)s)"))
    (options.build / "bench").mkdir(exist_ok=True)
    parent = options.directory or default_directory(options.build, options.mib)
    with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=parent) as directory:
        runs, weft_peak, tcp_peak = measure(options.build, Path(directory), options.mib, options.pairs, options.device)

    def median(name, value):
        return statistics.median(run[name][value] for run in runs)

    summary = {
        "device": options.device,
        "mib": options.mib,
        "directory": str(parent),
        "driver": os.environ.get("WEFT_EVENT_DRIVER", "automatic"),
        "cores": os.cpu_count(),
        "median_ratio": statistics.median(run["ratio"] for run in runs),
        **{name: {"mib_per_second": options.mib / median(name, "seconds"), "cpu_seconds": median(name, "cpu_seconds"),
                  "server_peak_mib": peak, "client_peak_mib": max(run[name]["client_peak_mib"] for run in runs)}
           for name, peak in (("weft", weft_peak), ("tcp", tcp_peak))},
        "runs": runs,
    }
    for name in ("weft", "tcp"):
        item = summary[name]
        print(f"{name:4}: {item['mib_per_second']:6.0f} MiB/s, {item['cpu_seconds']:.2f} s of processor time, "
              f"peak memory {item['server_peak_mib']:.0f} MiB (server), {item['client_peak_mib']:.0f} MiB (client)")
    # The ratio is the median of the pairs', in which both met the same machine: the baseline is what it makes of ours.
    speed = summary["weft"]["mib_per_second"]
    peak = max(summary["weft"]["server_peak_mib"], summary["weft"]["client_peak_mib"])
    found = [
        Row(f"copy put over {options.device}", speed, "MiB/s", speed / summary["median_ratio"], "plain TCP program",
            at_least=SPEED_GOAL),
        Row("copy put, processor time", summary["weft"]["cpu_seconds"], "s", summary["tcp"]["cpu_seconds"],
            "plain TCP program"),
        Row("copy put, peak memory of an end", peak, "MiB", at_most=MEMORY_GOAL_MIB),
    ]
    path = options.build / "bench/copy.json"
    rows.write(path, found, **summary)
    print(f"median ratio {summary['median_ratio']:.3f} (goal: {SPEED_GOAL} or more), "
          f"peak {peak:.0f} MiB (goal: {MEMORY_GOAL_MIB} or less); all runs in {path}")


main()
