#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""memory.py BUILD_DIR [--mebibytes N]: what registered memory costs, beside malloc and mimalloc.

Instructions in user space (callgrind) and allocations are counted, as the difference of two runs of different length.
Times, and turn times of an executor while so much memory is registered, are measured as well, of this machine's memory
and of a model with a server's rates and 64 GiB: they are to be read as ratios of one run, on a quiet machine.

Prints a table, and writes it to BUILD_DIR/bench/memory.json. Exits with 1 if a goal was missed.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import rows
from rows import Row

PATIENCE = 900  # seconds for any single run
FEW, MANY = 1000, 101000

CASES = [
    ("allocate and free, awaited: weft", "memory_cost", "pool_allocate"),
    ("allocate and free, without waiting: weft", "memory_cost", "pool_try_allocate"),
    ("allocate and free: malloc", "memory_cost", "malloc"),
    ("allocate and free: mimalloc", "memory_mimalloc", "mimalloc"),
    ("lease and release, of 1,000 regions: weft", "memory_cost", "cache_lease"),
]
GOALS = [("pool_allocate", 60), ("cache_lease", 150)]  # instructions


def run(command, **more):
    # valgrind lets one thread run at a time, also while that one sleeps in a ring.
    environment = dict(os.environ, WEFT_EVENT_DRIVER="epoll")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                          timeout=PATIENCE, check=False, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return done


def instructions(program, case, count, directory):
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={directory}/out", program, case, str(count)]
    return int(re.search(r"Collected : (\d+)", run(command).stderr)[1])


def allocations(program, case, count):
    return json.loads(run([program, case, str(count)]).stdout)["allocations"]


def rows_of(costs, report):
    times = report["nanoseconds"]
    titles = {case: title for title, _, case in CASES}
    found = [Row(titles[name], costs[name]["instructions"], "instructions", at_most=most) for name, most in GOALS]
    found += [Row(titles["pool_allocate"], costs["pool_allocate"]["instructions"], "instructions",
                  costs[other]["instructions"], other) for other in ("malloc", "mimalloc") if other in costs]
    found += [Row(titles[name], costs[name]["allocations"], "allocations", at_most=0) for name, _ in GOALS]
    if "mimalloc" in times:
        found += [Row(f"time of {name}", value, "ns", times["mimalloc"], "mimalloc") for name, value in times.items()
                  if name not in ("mimalloc", "cache_lease")]
    return found + rows_of_registration(report)


def rows_of_registration(report):
    """Where the kernel really provides the pages, four workers cannot be faster than the cores that there are."""
    modelled, real = report["modelled_registration"], report["registration"]
    size = f"{report['modelled_bytes'] >> 30} GiB of a model"
    cores = min(4, len(os.sched_getaffinity(0)))
    rate, worker = "mebibytes_per_second", "populated_by_workers_first"
    return [
        Row(f"registration of {size}, 4 workers", modelled[worker][rate], "MiB/s", modelled["on_a_worker"][rate],
            "one call", at_least=3.5),
        Row(f"registration of {size}, longest turn", modelled[worker]["longest_turn_ms"], "ms", at_most=1),
        Row(f"registration of {report['registration_of_bytes'] >> 20} MiB, {cores} cores", real[worker][rate], "MiB/s",
            real["on_a_worker"][rate], "one call, small pages", at_least=3.5 * cores / 4),
    ]


def say_registration(what, runs):
    print(f"\nregistration of {what}:")
    for name, item in runs.items():
        print(f"  {name:28}{item['mebibytes_per_second']:8.0f} MiB/s; longest turn of the executor "
              f"{item['longest_turn_ms']:9.2f} ms, of {item['turns']}")


def main():
    parser = argparse.ArgumentParser(description="what registered memory costs")
    parser.add_argument("build", type=Path)
    parser.add_argument("--mebibytes", type=int, default=1024, help="to be registered (1024)")
    parser.add_argument("--gibibytes-of-model", type=int, default=64, help="to be registered, of a model (64)")
    parser.add_argument("--quick", action="store_true", help="register 256 MiB, and 16 GiB of the model")
    options = parser.parse_args()
    if options.quick:
        options.mebibytes, options.gibibytes_of_model = 256, 16
    programs = options.build.resolve() / "tests/bench"

    costs = {}
    print(f"{'':44}{'instructions':>14}{'allocations':>13}")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as directory:
        for title, program, case in CASES:
            path = programs / program
            if not path.exists():
                print(f"{title:44}{'not built':>14}")
                continue
            costs[case] = {
                "instructions": (instructions(path, case, MANY, directory) - instructions(path, case, FEW, directory))
                                / (MANY - FEW),
                # Threads may start in the one and not in the other.
                "allocations": round((allocations(path, case, MANY) - allocations(path, case, FEW)) / (MANY - FEW), 3),
            }
            print(f"{title:44}{costs[case]['instructions']:14.0f}{costs[case]['allocations']:13.2f}", flush=True)

    report = json.loads(run([programs / "memory_cost", "report", str(options.mebibytes),
                             str(options.gibibytes_of_model * 1024)]).stdout)
    times = report["nanoseconds"]
    if (programs / "memory_mimalloc").exists():
        times.update(json.loads(run([programs / "memory_mimalloc", "report", "0"]).stdout))
    print("\nnanoseconds, the best of five:")
    for name, value in times.items():
        ratio = f"  {value / times['mimalloc']:6.2f} of mimalloc" if "mimalloc" in times else ""
        print(f"  {name:24}{value:10.1f}{ratio}")
    say_registration(f"{options.mebibytes} MiB that were never touched, pinned by mlock(2)", report["registration"])
    say_registration(f"{options.gibibytes_of_model} GiB of a model, cleared and pinned at a server's rates",
                     report["modelled_registration"])
    means = [item["mean"] for item in report["waste"][1:]]
    print(f"\nwaste in {len(means)} size classes above the smallest, up to 1 MiB: {100 * sum(means) / len(means):.1f} % "
          f"on average, at most {100 * max(item['most'] for item in report['waste'][1:]):.1f} %")

    found = rows_of(costs, times)
    print("\n" + "\n".join(rows.table(found)))
    path = options.build / "bench/memory.json"
    rows.write(path, found, costs=costs, **report)
    print(f"\n{rows.count(found)}; all figures in {path}")
    sys.exit(any(row.verdict == rows.MISSED for row in found))


main()
