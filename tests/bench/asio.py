#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""asio.py BUILD_DIR: what an operation of weft costs through each of its faces.

64 bytes there and back between two ends in one thread, over iWARP on the loopback: messages and streams, by a task on an
executor of its own, by a task inside an io_context, by asio::awaitable, by callbacks; and beside them Asio's sockets,
which bring bytes and nothing else. Counted as in runtime.py, and given for one of the round's four operations.

Prints a table, and writes it to BUILD_DIR/bench/asio.json. Exits with 1 if a goal was missed.
"""
import sys

from rows import Row
from running import finish, missed, options_of
from runtime import Case, cost

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
    options = options_of("an operation through each face", {"divide": 10}, "the tenth part of everything",
                         divide=(1, "do only this part of everything: 10 for the tenth"))
    costs = {}
    print(f"{'one operation':44}{'instructions':>14}{'system calls':>14}{'allocations':>13}")
    for case in CASES:
        item = {what: figure / OPERATIONS for what, figure in cost(options.build, case, options.divide).items()}
        costs[case.name.removeprefix("faces_")] = item
        print(f"{case.title:44}{item['instructions']:14.0f}{item['system_calls']:14.2f}{item['allocations']:13.2f}",
              flush=True)
    found = rows_of(costs)
    finish(options.build, "asio", found, costs=costs)
    sys.exit(missed(found))


main()
