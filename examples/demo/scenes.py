# SPDX-License-Identifier: Apache-2.0
"""The scenes of the demo: each prints its table."""

import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass

import rdma_device
from copier import MIB, Copier, memory_for
from processes import Activity, Client, Server, median, print_table, run

KEYS = 100_000
AT_A_TIME = 16
CABLE_MIB = 80  # in a second


@dataclass
class Extent:
    """How much of everything: the demo takes its time, a test does not."""

    rounds: int = 3  # of GETs
    round_milliseconds: int = 1000
    copies: int = 5  # of the file, over each way
    file_mib: int = 0  # 0: a file of the machine's
    pulled_after: float = 0.5  # seconds after the copy has begun
    pulled_for: float = 1.0


WHOLE = Extent()
QUICK = Extent(rounds=1, round_milliseconds=100, copies=1, file_mib=24, pulled_after=0.05, pulled_for=0.2)


def in_turn(ways, rounds):
    """The ways, so many times, in an order that changes: none is always behind the same one."""
    for number in range(rounds):
        turn = number % len(ways)
        order = ways[turn:] + ways[:turn]
        yield order if number < len(ways) else order[::-1]


def begin(title):
    print(title, flush=True)


# ---- 1: a cache ----


def kv_client(programs, extent, *words):
    return [f"{programs}/kv", *words, "--keys", str(KEYS), "--depth", str(AT_A_TIME), "--rounds", "1", "--milliseconds",
            str(extent.round_milliseconds), "--read-only"]


def ask_kv(server, command):
    """GETs per second, and the server's processor time for a million of them."""
    before = server.processor_seconds()
    said = run(command).said
    spent = server.processor_seconds() - before
    rate = float(re.search(r"GETs .* (\d+) per second", said).group(1))
    gets = int(re.search(r"^(\d+) GETs", said, re.MULTILINE).group(1))
    return rate, spent / gets * 1e6


def redis_client(address, *words):
    host, port = address
    command = ["redis-benchmark", "-h", host, "-p", str(port)]
    return [*command, "-c", "1", "-P", str(AT_A_TIME), "-d", "64", "-r", str(KEYS), "-q", *words]


def has_redis():
    return shutil.which("redis-server") and shutil.which("redis-benchmark")


def start_redis(stack):
    """A redis-server with the same number of keys, which goes with the stack, and its address."""
    # It takes no port 0. Of this address of the loopback nobody else takes the port meanwhile.
    host = f"127.{64 + (os.getpid() >> 16 & 63)}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
    with socket.create_server((host, 0)) as free:
        address = free.getsockname()
    command = ["redis-server", "--bind", host, "--port", str(address[1]), "--save", ""]
    server = stack.enter_context(Server(command, "Ready to accept"))
    run(redis_client(address, "-t", "set", "-n", str(3 * KEYS)))
    return server, address


def ask_redis(server, address):
    requests = 3 * KEYS
    before = server.processor_seconds()
    said = run(redis_client(address, "-t", "get", "-n", str(requests))).said
    spent = server.processor_seconds() - before
    return float(re.findall(r"GET: ([\d.]+) requests", said)[-1]), spent / requests * 1e6


def cache(programs, extent):
    begin(f"1. A cache that its clients read by themselves: {KEYS:,} keys of 64 bytes, {AT_A_TIME} GETs at a time")

    def serve(device, address, *words):
        command = [f"{programs}/kv", "--device", device, "serve", "--listen", f"{address}:0", "--tcp-port", "0", "--fill",
                   str(KEYS), "--record-memory", "1"]
        return Server([*command, *words], r"keys on (\S+) over .*, and on (\S+) over TCP")

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serve("shm,iwarp", "127.0.0.1", "--direct"))
        address, tcp = server.said.groups()
        activity = stack.enter_context(Activity("cache"))

        def over(fabric):
            return lambda: ask_kv(server, kv_client(programs, extent, "--device", fabric, "bench", address))

        ways = {
            "weft, shared memory": over("shm"),
            "weft, iWARP in user space": over("iwarp"),
            "requests over TCP": lambda: ask_kv(server, kv_client(programs, extent, "bench", f"tcp://{tcp}")),
        }
        if (device := rdma_device.find()) is not None:
            there = stack.enter_context(serve(*device))
            asking = kv_client(programs, extent, "--device", device[0], "bench", there.said.group(1))
            ways[f"weft, {device[0]}"] = lambda: ask_kv(there, asking)
        if has_redis():
            other, of_redis = start_redis(stack)
            ways["redis-server, TCP"] = lambda: ask_redis(other, of_redis)
        results = {name: [] for name in ways}
        for _ in range(extent.rounds):
            for name, ask in ways.items():
                activity.step(name)
                results[name].append(ask())
    rows = [(name, f"{median([rate for rate, _ in found]):,.0f}", f"{median([cost for _, cost in found]):.2f} s")
            for name, found in results.items()]
    print_table((f"median of {extent.rounds}", "GETs per second", "server's processor, a million GETs"), rows,
                "iWARP in user space: the server's processor does the work of a device.")


# ---- 2: a file ----


def find_file(work, extent):
    """A file of the machine's own, so that it is nobody's idea of a good case; else an archive of some."""
    found = ""
    if not extent.file_mib:
        command = ["find", "/usr", "/opt", "/var", "-xdev", "-type", "f", "-size", "+200M", "-size", "-600M", "-readable",
                   "!", "-name", ".*", "-print", "-quit"]
        found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    if found.strip():
        return found.strip()
    path = f"{work}/archive.tar"
    with open(path, "wb") as archive, subprocess.Popen(["tar", "-cf", "-", "/usr"], stdout=subprocess.PIPE,
                                                       stderr=subprocess.DEVNULL) as tar:
        for _ in range(extent.file_mib or 400):
            archive.write(tar.stdout.read(MIB))
        tar.kill()
    return path


@contextlib.contextmanager
def file_and_place(extent):
    """A file, and where its copies go."""
    with tempfile.TemporaryDirectory(prefix="weft-demo.") as work:
        file = find_file(work, extent)
        with tempfile.TemporaryDirectory(prefix="weft-demo.", dir=memory_for(2 * os.path.getsize(file))) as place:
            yield file, place


def copies(programs, extent):
    with contextlib.ExitStack() as stack:
        file, place = stack.enter_context(file_and_place(extent))
        size = os.path.getsize(file) / MIB
        begin(f"2. A file to another process that stores it, SHA-256 from end to end: {os.path.basename(file)}, {size:.0f} MiB")
        activity = stack.enter_context(Activity("file"))
        ways = {"weft, shared memory": ("shm",), "weft, iWARP in user space": ("iwarp",), "plain TCP": (None,)}
        if (device := rdma_device.find()) is not None:
            ways[f"weft, {device[0]}"] = (device[0], f"{device[1]}:0")
        copiers = {name: stack.enter_context(Copier(programs, place, *way)) for name, way in ways.items()}
        for copier in copiers.values():
            copier.put(file)  # does not count
        results = {name: [] for name in ways}
        for order in in_turn(list(ways), extent.copies):
            for name in order:
                activity.step(name)
                results[name].append(copiers[name].put(file))
    rows = []
    for name, found in results.items():
        speeds = sorted(size / each.seconds for each in found)
        rows.append((name, f"{median(speeds):.0f} MiB/s", f"{speeds[0]:.0f} to {speeds[-1]:.0f}",
                     f"{median([each.processor for each in found]):.2f} s"))
    print_table((f"median of {extent.copies}", "speed", "of all", "processors, both ends"), rows)


# ---- 3: a cable is pulled ----


def put_with_cut(copier, cables, file, extent):
    """Pulls the first cable while a file is copied, and plugs it in again. Yields the copy's longest pause in
    milliseconds, its seconds, and how many bytes the cables have carried."""
    client = Client(copier.command(file, [each.said.group(1) for each in cables]))
    time.sleep(extent.pulled_after)
    cables[0].signal(signal.SIGUSR1)
    time.sleep(extent.pulled_for)
    cables[0].signal(signal.SIGUSR2)
    outcome = client.end()
    copier.check(file)
    pause = int(re.search(r"longest pause (\d+) ms", outcome.said).group(1))
    return pause, outcome.seconds, sum(int(each.stop().split()[-1]) for each in cables)


def pulled_cable(programs, extent):
    with contextlib.ExitStack() as stack:
        file, place = stack.enter_context(file_and_place(extent))
        size = os.path.getsize(file)
        begin(f"3. A cable is pulled for {extent.pulled_for} s while {size / MIB:.0f} MiB are copied; each carries "
              f"{CABLE_MIB} MiB/s")
        activity = stack.enter_context(Activity("cable"))
        rows = []
        for name, device, listen in (("weft, two cables (rails)", "iwarp+iwarp", "127.0.0.1:0+127.0.0.1:0"),
                                     ("weft, one cable", "iwarp", "127.0.0.1:0"), ("plain TCP, one cable", None, "")):
            activity.step(name)
            copier = stack.enter_context(Copier(programs, place, device, listen))
            cables = [stack.enter_context(Server([f"{programs}/cable", end, str(CABLE_MIB)], r"tcp://(\S+)"))
                      for end in copier.ends]
            pause, seconds, carried = put_with_cut(copier, cables, file, extent)
            rows.append((name, f"{pause} ms", f"{seconds:.1f} s", f"{carried / MIB:.0f} MiB",
                         f"{(carried - size) / MIB:.1f} MiB", "identical"))
        digest = hashlib.sha256()
        with open(file, "rb") as whole:
            while piece := whole.read(MIB):
                digest.update(piece)
    print_table(("", "longest pause", "copied in", "carried", "beyond the file", "copy"), rows,
                f"SHA-256 of the file and of each copy: {digest.hexdigest()}")


# ---- 4: a late answer ----


def late_answer(programs, _):
    begin("4. An answer that comes when its client has given up, and has written its next order")
    rows = [("", "the order, afterwards")]
    for name, how in (("memory reused, as with verbs", "reuse"), ("weft: memory retired", "retire")):
        rows.append((name, run([f"{programs}/late_answer", how]).said.rstrip()))
    for name, words in rows:
        print(f"   {name:30}{words}")


ALL = (cache, copies, pulled_cable, late_answer)
