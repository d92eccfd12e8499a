#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""asio.py BUILD_DIR: what an operation of weft costs through each of its faces.

64 bytes there and back between two ends in one thread, over iWARP on the loopback: messages and streams, by a task on an
executor of its own, by a task inside an io_context, by asio::awaitable, by callbacks; and beside them Asio's sockets,
which bring bytes and nothing else. Counted as in runtime.py, and given for one of the round's four operations.

Prints a table, and writes it to BUILD_DIR/bench/asio.json. Exits with 1 if a goal was missed.
"""
import argparse
import json
import sys
import tempfile
from pathlib import Path

from runtime import Case, Machine

OPERATIONS = 4  # of a round
FACES = ("a task", "task"), ("a task in an io_context", "hosted"), ("asio::awaitable", "awaitable"), ("callbacks", "callback")
CASES = [Case(f"{what}: {title}", f"faces_{what}_{name}", 1000, 3000, driver="epoll")
         for what in ("message", "stream", "socket") for title, name in FACES
         if what != "socket" or name in ("awaitable", "callback")]


def main():
    parser = argparse.ArgumentParser(description="an operation through each face")
    parser.add_argument("build", type=Path)
    options = parser.parse_args()
    costs = {}
    print(f"{'one operation':44}{'instructions':>14}{'system calls':>14}{'allocations':>13}")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as directory:
        machine = Machine(options.build.resolve(), Path(directory), 1)
        for case in CASES:
            item = {what: figure / OPERATIONS for what, figure in machine.cost(case).items()}
            costs[case.name.removeprefix("faces_")] = item
            print(f"{case.title:44}{item['instructions']:14.0f}{item['system_calls']:14.2f}{item['allocations']:13.2f}",
                  flush=True)
    # A handful is what the whole run does more often if it is longer: larger tables, more memory.
    missed = [name for name, item in costs.items() if item["allocations"] > 0.01]
    for name in missed:
        print(f"allocations of {name}: MISSED, the goal is none")
    results = options.build / "bench"
    results.mkdir(exist_ok=True)
    path = results / "asio.json"
    path.write_text(json.dumps(costs, indent=2) + "\n")
    print(f"\nall figures in {path}")
    sys.exit(bool(missed))


main()
