#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""asio.py BUILD_DIR: what an operation of weft costs through each of its faces.

64 bytes there and back between two ends in one thread, over iWARP on the loopback: messages and streams, by a task on an
executor of its own, by a task inside an io_context, by asio::awaitable, by callbacks; and beside them Asio's sockets,
which bring bytes and nothing else. Counted as in runtime.py, and given for one of the round's four operations.

Prints a table, and writes it to BUILD_DIR/bench/asio.json. Exits with 1 if a goal was missed.
"""
import argparse
import sys
import tempfile
from pathlib import Path

import rows
from rows import Row
from runtime import Case, Machine

OPERATIONS = 4  # of a round
FACES = ("a task", "task"), ("a task in an io_context", "hosted"), ("asio::awaitable", "awaitable"), ("callbacks", "callback")
CASES = [Case(f"{what}: {title}", f"faces_{what}_{name}", 1000, 3000, driver="epoll")
         for what in ("message", "stream", "socket") for title, name in FACES
         if what != "socket" or name in ("awaitable", "callback")]
MOST_INSTRUCTIONS, MOST_SYSTEM_CALLS = 3000, 1.6  # of an operation that Asio begins
# A handful is what the whole run does more often if it is longer: larger tables, more memory.
MOST_ALLOCATIONS = 0.01


def rows_of(costs):
    found = []
    for case in CASES:
        name = case.name.removeprefix("faces_")
        ours = not name.startswith("socket")
        begun_by_asio = ours and name.endswith(("awaitable", "callback"))
        for what, most in (("instructions", MOST_INSTRUCTIONS), ("system_calls", MOST_SYSTEM_CALLS)):
            found.append(Row(case.title, costs[name][what], what.replace("_", " "), at_most=most if begun_by_asio else None))
        found.append(Row(case.title, costs[name]["allocations"], "allocations", at_most=MOST_ALLOCATIONS))
    return found


def main():
    parser = argparse.ArgumentParser(description="an operation through each face")
    parser.add_argument("build", type=Path)
    parser.add_argument("--quick", action="store_true", help="the tenth part of everything")
    options = parser.parse_args()
    costs = {}
    print(f"{'one operation':44}{'instructions':>14}{'system calls':>14}{'allocations':>13}")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as directory:
        machine = Machine(options.build.resolve(), Path(directory), 10 if options.quick else 1)
        for case in CASES:
            item = {what: figure / OPERATIONS for what, figure in machine.cost(case).items()}
            costs[case.name.removeprefix("faces_")] = item
            print(f"{case.title:44}{item['instructions']:14.0f}{item['system_calls']:14.2f}{item['allocations']:13.2f}",
                  flush=True)
    found = rows_of(costs)
    missed = [row for row in found if row.verdict == rows.MISSED]
    print()
    for row in missed:
        print(f"{row.what}: {row.figure:.2f} {row.unit}, MISSED, the goal is {row.goal}")
    path = options.build / "bench/asio.json"
    rows.write(path, found, costs=costs)
    print(f"{rows.count(found)}; all figures in {path}")
    sys.exit(bool(missed))


main()
