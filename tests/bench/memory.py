#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""memory.py BUILD_DIR [--mebibytes N]: what registered memory costs, beside malloc and mimalloc.

Instructions in user space (callgrind) and allocations are counted, as the difference of two runs of different length.
Times, and turn times of an executor while so much memory is registered, are measured as well, of this machine's memory
and of a model with a server's rates and 64 GiB: they are to be read as ratios of one run, on a quiet machine.

Prints a table, and writes it to BUILD_DIR/bench/memory.json. Exits with 1 if a goal was missed.
"""
import json
import os
import sys

from rows import Row
from running import done, finish, instructions, missed, options_of

FEW, MANY = 1000, 101000

CASES = [
    ("allocate and free, awaited: weft", "memory_cost", "pool_allocate"),
    ("allocate and free, without waiting: weft", "memory_cost", "pool_try_allocate"),
    ("allocate and free: malloc", "memory_cost", "malloc"),
    ("allocate and free: mimalloc", "memory_mimalloc", "mimalloc"),
    ("lease and release, of 1,000 regions: weft", "memory_cost", "cache_lease"),
]
GOALS = [("pool_allocate", 60), ("cache_lease", 150)]  # instructions


def run(*command):
    # valgrind lets one thread run at a time, also while that one sleeps in a ring.
    return json.loads(done(*command, WEFT_EVENT_DRIVER="epoll").stdout)


def cost(path, case):
    """Of one operation."""
    def of_one(count):
        return (count(path, case, MANY) - count(path, case, FEW)) / (MANY - FEW)

    return {"instructions": of_one(lambda *command: instructions(*command, WEFT_EVENT_DRIVER="epoll")),
            # Threads may start in the one and not in the other.
            "allocations": round(of_one(lambda *command: run(*command)["allocations"]), 3)}


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
    options = options_of("what registered memory costs", {"mebibytes": 256, "gibibytes_of_model": 16},
                         "register 256 MiB, and 16 GiB of the model", mebibytes=(1024, "to be registered (%(default)s)"),
                         gibibytes_of_model=(64, "to be registered, of a model (%(default)s)"))
    programs = options.build / "tests/bench"

    costs = {}
    print(f"{'':44}{'instructions':>14}{'allocations':>13}")
    for title, program, case in CASES:
        if not (programs / program).exists():
            print(f"{title:44}{'not built':>14}")
            continue
        costs[case] = cost(programs / program, case)
        print(f"{title:44}{costs[case]['instructions']:14.0f}{costs[case]['allocations']:13.2f}", flush=True)

    report = run(programs / "memory_cost", "report", options.mebibytes, options.gibibytes_of_model * 1024)
    times = report["nanoseconds"]
    if (programs / "memory_mimalloc").exists():
        times.update(run(programs / "memory_mimalloc", "report", 0))
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

    found = rows_of(costs, report)
    finish(options.build, "memory", found, costs=costs, **report)
    sys.exit(missed(found))


main()
