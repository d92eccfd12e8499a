#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""redis_servers.py BUILD_DIR: examples/kv beside redis-server, asked by redis-benchmark.

Each server has one core, and redis-benchmark the other: 50 connections that set and get one key, with one command on
its way on each, and with sixteen. The repetitions take turns, so that what else the machine does falls on all; the
medians count. Of a server, the processor time of a command is told as well, its own and the kernel's: it says more than
commands per second where the machine is shared, and where redis-benchmark has more to do than the server. The script is
not called redis.py, which Python would take for a package of that name.

Prints a table, and writes it with all repetitions to BUILD_DIR/bench/redis.json.
"""
import contextlib
import csv
import os
import re
import shutil
import socket
import sys

from http_servers import processor_seconds
from net import Machine, medians_of_server, port_of_ours, take_turns, ticks, wait_until_answering
from rows import Row
from running import options_of

CONNECTIONS = 50
DEPTHS = {1: 50_000, 16: 500_000}  # commands under way on a connection, and how many of each kind in a second, about
PATIENCE = 10  # seconds until a server answers


@contextlib.contextmanager
def redis(machine):
    port = port_of_ours()
    with machine.server("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no") as process:
        wait_until_answering(lambda: socket.create_connection(("127.0.0.1", port), PATIENCE).close(), process,
                             "redis-server")
        yield port, process.pid


@contextlib.contextmanager
def weft(machine, driver):
    command = [machine.build / "examples/kv", "--device", "iwarp", "serve", "--listen", "127.0.0.1:0", "--tcp-port", "0",
               "--resp-port", "0", "--keys", "100000"]
    with machine.started(*command, environment={**os.environ, "WEFT_EVENT_DRIVER": driver}) as (process, _):
        said = process.stdout.readline()
        yield int(re.match(r"RESP on 127\.0\.0\.1:(\d+) ", said)[1]), process.pid


SERVERS = {
    "weft_epoll": ("weft on epoll", lambda machine: weft(machine, "epoll")),
    "weft_io_uring": ("weft on io_uring", lambda machine: weft(machine, "io_uring")),
    "redis": ("redis-server", redis),
}
GOAL = 1.0  # of commands per second, of redis-server's


def ask(machine, server):
    """The rates of SET and GET at each depth, and the server's time for a command."""
    found, commands = {}, 0
    with server(machine) as (port, pid):
        before = processor_seconds(pid)
        for depth, a_second in DEPTHS.items():
            count = round(a_second * machine.seconds)
            said = machine.client("redis-benchmark", "-p", port, "-t", "set,get", "-c", CONNECTIONS, "-P", depth,
                                  "-n", count, "--csv")
            rates = {row["test"].lower(): float(row["rps"]) for row in csv.DictReader(said.splitlines())}
            if rates.keys() != {"set", "get"}:
                sys.exit(f"redis-benchmark has not told its rates:\n{said}")
            found.update({f"{what}_{depth}": rate for what, rate in rates.items()})
            commands += 2 * count
        took = processor_seconds(pid) - before
        return {**found, "cpu_ns": took * 1e9 / commands, **ticks(pid)}


def rows_of(median):
    found = []
    for ours in ("weft_epoll", "weft_io_uring"):
        for depth in DEPTHS:
            for what in ("get", "set"):
                key = f"{what}_{depth}"
                found.append(Row(f"{what.upper()}, {depth} at a time: {SERVERS[ours][0]}", median[ours][key], "commands/s",
                                 median["redis"][key], "redis-server", at_least=GOAL))
        found.append(Row(f"server's time for a command: {SERVERS[ours][0]}", median[ours]["cpu_ns"], "ns",
                         median["redis"]["cpu_ns"], "redis-server"))
    return found


def main():
    options = options_of("examples/kv beside redis-server, asked by redis-benchmark", {"repetitions": 3, "seconds": 0.5},
                         "3 repetitions of half a second each",
                         repetitions=(7, "of every server (default: %(default)s)"),
                         seconds=(1.0, "that each kind of command takes, about (default: %(default)s)"))
    machine = Machine(options.build, options.seconds)
    for program in ("redis-benchmark", "redis-server"):
        if shutil.which(program) is None:
            sys.exit(f"there is no {program} (Debian: redis-tools, redis-server)")
    if not (machine.build / "examples/kv").exists():
        sys.exit("there is no example kv in the build")
    runs, median = take_turns(machine, options.repetitions, SERVERS, ask, medians_of_server)
    print(f"{CONNECTIONS} connections, medians of {options.repetitions} repetitions, commands per second:")
    print(f"{'':20}" + "".join(f"{what.upper()} -P {depth:<4}".rjust(14) for depth in DEPTHS for what in ("set", "get"))
          + f"{'server ns':>12}")
    for name, item in median.items():
        print(f"{SERVERS[name][0]:20}" + "".join(f"{item[f'{what}_{depth}']:14.0f}" for depth in DEPTHS for what in ("set", "get"))
              + f"{item['cpu_ns']:12.0f}")
    machine.finish("redis", rows_of(median), medians=median, runs=runs)


if __name__ == "__main__":
    main()
