#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""http_servers.py BUILD_DIR: examples/http beside nginx and Boost.Beast, asked by wrk.

Each server has one core, and wrk the other: so many connections that are kept, and a page of a few bytes. The
repetitions take turns, so that what else the machine does falls on all; the medians count. Of a server, the processor
time of a request is told as well, its own and the kernel's, with the same goals turned round: it says more than requests
per second where the machine is shared, and where wrk has more to do than the server. All serve the same page; nginx's
answers name the server and the date as well, which are 60 bytes more of each.

Prints a table, and writes it with all repetitions to BUILD_DIR/bench/http.json. The script is not called http.py, which
Python would take for its own package of that name.
"""
import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from net import Machine, medians_of_server, port_of_ours, take_turns, ticks, wait_until_answering
from rows import Row
from running import options_of

CONNECTIONS = 100
PAGE = b"It works.\n"
PATIENCE = 10  # seconds until a server answers

# One worker, no log, a page out of its configuration rather than out of a file, and no end to a kept connection.
NGINX = """
daemon off;
pid {directory}/pid;
error_log {directory}/error.log;
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {directory}; proxy_temp_path {directory}; fastcgi_temp_path {directory};
  uwsgi_temp_path {directory}; scgi_temp_path {directory};
  keepalive_requests 1000000000;
  default_type text/plain;
  server {{
    listen 127.0.0.1:{port};
    location = / {{ return 200 "It works.\\n"; }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(machine):
    port = port_of_ours()
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as directory:
        configuration = Path(directory) / "nginx.conf"
        configuration.write_text(NGINX.format(directory=directory, port=port))
        # Where it is started as root it has its worker be another user, who writes nothing there.
        with machine.server(nginx_program(), "-c", configuration, "-p", directory) as master:
            wait_until_answering(lambda: page_at(port), master, "nginx")
            worker, = Path(f"/proc/{master.pid}/task/{master.pid}/children").read_text().split()
            yield port, int(worker)


@contextlib.contextmanager
def weft(machine, driver):
    command = [machine.build / "examples/http", "serve", "tcp://127.0.0.1:0"]
    with machine.started(*command, environment={**os.environ, "WEFT_EVENT_DRIVER": driver}) as (process, said):
        yield int(said.rpartition(":")[2]), process.pid


@contextlib.contextmanager
def beast(machine):
    with machine.started(machine.build / "tests/bench/http_beast") as (process, said):
        yield int(said), process.pid


def nginx_program():
    """Debian has it where the paths of users do not lead."""
    return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")


SERVERS = {
    "weft_epoll": ("weft on epoll", lambda machine: weft(machine, "epoll")),
    "weft_io_uring": ("weft on io_uring", lambda machine: weft(machine, "io_uring")),
    "nginx": ("nginx", nginx),
    "beast": ("Boost.Beast, coroutines", beast),
}
GOALS = {"nginx": 1.0, "beast": 1.5}  # of requests per second, of weft's
BUSY_FROM = 0.97  # of its core, in a server that never waits


def address_of(port):
    return f"http://127.0.0.1:{port}/"


def page_at(port):
    return urllib.request.urlopen(address_of(port), timeout=PATIENCE).read()


def processor_seconds(pid):
    """A process's time on processors, from the clock that clock_getcpuclockid(3) finds."""
    return time.clock_gettime(~pid << 3 | 2)


def ask(machine, server):
    with server(machine) as (port, pid):
        if page_at(port) != PAGE:
            sys.exit(f"{address_of(port)} has another page")
        before = processor_seconds(pid)
        said = machine.client("wrk", "--threads", 1, "--connections", CONNECTIONS, "--duration",
                              f"{max(1, round(machine.seconds))}s", address_of(port))
        took = processor_seconds(pid) - before
        sampled = ticks(pid)
    found = re.search(r"(\d+) requests in ([\d.]+)s", said)
    if not found or "errors" in said or "Non-2xx" in said:
        sys.exit(f"wrk has not got the pages:\n{said}")
    requests, seconds = int(found[1]), float(found[2])
    return {"per_second": requests / seconds, "cpu_ns": took * 1e9 / requests, "busy": took / seconds, **sampled}


def rows_of(median):
    found = []
    ours = [name for name in ("weft_epoll", "weft_io_uring") if name in median]
    for what, key, unit in (("HTTP page", "per_second", "requests/s"), ("server's time for a page", "cpu_ns", "ns"),
                            ("its part outside the kernel", "user_ns", "ns")):
        found += [Row(f"{what}: {SERVERS[name][0]}", median[name][key], unit, median[other][key], SERVERS[other][0],
                      at_least=goal if key == "per_second" else None, at_most=1 / goal if key == "cpu_ns" else None)
                  for name in ours for other, goal in GOALS.items() if other in median]
    return found


def present(machine):
    there = {"weft_epoll": (machine.build / "examples/http").exists(), "nginx": nginx_program() is not None,
             "beast": (machine.build / "tests/bench/http_beast").exists()}
    there["weft_io_uring"] = there["weft_epoll"]
    for name in SERVERS:
        if not there[name]:
            print(f"{SERVERS[name][0]} is left out: it is not there")
    return {name: server for name, server in SERVERS.items() if there[name]}


def main():
    options = options_of("examples/http beside nginx and Boost.Beast, asked by wrk", {"repetitions": 3, "seconds": 1},
                         "3 repetitions of 1 second", repetitions=(7, "of every server (default: %(default)s)"),
                         seconds=(2, "that one takes (default: %(default)s)"))
    machine = Machine(options.build, options.seconds)
    if shutil.which("wrk") is None:
        sys.exit("there is no wrk (Debian: wrk)")
    runs, median = take_turns(machine, options.repetitions, present(machine), ask, medians_of_server)
    print(f"\n{CONNECTIONS} connections, a page of {len(PAGE)} B, medians of {options.repetitions} repetitions:")
    print(f"{'':26}{'requests/s':>12}{'server ns':>11}{'user ns':>9}{'busy':>7}")
    for name, item in median.items():
        waits = "  it waited for wrk, or others had its core" if item["busy"] < BUSY_FROM else ""
        print(f"{SERVERS[name][0]:26}{item['per_second']:12.0f}{item['cpu_ns']:11.0f}{item['user_ns']:9.0f}"
              f"{100 * item['busy']:6.0f}%{waits}")
    machine.finish("http", rows_of(median), medians=median, runs=runs)


if __name__ == "__main__":
    main()
