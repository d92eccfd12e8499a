#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""runtime.py BUILD_DIR: what the runtime costs beside code written by hand, and beside Asio's awaitable.

For each operation: instructions in user space (callgrind), system calls (strace) and allocations, each as the difference
of two runs of different length, so that starting up does not count and a busy machine does no harm. No times.

Prints a table, and writes it to BUILD_DIR/bench/runtime.json. Exits with 1 if a goal was missed.
"""
import json
import sys
from typing import NamedTuple

from rows import Row
from running import done, finish, instructions, missed, options_of, system_calls


class Case(NamedTuple):
    title: str
    name: str
    few: int
    many: int
    driver: str = ""
    threads: bool = False


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


def cost(build, case, divisor):
    """Of one operation, and prints it."""
    programs = {"asio": "runtime_asio", "faces": "asio_faces"}
    program = build / "tests/bench" / programs.get(case.name.partition("_")[0], "runtime_cost")
    driver = {"WEFT_EVENT_DRIVER": case.driver} if case.driver else {}
    few, many = max(case.few // divisor, 10), max(case.many // divisor, 100)

    def of_one(count):
        with_few, with_many = (count(program, case.name, operations, **driver) for operations in (few, many))
        return round((with_many - with_few) / (many - few), 3)

    return {"instructions": None if case.threads else of_one(instructions),
            "system_calls": of_one(lambda *command, **driver: sum(system_calls(*command, **driver).values())),
            "allocations": of_one(lambda *command, **driver: json.loads(done(*command, **driver).stdout)["allocations"])}


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
    options = options_of("the runtime beside hand-written code and Asio", {"divide": 10}, "the tenth part of everything",
                         divide=(1, "do only this part of everything: 10 for the tenth"))
    costs = {}
    print(f"{'':44}{'instructions':>14}{'system calls':>14}{'allocations':>13}")
    for case in CASES:
        item = cost(options.build, case, options.divide)
        costs[case.name + (f"_{case.driver}" if case.driver else "")] = item
        counted = "-" if item["instructions"] is None else f"{item['instructions']:.0f}"
        print(f"{case.title:44}{counted:>14}{item['system_calls']:14.2f}{item['allocations']:13.2f}", flush=True)
    found = rows_of(costs)
    finish(options.build, "runtime", found, costs=costs)
    sys.exit(missed(found))


if __name__ == "__main__":
    main()
