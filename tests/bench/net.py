#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""net.py BUILD_DIR: weft over iwarp beside raw TCP, libfabric and UCX over TCP, on this machine's loopback.

All measurements are taken in turn, several times over, each with both processes on cores of their own where there are
two, so that what else the machine does falls on all of them; the median counts. What is compared are medians of the
operations as well (p50), where a program tells them, and means for the others. Beside them stands what does not depend
on the machine's mood: instructions, system calls and allocations for each operation.

Prints a table, and writes it with all repetitions to BUILD_DIR/bench/net.json.
"""
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import running
from rows import Row
from running import instructions, system_calls

PATIENCE = 120  # seconds for any single measurement
KIB, MIB = 1 << 10, 1 << 20


class Machine:
    """Where the programs are and how they are started. Says what its load means for what is to come."""

    def __init__(self, build, seconds):
        self.build = build
        self.seconds = seconds
        self.cores = sorted(os.sched_getaffinity(0))
        self.log = tempfile.TemporaryFile("w+")
        self.load = os.getloadavg()[0]
        if self.load > len(self.cores) / 4:
            print(f"The machine is busy with other things, load {self.load:.1f} on {len(self.cores)} cores: "
                  "times mean little.")
        if len(self.cores) < 2:
            print("There is one core only: what spins takes it from its peer, and times mean little.")

    def finish(self, name, found, **more):
        running.finish(self.build, name, found, "runs", cores=len(self.cores), load_before=self.load,
                       seconds=self.seconds, **more)

    def pinned(self, end, command):
        """The command on the server's or the client's core."""
        command = [str(word) for word in command]
        if len(self.cores) < 2:
            return command
        return ["taskset", "-c", str(self.cores[end]), *command]

    @contextlib.contextmanager
    def server(self, *command, ready=None, environment=None):
        """Runs a server; yields the first line that it prints, if it is to be waited for."""
        with self.running(command, subprocess.PIPE if ready else self.log, environment) as process:
            yield ready(process.stdout.readline()) if ready else process

    @contextlib.contextmanager
    def started(self, *command, environment=None):
        """Runs a server; yields its process and the first line that it prints."""
        with self.running(command, subprocess.PIPE, environment) as process:
            yield process, process.stdout.readline()

    @contextlib.contextmanager
    def running(self, command, output, environment):
        process = subprocess.Popen(self.pinned(0, command), stdout=output, stderr=self.log, text=True, env=environment)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def client(self, *command, environment=None):
        try:
            return subprocess.run(self.pinned(1, command), stdout=subprocess.PIPE, stderr=self.log, text=True,
                                  env=environment, timeout=PATIENCE, check=True).stdout
        except subprocess.CalledProcessError as failure:
            self.log.seek(0)
            sys.exit(f"{' '.join(map(str, command))} failed:\n{failure.stdout}{self.log.read()}")

    def client_of_slow_starter(self, server, *command, environment=None):
        """A client of a server that does not say when it is ready: tries until it is."""
        end = time.monotonic() + 10
        while True:
            run = subprocess.run(self.pinned(1, command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 env=environment, timeout=PATIENCE, check=False)
            if run.returncode == 0:
                return run.stdout
            if time.monotonic() > end or server.poll() is not None:
                sys.exit(f"{' '.join(map(str, command))} failed:\n{run.stdout}")
            time.sleep(0.1)


def ticks(pid):
    """What the kernel's clock ticks have sampled of a process: how often it was in user space, and in the kernel."""
    user, system = map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
    return {"user_ticks": user, "system_ticks": system}


def medians_of_server(runs):
    """Of its repetitions, and the nanoseconds of a request outside the kernel. The ticks of one are too few to divide."""
    found = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    user, system = (sum(run[key] for run in runs) for key in ("user_ticks", "system_ticks"))
    return {**found, "user_ns": found["cpu_ns"] * user / max(user + system, 1)}


def port_of_ours():
    """For programs that cannot let the system choose; two runs at a time have two."""
    return 20000 + os.getpid() % 10000


# What a measurement yields: microseconds of one trip as the median and the mean, and operations per second.
def figures(p50_us, mean_us, per_second):
    return {"p50_us": p50_us, "mean_us": mean_us, "per_second": per_second}


def raw_tcp(machine, kind, how, size, trips):
    program = machine.build / "tests/bench/net_tcp"
    with machine.server(program, "serve", ready=str.strip) as port:
        run = json.loads(machine.client(program, "run", port, kind, how, size, machine.seconds))
    return figures(run["p50_ns"] / 1000 / trips, run["mean_ns"] / 1000 / trips, run["operations"] / run["seconds"])


def weft(machine, operation, quantity, size, polling="spin", depth=64, checksum="off", device="iwarp", serving=()):
    program = machine.build / "examples/weft-perf"
    common = ["--device", device, "--poll", polling, "--checksum", checksum]
    with machine.server(program, "serve", "127.0.0.1:0", "--quiet", *serving, *common,
                        ready=lambda line: line.split()[2]) as address:
        report = json.loads(machine.client(program, "run", address, "--json", "--operations", operation, "--measure",
                                           quantity, "--sizes", size, "--depth", depth, "--seconds", machine.seconds,
                                           *common))
    outcome, = report["outcomes"]
    trips = 2 if outcome["latency_is"] == "half a round trip" else 1
    mean_us = outcome["seconds"] * 1e6 / outcome["operations"] / trips
    return figures(outcome["latency_ns"]["p50"] / 1000, mean_us, outcome["operations_per_second"])


def libfabric(machine, size, iterations=20000, provider="tcp", endpoint="msg"):
    what = ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", iterations, "-S", size]
    with machine.server(*what, "-B", port_of_ours()) as server:
        said = machine.client_of_slow_starter(server, *what, "-P", port_of_ours(), "127.0.0.1")
    half_us = float(said.splitlines()[-1].split()[6])
    return figures(None, half_us, 1e6 / half_us / 2)


def ucx(machine, test, size, iterations, transports="tcp"):
    environment = {**os.environ, "UCX_TLS": transports, "UCX_NET_DEVICES": "lo"}
    port = port_of_ours()
    with machine.server("ucx_perftest", "-p", port, environment=environment) as server:
        said = machine.client_of_slow_starter(server, "ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", size,
                                              "-n", iterations, "-f", environment=environment)
    # iterations, p50, average and overall microseconds, twice MB/s, twice messages per second
    last = [line for line in said.splitlines() if re.match(r"\s*(\[thread 0\]\s*)?\d+(\s+[\d.]+){7}\s*$", line)]
    if not last:
        sys.exit(f"ucx_perftest said what this script does not understand:\n{said}")
    numbers = last[-1].replace("[thread 0]", "").split()
    return figures(float(numbers[1]), float(numbers[3]), float(numbers[7]))


MEASUREMENTS = {
    "tcp_spin_64": ("raw TCP, spinning", lambda m: raw_tcp(m, "pingpong", "spin", 64, 2)),
    "weft_spin_64": ("weft send, spinning", lambda m: weft(m, "send", "latency", "64")),
    "libfabric_64": ("fi_pingpong -p tcp (mean)", lambda m: libfabric(m, 64)),
    "ucx_64": ("ucx_perftest tag_lat", lambda m: ucx(m, "tag_lat", 64, 30000)),
    "tcp_block_64": ("raw TCP, blocking", lambda m: raw_tcp(m, "pingpong", "block", 64, 2)),
    "weft_sleep_64": ("weft send, sleeping", lambda m: weft(m, "send", "latency", "64", polling="sleep")),
    "weft_adaptive_64": ("weft send, adaptive", lambda m: weft(m, "send", "latency", "64", polling="adaptive")),
    "tcp_round_64": ("raw TCP, spinning", lambda m: raw_tcp(m, "pingpong", "spin", 64, 1)),
    "weft_read_64": ("weft read, spinning", lambda m: weft(m, "read", "latency", "64")),
    "tcp_spin_1M": ("raw TCP, spinning", lambda m: raw_tcp(m, "stream", "spin", MIB, 1)),
    "tcp_block_1M": ("raw TCP, blocking", lambda m: raw_tcp(m, "stream", "block", MIB, 1)),
    "weft_write_1M": ("weft write", lambda m: weft(m, "write", "bandwidth", "1M", depth=16)),
    "weft_write_1M_crc": ("weft write, CRC", lambda m: weft(m, "write", "bandwidth", "1M", depth=16, checksum="on")),
    "weft_write_1M_late": ("weft write, CRC, direct", lambda m: weft(m, "write", "bandwidth", "1M", depth=16,
                                                                     checksum="late")),
    "weft_write_64": ("weft write, 64 in flight", lambda m: weft(m, "write", "bandwidth", "64", depth=64)),
    "ucx_put_64": ("ucx_perftest ucp_put_bw", lambda m: ucx(m, "ucp_put_bw", 64, 300000)),
}


PROGRAMS = {"ucx": "ucx_perftest", "libfabric": "fi_pingpong"}  # of others, by how the names of their measurements begin


def available(measurements):
    """Those whose programs are there."""
    return {name: item for name, item in measurements.items()
            if shutil.which(PROGRAMS.get(name.split("_")[0], "true")) is not None}


def usual(item):
    """The microseconds of a typical operation."""
    return item["p50_us"] if item["p50_us"] is not None else item["mean_us"]


def gigabytes(item, size):
    return item["per_second"] * size / 1e9


def of_megabytes(item):
    return gigabytes(item, MIB)


def millions(item):
    return item["per_second"] / 1e6


def rows_of_table(table, measurements, median):
    """Of lines that say what is compared: unit and how it is read from a measurement, whether less is better, ours and
    its goal, and others with the goal for the ratio of ours to theirs. What has not been measured is left out."""
    found = []
    for what, unit, read, less, ours, wanted, others in table:
        if ours not in median:
            continue
        name, value = f"{what}: {measurements[ours][0]}", read(median[ours])
        direction = "at_most" if less else "at_least"
        if wanted is not None or not others:
            found.append(Row(name, value, unit, **{direction: wanted}))
        found += [Row(name, value, unit, read(median[other]), measurements[other][0], **{direction: at})
                  for other, at in others.items() if other in median]
    return found


def comparisons(median):
    faster_tcp = max(("tcp_spin_1M", "tcp_block_1M"), key=lambda name: median[name]["per_second"])
    return rows_of_table((
        ("64 B half round trip", "us", usual, True, "weft_spin_64", None, {"tcp_spin_64": 1.1}),
        ("64 B half round trip", "us", usual, True, "weft_sleep_64", None, {"tcp_block_64": 1.05}),
        ("64 B half round trip", "us", usual, True, "weft_adaptive_64", None, {"tcp_spin_64": 1.12}),
        ("64 B read round trip", "us", usual, True, "weft_read_64", None, {"tcp_round_64": 2.5}),
        ("1 MiB writes", "GB/s", of_megabytes, False, "weft_write_1M", None, {faster_tcp: 1.0}),
        ("1 MiB writes", "GB/s", of_megabytes, False, "weft_write_1M_crc", None, {faster_tcp: 0.9}),
        # Placed where they belong as they come, and checked afterwards.
        ("1 MiB writes", "GB/s", of_megabytes, False, "weft_write_1M_late", None, {faster_tcp: 0.95}),
        ("64 B half round trip", "us", usual, True, "libfabric_64", None, {"tcp_spin_64": None}),
        ("64 B half round trip", "us", usual, True, "ucx_64", None, {"tcp_spin_64": None}),
        ("64 B writes", "M/s", millions, False, "weft_write_64", None, {"ucx_put_64": 5}),
    ), MEASUREMENTS, median)


GOAL_INSTRUCTIONS = {"send_64": 2500}


def rows_of_costs(fabric, costs, goals):
    return [Row(f"{operation} over {fabric}, both ends", item["instructions"], "instructions", at_most=goals.get(operation))
            for operation, item in costs.items()]


SENDERS = 64  # tasks of send_64_beside in net_cost.cpp


def row_of_turn(costs):
    """What a turn of all of them sends is one call; another one brings the receiver's credits back."""
    calls = costs["send_64_beside"]["by_name"]
    sent = SENDERS * sum(calls.get(name, 0) for name in ("sendto", "sendmsg"))
    return Row(f"64 B sends over iwarp, {SENDERS} tasks, one of each", sent, "calls that send", at_most=2.5)


COSTS = {  # operation of net_cost: two counts whose difference is measured
    "send_64": (1000, 5000),
    "send_64_beside": (640, 6400),
    "write_64": (1000, 5000),
    "read_64": (1000, 5000),
    "write_1M": (20, 100),
}


# Else each byte of a large copy counts as one instruction: callgrind takes `rep movsb` for a loop.
COPIES_AT_ONCE = {"GLIBC_TUNABLES": f"glibc.cpu.x86_rep_movsb_threshold={1 << 30}"}


def cost(build, operation, device="iwarp", counts=None):
    few, many = counts or COSTS[operation]
    with_few, with_many = ([build / "tests/bench/net_cost", operation, count, device] for count in (few, many))
    said = json.loads(running.done(*with_many).stdout)
    fewer_calls = system_calls(*with_few)
    calls = {name: (number - fewer_calls.get(name, 0)) / (many - few)
             for name, number in system_calls(*with_many).items()}
    calls = {name: round(number, 3) for name, number in calls.items() if number >= 0.01}
    return {
        "driver": said["driver"],
        "instructions": (instructions(*with_many, **COPIES_AT_ONCE) - instructions(*with_few, **COPIES_AT_ONCE))
                        / (many - few),
        "system_calls": round(sum(calls.values()), 3),
        "by_name": calls,
        "allocations": said["allocations"] / said["operations"],
    }


def print_costs(costs):
    print("for each operation, both ends together:")
    print(f"{'':16}{'instructions':>14}{'system calls':>14}{'allocations':>13}")
    for operation, item in costs.items():
        names = ", ".join(f"{name} {number:g}" for name, number in item["by_name"].items())
        print(f"{operation:16}{item['instructions']:14.0f}{item['system_calls']:14.2f}{item['allocations']:13g}  {names}")


def median_of(runs):
    return {key: None if runs[0][key] is None else statistics.median(run[key] for run in runs) for key in runs[0]}


def take_turns(machine, repetitions, measurements, measure=lambda machine, what: what(machine), median=median_of):
    """The runs of each measurement, which has a title and what `measure` is given, and their medians."""
    runs = {name: [] for name in measurements}
    for number in range(repetitions):
        names = list(measurements) if number % 2 == 0 else list(reversed(measurements))
        for name in names:
            if sys.stderr.isatty():
                print(f"\r\x1b[K{number + 1} of {repetitions}: {name}", end="", file=sys.stderr, flush=True)
            runs[name].append(measure(machine, *measurements[name][1:]))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return runs, {name: median(of) for name, of in runs.items()}


def wait_until_answering(ask, process, who):
    """A server that does not say when it is ready; returns what it answers."""
    end = time.monotonic() + 10
    while True:
        try:
            return ask()
        except OSError as failure:
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{who} does not answer: {failure}")
            time.sleep(0.02)


def compare(name, description, device, measurements, rows_of_medians, rows_of_costs):
    """The whole benchmark: measures all in turn, and counts what the operations cost over the device."""
    options = running.options_of(description, {"repetitions": 3, "seconds": 0.3}, "3 repetitions of 0.3 seconds",
                                 repetitions=(5, "of every measurement (default: %(default)s)"),
                                 seconds=(1.0, "that one takes (default: %(default)s)"),
                                 no_costs=(False, "leave out instructions, system calls and allocations"))
    machine = Machine(options.build, options.seconds)
    runs, median = take_turns(machine, options.repetitions, available(measurements))
    found, costs = rows_of_medians(median), {}
    if not options.no_costs:
        costs = {operation: cost(machine.build, operation, device) for operation in COSTS}
        found += rows_of_costs(costs)
        print_costs(costs)
    machine.finish(name, found, costs=costs, medians=median, runs=runs)


def main():
    compare("net", "weft over iwarp beside raw TCP, libfabric and UCX", "iwarp", MEASUREMENTS, comparisons,
            lambda costs: [*rows_of_costs("iwarp", costs, GOAL_INSTRUCTIONS), row_of_turn(costs)])


if __name__ == "__main__":
    main()
