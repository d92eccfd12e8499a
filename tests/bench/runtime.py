#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""runtime.py BUILD_DIR: what the runtime costs beside code written by hand, and beside Asio's awaitable.

For each operation: instructions in user space (callgrind), system calls (strace) and allocations, each as the difference
of two runs of different length, so that starting up does not count and a busy machine does no harm. No times.

Prints a table, and writes it to BUILD_DIR/bench/runtime.json. Exits with 1 if a goal was missed.
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


class Case:
    def __init__(self, title, name, few, many, driver=None, threads=False):
        self.title, self.name, self.few, self.many, self.driver, self.threads = title, name, few, many, driver, threads


CASES = [
    Case("await a ready task: bare coroutine", "bare_await", 1000, 11000),
    Case("await a ready task: weft", "weft_await", 1000, 11000),
    Case("await a ready task: Asio", "asio_await", 1000, 11000),
    Case("scope, spawn and join: weft", "weft_spawn", 1000, 11000),
    Case("spawn into a scope, join: weft", "weft_spawn_more", 1000, 11000),
    Case("spawn and join: Asio", "asio_spawn", 1000, 11000),
    Case("channel hop: weft", "weft_channel", 1000, 11000),
    Case("channel hop: Asio", "asio_channel", 1000, 11000),
    Case("timer, arm and cancel, all at once: weft", "weft_timer", 100000, 1000000),
    Case("timer, arm and cancel, all at once: Asio", "asio_timer", 100000, 1000000),
    Case("socket request: raw epoll", "epoll_socket", 1000, 6000),
    Case("socket request: raw io_uring", "uring_socket", 1000, 6000),
    Case("socket request: weft on epoll", "weft_socket", 1000, 6000, driver="epoll"),
    Case("socket request: weft on io_uring", "weft_socket", 1000, 6000, driver="io_uring"),
    Case("socket request: Asio", "asio_socket", 1000, 6000),
    Case("wake a sleeping ring: an eventfd, by hand", "eventfd_wake", 1000, 6000),
    Case("wake a sleeping ring: MSG_RING, by hand", "msg_ring_wake", 1000, 6000),
    Case("an idle millisecond: weft", "weft_idle", 200, 1200, driver="io_uring"),
    Case("a completion under load: weft", "weft_loaded", 1000, 11000, driver="io_uring"),
    # valgrind runs one thread at a time and would count the waiting.
    Case("to a sleeping executor and back: weft", "weft_wake_asleep", 100, 600, threads=True),
    Case("to an awake executor and back: weft", "weft_wake_awake", 100, 600, threads=True),
]


class Machine:
    def __init__(self, build, directory, divisor):
        self.build, self.directory, self.divisor = build, directory, divisor

    def command(self, case, count):
        programs = {"asio": "runtime_asio", "faces": "asio_faces"}
        program = programs.get(case.name.partition("_")[0], "runtime_cost")
        return [str(self.build / "tests/bench" / program), case.name, str(count)]

    def run(self, case, prefix, count):
        environment = dict(os.environ)
        if case.driver:
            environment["WEFT_EVENT_DRIVER"] = case.driver
        run = subprocess.run(prefix + self.command(case, count), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, env=environment, timeout=PATIENCE, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"{' '.join(prefix + self.command(case, count))} failed:\n{run.stderr[-2000:]}")
        return run

    def instructions(self, case, count):
        if case.threads:
            return 0
        out = self.directory / "callgrind.out"
        run = self.run(case, ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"], count)
        return int(re.search(r"Collected : (\d+)", run.stderr)[1])

    def system_calls(self, case, count):
        out = self.directory / "strace.out"
        self.run(case, ["strace", "-f", "-c", "-U", "name,calls", "-o", str(out)], count)
        rows = [line.split() for line in out.read_text().splitlines()]
        return sum(int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit() and row[0] != "total")

    def allocations(self, case, count):
        return json.loads(self.run(case, [], count).stdout)["allocations"]

    def cost(self, case):
        few, many = max(case.few // self.divisor, 10), max(case.many // self.divisor, 100)
        figures = {}
        for what in (self.instructions, self.system_calls, self.allocations):
            figures[what.__name__] = round((what(case, many) - what(case, few)) / (many - few), 3)
        if case.threads:
            figures["instructions"] = None
        return figures


def rows_of(costs):
    def instructions(what, ours, other=None, other_is="", at_most=None):
        return Row(what, costs[ours]["instructions"], "instructions", other and costs[other]["instructions"], other_is,
                   at_most=at_most)

    found = []
    for driver in ("epoll", "io_uring"):
        what, ours = f"socket request on {driver}", f"weft_socket_{driver}"
        found += [instructions(what, ours, at_most=600),
                  instructions(what, ours, "epoll_socket", "epoll by hand", 2.5),
                  instructions(what, ours, "asio_socket", "Asio", 0.25)]
    found += [
        instructions("await a ready task", "weft_await", "bare_await", "bare coroutine"),
        instructions("await a ready task", "weft_await", "asio_await", "Asio"),
        instructions("spawn into a scope, join", "weft_spawn_more", at_most=400),
        instructions("spawn into a scope, join", "weft_spawn_more", "asio_spawn", "Asio", 1 / 3),
        instructions("channel hop", "weft_channel", at_most=350),
        instructions("channel hop", "weft_channel", "asio_channel", "Asio"),
        instructions("timer, arm and cancel, all at once", "weft_timer", "asio_timer", "Asio"),
    ]
    for name in ("weft_await", "weft_spawn", "weft_channel", "weft_socket_epoll", "weft_socket_io_uring"):
        found.append(Row(f"allocations of {name}", costs[name]["allocations"], "allocations", at_most=0))
    for what, name, most in (("an idle millisecond", "weft_idle_io_uring", 0.01),
                             ("a completion under load", "weft_loaded_io_uring", 0.01),
                             ("to an awake executor and back", "weft_wake_awake", 0.05)):
        found.append(Row(what, costs[name]["system_calls"], "system calls", at_most=most))
    return found


def main():
    parser = argparse.ArgumentParser(description="the runtime beside hand-written code and Asio")
    parser.add_argument("build", type=Path)
    parser.add_argument("--divide", type=int, default=1, metavar="N", help="do only the N-th part of everything")
    parser.add_argument("--quick", action="store_true", help="the tenth part of everything")
    options = parser.parse_args()
    if options.quick:
        options.divide = 10
    costs = {}
    print(f"{'':44}{'instructions':>14}{'system calls':>14}{'allocations':>13}")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as directory:
        machine = Machine(options.build.resolve(), Path(directory), options.divide)
        for case in CASES:
            item = machine.cost(case)
            costs[case.name + (f"_{case.driver}" if case.driver else "")] = item
            instructions = "-" if item["instructions"] is None else f"{item['instructions']:.0f}"
            print(f"{case.title:44}{instructions:>14}{item['system_calls']:14.2f}{item['allocations']:13.2f}", flush=True)
    found = rows_of(costs)
    print("\n" + "\n".join(rows.table(found)))
    path = options.build / "bench/runtime.json"
    rows.write(path, found, costs=costs)
    print(f"\n{rows.count(found)}; all figures in {path}")
    sys.exit(any(row.verdict == rows.MISSED for row in found))


if __name__ == "__main__":
    main()
