# SPDX-License-Identifier: Apache-2.0
"""A file to another process that stores it, over a device of weft's or over plain TCP."""

import filecmp
import os
import shutil
import tempfile

from processes import Failure, Server, run

MIB = 1 << 20


def memory_for(size):
    """A directory in memory with room for so many bytes, else None: a disk's moods would be all that one sees."""
    shm = "/dev/shm"
    return shm if os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > size + 256 * MIB else None


class Copier(Server):
    """The server, which stores what it gets in a directory of its own in `place`, and its client. No device: plain TCP."""

    def __init__(self, programs, place, device, listen="127.0.0.1:0"):
        self.directory = tempfile.mkdtemp(dir=place)
        self.programs = programs
        self.device = device
        if device:
            super().__init__([f"{programs}/copy", "serve", self.directory, "--device", device, "--listen", listen],
                             r" on (\S+) over ")
            self.ends = self.said.group(1).split("+")
        else:
            super().__init__([f"{programs}/tcp_copy", "serve", self.directory], r"^(\d+)$")
            self.ends = [f"127.0.0.1:{self.said.group(1)}"]

    def command(self, file, ends):
        if self.device:
            return [f"{self.programs}/copy", "put", file, "+".join(ends), "--device", self.device]
        return [f"{self.programs}/tcp_copy", "put", file, ends[0].rpartition(":")[2]]

    def check(self, file):
        """The copy is the file; then it goes."""
        stored = f"{self.directory}/{os.path.basename(file)}"
        if not filecmp.cmp(file, stored, shallow=False):
            raise Failure(f"{stored} is not {file}")
        os.remove(stored)

    def put(self, file):
        """The client's Outcome, with the processor's seconds of both ends."""
        before = self.processor_seconds()
        outcome = run(self.command(file, self.ends))
        outcome.processor += self.processor_seconds() - before
        self.check(file)
        return outcome
