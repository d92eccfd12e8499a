#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rping_test.py PROGRAMS [--report FILE]: rping(1) over the kernel's siw against weft's iWARP, in a virtual machine.

In both roles, with each event driver, with CRCs that one end, both or none want; siw as it comes and as a peer that
demands CRCs, of the first revision of MPA, or that waits for a ready signal (RFC 5044, RFC 6581). `native` is weft that
takes the peer for another weft until it sees that it is not.
"""
import argparse
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

PATIENCE = 60
PORT = 7174
SIW = Path("/sys/module/siw/parameters")
HERE, THERE = "10.77.0.1", "10.77.0.2"  # either may be anybody's: tests/vm/devices.sh


class Failure(Exception):
    """What went wrong, in words."""


class Case:
    def __init__(self, role, driver="epoll", checksum=None, size=64, rounds=200, addresses=(HERE, THERE), native=False,
                 **siw):
        self.role, self.driver, self.checksum, self.size, self.rounds = role, driver, checksum, size, rounds
        self.addresses, self.native, self.siw = addresses, native, siw
        words = [role, driver, {None: "crc_unsaid", True: "crc", False: "no_crc"}[checksum], f"{size}_bytes"]
        words += ["ipv6"] * (":" in addresses[0]) + ["native"] * native + [f"{name}_{value}" for name, value in siw.items()]
        self.name = "_".join(words)

    def run(self, programs):
        parameters = {"mpa_crc_required": "N", "mpa_version": "2", "peer_to_peer": "N", **self.siw}
        for name, value in parameters.items():
            (SIW / name).write_text(value)
        client, server = self.addresses
        weft = [programs / "tests/interop/rping_peer", "serve" if self.role == "weft_serves" else "ping",
                f"[{server}]:{PORT}" if ":" in server else f"{server}:{PORT}", "--rounds", self.rounds]
        if self.native:
            weft.append("--native")
        if self.checksum is not None:
            weft += ["--checksum", "true" if self.checksum else "false"]
        rping = ["rping", "-a", server, "-p", PORT, "-V"]
        if self.role == "weft_serves":
            rping += ["-c", "-I", client, "-C", self.rounds, "-S", self.size]
            said = self.run_both(weft, lambda: port_is_open(server), rping)
        else:
            said = self.run_both([*rping, "-s", "-S", self.size], rdma_listener, [*weft, "--size", self.size])
        wanted = "with" if self.checksum or parameters["mpa_crc_required"] == "Y" else "without"
        if self.checksum is not None and f", {wanted} CRC" not in said:
            raise Failure(f"they have not agreed to go {wanted} CRCs:\n{said}")

    def run_both(self, server, ready, client):
        """What they say, once both have ended well."""
        environment = {**os.environ, "WEFT_EVENT_DRIVER": self.driver}
        with start(server, environment) as serving:
            try:
                wait_for(lambda: ready() or serving.poll() is not None, "a listener")
                with start(client, environment) as asking:
                    said = finish(asking, "client") + finish(serving, "server")
                    statuses = asking.returncode, serving.returncode
            finally:
                serving.kill()
        if statuses != (0, 0):
            raise Failure(f"client and server ended with {statuses}:\n{said}")
        return said


def start(command, environment):
    return subprocess.Popen([str(word) for word in command], env=environment, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


def finish(process, who):
    try:
        return process.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired as late:
        process.kill()
        raise Failure(f"the {who} is not done after {PATIENCE} s:\n{process.communicate()[0]}") from late


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise Failure(f"waited in vain for {what}")
        time.sleep(0.02)


def port_is_open(address):
    table = Path("/proc/net/tcp6" if ":" in address else "/proc/net/tcp").read_text()
    return any(row.split()[1].endswith(f":{PORT:04X}") and row.split()[3] == "0A" for row in table.splitlines()[1:])


def rdma_listener():
    return "LISTEN" in subprocess.run(["rdma", "resource", "show", "cm_id"], check=True, text=True,
                                      stdout=subprocess.PIPE).stdout


def cases():
    for role in ("weft_serves", "weft_asks"):
        for driver, checksum in itertools.product(("io_uring", "epoll"), (True, False)):
            yield Case(role, driver, checksum)
        yield Case(role, "io_uring")
        yield Case(role, checksum=True, size=65535, rounds=20)
        yield Case(role, checksum=False, size=65535, rounds=20)
        yield Case(role, rounds=20, addresses=("fd77::1", "fd77::2"))
        yield Case(role, rounds=20, native=True)
    yield Case("weft_serves", checksum=False, rounds=20, mpa_crc_required="Y")
    yield Case("weft_serves", checksum=True, rounds=20, mpa_version="1")
    yield Case("weft_serves", checksum=False, rounds=20, mpa_version="1")
    yield Case("weft_serves", rounds=20, peer_to_peer="Y")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=Path, help="the build directory")
    parser.add_argument("--only", default="", help="of a case's name")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    report, failures = ElementTree.Element("testsuites"), 0
    for case in cases():
        if options.only not in case.name:
            continue
        result = ElementTree.SubElement(report, "testcase", classname="rping", name=case.name, status="run",
                                        result="completed")
        try:
            case.run(options.programs)
            print(f"ok      {case.name}")
        except Failure as failure:
            failures += 1
            ElementTree.SubElement(result, "failure", message=str(failure))
            print(f"FAILED  {case.name}: {failure}")
        sys.stdout.flush()
    if options.report:
        ElementTree.ElementTree(report).write(options.report)
    return 1 if failures else 0


sys.exit(main())
