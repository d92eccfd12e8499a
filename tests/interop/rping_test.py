#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rping_test.py PROGRAMS siw|rxe [--report FILE]: rping(1) and weft in turn, over the kernel's RDMA in a virtual machine.

Both roles, with each event driver, for each of weft's transports that the guest's devices can talk to: `verbs` is weft
on such a device, `iwarp` is weft's own, which siw takes for another RNIC. Also weft with weft: two on devices, and with
siw each of these asks the other. With CRCs that one end, both or none want; siw as it comes and as a peer that
demands CRCs, of the first revision of MPA, or that waits for a ready signal (RFC 5044, RFC 6581). `native` is weft that
takes the peer for another weft, until it sees that it is not.
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
HERE, THERE = "10.77.0.1", "10.77.0.2"  # the client's, with siw0 or rxe0, and the server's: tests/vm/devices.sh


class Failure(Exception):
    """What went wrong, in words."""


class Case:
    def __init__(self, client, server, driver="epoll", checksum=None, size=64, rounds=200, addresses=(HERE, THERE),
                 native=(), **siw):
        self.client, self.server, self.driver, self.checksum, self.size = client, server, driver, checksum, size
        self.rounds, self.addresses, self.native, self.siw = rounds, addresses, native, siw
        words = [client, "asks", server, driver, {None: "crc_unsaid", True: "crc", False: "no_crc"}[checksum],
                 f"{size}_bytes"]
        words += ["ipv6"] * (":" in addresses[0]) + [f"{name}_native" for name in native]
        words += [f"{name}_{value}" for name, value in siw.items()]
        self.name = "_".join(words)

    def run(self, programs, kind):
        parameters = {"mpa_crc_required": "N", "mpa_version": "2", "peer_to_peer": "N", **self.siw}
        for name, value in parameters.items() if kind == "siw" else ():
            (SIW / name).write_text(value)
        ready = (lambda: port_is_open(self.addresses[1])) if self.server == "iwarp" else rdma_listener
        serving = self.rping("-s") if self.server == "rping" else self.weft(programs, "serve", self.server, f"{kind}1")
        asking = self.rping("-c") if self.client == "rping" else self.weft(programs, "ping", self.client, f"{kind}0")
        said = self.run_both(serving, ready, asking)
        wanted = "with" if self.checksum or parameters["mpa_crc_required"] == "Y" else "without"
        if self.checksum is not None and f", {wanted} CRC" not in said:
            raise Failure(f"they have not agreed to go {wanted} CRCs:\n{said}")
        both_greet = {self.client, self.server} == set(self.native)
        if (", with credits" if both_greet else ", without credits") not in said:
            raise Failure(f"they have not seen whether the other one is weft:\n{said}")
        atomics = "with" if both_greet and kind == "rxe" else "without"
        immediate = "with" if kind == "rxe" else "without"  # which InfiniBand's standard has, and iWARP's first has not
        if f", {atomics} atomics, {immediate} immediate writes" not in said:
            raise Failure(f"they do not promise what both can do:\n{said}")

    def weft(self, programs, verb, transport, device):
        server = self.addresses[1]
        command = [programs / "tests/interop/rping_peer", verb, f"[{server}]:{PORT}" if ":" in server else f"{server}:{PORT}",
                   "--rounds", self.rounds, "--device", "iwarp" if transport == "iwarp" else f"verbs:{device}"]
        if verb == "ping":
            command += ["--size", self.size]
        if transport in self.native:
            command.append("--native")
        if self.checksum is not None and transport == "iwarp":
            command += ["--checksum", "true" if self.checksum else "false"]
        return command

    def rping(self, role):
        client, server = self.addresses
        command = ["rping", role, "-a", server, "-p", PORT, "-V", "-S", self.size]
        return command if role == "-s" else [*command, "-I", client, "-C", self.rounds]

    def run_both(self, server, ready, client):
        """What they say, once both have ended well."""
        environment = {**os.environ, "WEFT_EVENT_DRIVER": self.driver}
        with start(server, environment) as serving:
            try:
                wait_for(lambda: ready() or serving.poll() is not None, "a listener")
                with start(client, environment) as asking:
                    said = finish(asking, "client")
                    if asking.returncode != 0:  # the server may wait for another
                        serving.terminate()
                    said += finish(serving, "server")
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


def cases_of_rping_and(transport, kind):
    for ends in (("rping", transport), (transport, "rping")):  # client and server
        yield Case(*ends, driver="io_uring")
        yield Case(*ends, size=65535, rounds=20)
        yield Case(*ends, rounds=20, addresses=("fd77::1", "fd77::2"))
        yield Case(*ends, rounds=20, native=(transport,))


def cases_of_checksums():
    for ends in (("rping", "iwarp"), ("iwarp", "rping")):
        for driver, checksum in itertools.product(("io_uring", "epoll"), (True, False)):
            yield Case(*ends, driver, checksum)
        yield Case(*ends, checksum=True, size=65535, rounds=20)
        yield Case(*ends, checksum=False, size=65535, rounds=20)
    yield Case("rping", "iwarp", checksum=False, rounds=20, mpa_crc_required="Y")
    yield Case("rping", "iwarp", checksum=True, rounds=20, mpa_version="1")
    yield Case("rping", "iwarp", checksum=False, rounds=20, mpa_version="1")
    yield Case("rping", "iwarp", rounds=20, peer_to_peer="Y")


def cases_of_two_wefts(*both):
    for driver, native in itertools.product(("io_uring", "epoll"), (both, ())):
        yield Case(*both, driver, native=native)
    yield Case(*both, size=1000000, rounds=5, native=both)
    yield Case(*both, size=1000000, rounds=5)
    yield Case(*both, rounds=20, native=both[:1])
    yield Case(*both, rounds=20, native=both[1:])
    yield Case(*both, checksum=True, rounds=20, native=both)


def cases(kind):
    yield from cases_of_rping_and("verbs", kind)
    for driver, native in itertools.product(("io_uring", "epoll"), (("verbs",), ())):
        yield Case("verbs", "verbs", driver, size=100000, rounds=5, native=native)
    if kind == "siw":
        yield from cases_of_rping_and("iwarp", kind)
        yield from cases_of_checksums()
        yield from cases_of_two_wefts("verbs", "iwarp")
        yield from cases_of_two_wefts("iwarp", "verbs")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=Path, help="the build directory")
    parser.add_argument("kind", choices=["siw", "rxe"], help="of the guest's devices")
    parser.add_argument("--only", default="", help="of a case's name")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    report, failures = ElementTree.Element("testsuites"), 0
    for case in cases(options.kind):
        if options.only not in case.name:
            continue
        result = ElementTree.SubElement(report, "testcase", classname="rping", name=case.name, status="run",
                                        result="completed")
        try:
            case.run(options.programs, options.kind)
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
