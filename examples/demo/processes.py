# SPDX-License-Identifier: Apache-2.0
"""Programs that run beside each other, and what they cost."""

import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Failure(Exception):
    """What a person reads in place of a table."""


def pinned(end, command):
    """Servers and clients have cores of their own, half of the machine's each, where there are several."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    its = cores if half == 0 else cores[:half] if end == "server" else cores[half:]
    return ["taskset", "--cpu-list", ",".join(map(str, its)), *command]


def told(file):
    """What a program has written into it."""
    file.seek(0)
    return file.read().strip()


class Server:
    """A program that runs until it is stopped. `said` is the match of `ready` in its output once it listens."""

    def __init__(self, command, ready):
        self.name = os.path.basename(command[0])
        self.complaints = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(pinned("server", command), stdout=subprocess.PIPE, stderr=self.complaints,
                                        text=True)
        self.said = self._wait_for(ready)

    def _wait_for(self, ready):
        """The match of a line of its output."""
        for line in self.process.stdout:
            found = re.search(ready, line)
            if found:
                return found
        raise Failure(f"{self.name} did not start: {told(self.complaints)}")

    def processor_seconds(self):
        """User and system time of all its threads so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def peak_mib(self):
        """The most memory that it has held so far."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmHWM:\s*(\d+)", file.read())[1]) / 1024

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """Ends it, and yields what it has said meanwhile."""
        self.signal(signal.SIGTERM)
        return self.process.communicate()[0]

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.process.poll() is None:
            self.stop()


@dataclass
class Outcome:
    """A program that has ended: what it said, its seconds, those of the processor, and the most memory that it held."""

    said: str
    seconds: float
    processor: float
    peak_mib: float


class Client:
    """A program that ends by itself."""

    def __init__(self, command):
        self.command = [str(word) for word in command]
        self.complaints = tempfile.TemporaryFile("w+")
        self.started = time.monotonic()
        self.process = subprocess.Popen(pinned("client", self.command), stdout=subprocess.PIPE, stderr=self.complaints,
                                        text=True)

    def end(self):
        """Waits until it has ended, and yields the Outcome."""
        said = self.process.stdout.read()
        _, status, usage = os.wait4(self.process.pid, 0)
        seconds = time.monotonic() - self.started
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != 0:
            raise Failure(f"{' '.join(self.command)}: {told(self.complaints) or f'ended with {self.process.returncode}'}")
        return Outcome(said, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def run(command):
    return Client(command).end()


def median(values):
    return sorted(values)[len(values) // 2]


class Activity:
    """What goes on, on a terminal: a line that moves until the table replaces it."""

    shows = sys.stderr.isatty()

    def __init__(self, what):
        self.what = what
        self.doing = "starts"
        self.over = threading.Event()
        self.mover = threading.Thread(target=self._move)

    def step(self, doing):
        self.doing = doing

    def _move(self):
        for mark in itertools.cycle("|/-\\"):
            sys.stderr.write(f"\r\x1b[K{self.what}: {mark} {self.doing}")
            sys.stderr.flush()
            if self.over.wait(0.25):
                break
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    def __enter__(self):
        if self.shows:
            self.mover.start()
        return self

    def __exit__(self, *unused):
        if self.shows:
            self.over.set()
            self.mover.join()


def print_table(header, rows, note=""):
    """The first column is of names, the others of numbers. The note stands below."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("   " + "   ".join(cells).rstrip())
    print(f"   {note}\n" if note else "", flush=True)
