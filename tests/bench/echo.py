#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""echo.py BUILD_DIR: a TCP echo server of weft beside Asio, libuv and epoll by hand.

Each server has one core, and the same load generator the other: so many connections with one request outstanding on
each. The repetitions take turns, so that what else the machine does falls on all; the medians count. Of a server, the
processor time of a request is told as well, its own and the kernel's, with the same goals turned round: it says more
than requests per second where the machine is shared, and where the load generator has more to do than the server.

Prints a table, and writes it with all repetitions to BUILD_DIR/bench/echo.json.
"""
import json
import os

from net import Machine, medians_of_server, take_turns, ticks
from rows import Row
from running import options_of

CONNECTIONS, BYTES = 100, 512
SERVERS = {  # what it is called, the program and its words, and its environment
    "weft_epoll": ("weft on epoll", ["echo_weft"], {"WEFT_EVENT_DRIVER": "epoll"}),
    "weft_io_uring": ("weft on io_uring", ["echo_weft"], {"WEFT_EVENT_DRIVER": "io_uring"}),
    "asio": ("Asio, coroutines", ["echo_asio", "coroutines"], {}),
    "asio_callbacks": ("Asio, callbacks", ["echo_asio", "callbacks"], {}),
    "libuv": ("libuv", ["echo_uv"], {}),
    "epoll": ("epoll by hand", ["echo_epoll"], {}),
}
GOALS = {"asio": 1.5, "asio_callbacks": None, "libuv": 1.3, "epoll": 0.9}  # of requests per second, of weft's
BUSY_FROM = 0.97  # of its core, in a server that never waits


def echo(machine, command, environment):
    programs = machine.build / "tests/bench"
    with machine.started(programs / command[0], *command[1:], environment={**os.environ, **environment}) as (process, said):
        run = json.loads(machine.client(programs / "echo_load", said.strip(), process.pid, CONNECTIONS, BYTES,
                                        machine.seconds))
        sampled = ticks(process.pid)
    return {
        "per_second": run["requests"] / run["seconds"],
        "cpu_ns": run["server_cpu_seconds"] * 1e9 / run["requests"],
        **sampled,
        "busy": run["server_cpu_seconds"] / run["seconds"],
        "load_busy": run["load_cpu_seconds"] / run["seconds"],
    }


def what_held_it_up(item):
    if item["busy"] >= BUSY_FROM:
        return ""
    return "  it waited for the load" if item["load_busy"] >= BUSY_FROM else "  others had its core"


def rows_of(median):
    found = []
    for ours in ("weft_epoll", "weft_io_uring"):
        for other, goal in GOALS.items():
            if other in median:
                found.append(Row(f"TCP echo of {BYTES} B: {SERVERS[ours][0]}", median[ours]["per_second"], "requests/s",
                                 median[other]["per_second"], SERVERS[other][0], at_least=goal))
    # How far ahead of the others a server can be here at all: the kernel's part is everyone's.
    found += [Row(f"TCP echo of {BYTES} B: epoll by hand", median["epoll"]["per_second"], "requests/s",
                  median[other]["per_second"], SERVERS[other][0]) for other in ("asio", "libuv") if other in median]
    for what, key in ("server's time for an echo", "cpu_ns"), ("its part outside the kernel", "user_ns"):
        for ours in ("weft_epoll", "weft_io_uring"):
            found += [Row(f"{what}: {SERVERS[ours][0]}", median[ours][key], "ns", median[other][key], SERVERS[other][0],
                          at_most=1 / goal if goal and key == "cpu_ns" else None)
                      for other, goal in GOALS.items() if other in median]
    return found


def main():
    options = options_of("an echo server of weft beside Asio, libuv and epoll by hand",
                         {"repetitions": 5, "seconds": 0.4}, "5 repetitions of 0.4 seconds", repetitions=(7, "of every server (default: %(default)s)"),
                         seconds=(1.0, "that one takes (default: %(default)s)"))
    machine = Machine(options.build, options.seconds)
    present = {name: server for name, server in SERVERS.items()
               if (machine.build / "tests/bench" / server[1][0]).exists()}
    for name in SERVERS.keys() - present.keys():
        print(f"{SERVERS[name][0]} is left out: {SERVERS[name][1][0]} was not built")

    runs, median = take_turns(machine, options.repetitions, present, echo, medians_of_server)
    print(f"\n{CONNECTIONS} connections, requests of {BYTES} B, medians of {options.repetitions} repetitions:")
    print(f"{'':20}{'requests/s':>12}{'server ns':>11}{'user ns':>9}{'busy':>7}{'load busy':>11}")
    for name, item in median.items():
        print(f"{SERVERS[name][0]:20}{item['per_second']:12.0f}{item['cpu_ns']:11.0f}{item['user_ns']:9.0f}{100 * item['busy']:6.0f}%"
              f"{100 * item['load_busy']:10.0f}%{what_held_it_up(item)}")
    machine.finish("echo", rows_of(median), medians=median, runs=runs)


if __name__ == "__main__":
    main()
